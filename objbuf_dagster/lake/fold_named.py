"""Folds by name: those of this package, and a user's own as `module:attribute`."""

from __future__ import annotations

from collections.abc import Callable

from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.lake.fold import Fold
from objbuf_dagster.lake.fold_latest import ServiceLatest
from objbuf_dagster.lake.named import find_named

OURS: dict[str, Callable[[], Fold]] = {"service_latest": ServiceLatest}


def find_fold(name: str) -> Fold:
    """The fold of this name, or `module:attribute` for one's own, as `find_named` has it.

    Raises InvalidInput if there is no such fold, with what is there.
    """
    if ":" not in name:
        if name not in OURS:
            raise InvalidInput(
                f"no fold of this package is called '{shown(name)}': there is {', '.join(OURS)}; give one's own with "
                "--fold module:attribute, for example --fold my_folds:Accounts"
            )
        return OURS[name]()
    return find_named(name, Fold)  # type: ignore[type-abstract]
