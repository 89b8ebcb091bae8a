"""`objbuf`: fill, look at and look after a buffer from a shell."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command. What it is made of takes a moment to load, and Ctrl-C may come then, too."""
    try:
        from objbuf_dagster.cli.app import main as command

        command()
    except KeyboardInterrupt:
        print("objbuf: interrupted", file=sys.stderr)
        sys.exit(130)
