"""`python -m objbuf_dagster.cli` is `objbuf`."""

from objbuf_dagster.cli import main

main()
