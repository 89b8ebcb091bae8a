"""Folds by name: those of this package, and a user's own as `module:attribute`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable

from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.lake.fold import Fold
from objbuf_dagster.lake.fold_latest import ServiceLatest

OURS: dict[str, Callable[[], Fold]] = {"service_latest": ServiceLatest}


def find_fold(name: str) -> Fold:
    """The fold of this name, or `module:attribute` for one's own: a Fold, or a class of them without arguments.

    Modules are looked for where Python always does, and in the current directory first. Importing runs the module.
    Raises InvalidInput if there is no such fold, with what is there.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon:
        if name not in OURS:
            raise InvalidInput(
                f"no fold of this package is called '{shown(name)}': there is {', '.join(OURS)}; give one's own with "
                "--fold module:attribute, for example --fold my_folds:Accounts"
            )
        return OURS[name]()
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), attribute, None)
        found = found() if isinstance(found, type) and issubclass(found, Fold) else found
    except Exception as error:
        raise InvalidInput(
            f"fold '{shown(name)}' cannot be had ({type(error).__name__}: {shown(str(error))}): run this in the "
            "directory of its module, or set PYTHONPATH; a class must need no arguments"
        ) from error
    if not isinstance(found, Fold):
        raise InvalidInput(f"'{shown(name)}' is of type {type(found).__name__}: it must be a Fold, or a class of them")
    return found
