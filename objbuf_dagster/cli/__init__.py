"""`objbuf`: fill, look at and look after a buffer from a shell."""

from objbuf_dagster.cli.app import main

__all__ = ["main"]
