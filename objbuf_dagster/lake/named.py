"""What users name as `module:attribute`: decoders and folds of their own."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TypeVar

from objbuf_dagster.errors import InvalidInput, shown

T = TypeVar("T")


def find_named(name: str, kind: type[T]) -> T:
    """The attribute of this name, a `kind` or a class of them that needs no arguments.

    Modules are looked for where Python always does, and in the current directory first, as `python -m` does it.
    Importing runs the module. Raises InvalidInput if there is no such thing, with what is there.
    """
    module_name, _, attribute = name.partition(":")
    what = kind.__name__
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise InvalidInput(
            f"module '{shown(module_name)}' of {what.lower()} '{shown(name)}' cannot be imported "
            f"({type(error).__name__}: {shown(str(error))}): run this in its directory, or set PYTHONPATH"
        ) from error
    found = getattr(module, attribute, None)
    if isinstance(found, type) and issubclass(found, kind):
        try:
            found = found()
        except Exception as error:
            raise InvalidInput(
                f"class '{shown(name)}' cannot be made without arguments ({type(error).__name__}: "
                f"{shown(str(error))}): name an attribute that is one, made with its settings"
            ) from error
    if not isinstance(found, kind):
        is_ = f"is of type {type(found).__name__}" if hasattr(module, attribute) else "is not there"
        raise InvalidInput(f"'{shown(name)}' {is_}: it must be a {what}, or a class of them")
    return found
