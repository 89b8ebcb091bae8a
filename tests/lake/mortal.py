"""A table whose driver dies at one of its commits."""

from __future__ import annotations

from objbuf_dagster.lake import LakeTable


class Died(BaseException):
    """The process ends here."""


class Mortal(LakeTable):
    """Dies before or after one of the commits that all tables with the same fate make."""

    fate: dict[str, int]
    after: bool

    def commit(self, *args: object, **words: object) -> object:  # type: ignore[override]
        self.fate["left"] -= 1
        if self.fate["left"] == 0 and not self.after:
            raise Died
        done = super().commit(*args, **words)  # type: ignore[arg-type]
        if self.fate["left"] == 0:
            raise Died
        return done
