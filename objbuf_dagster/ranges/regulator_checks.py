"""Settings that are out of range are refused when they are made, with their name and what they may be."""

from __future__ import annotations

from objbuf_dagster.errors import InvalidInput, shown


def check_is(owner: object, name: str, kind: type, what: str) -> None:
    """Raises InvalidInput if the setting is of another type."""
    value = getattr(owner, name)
    if not isinstance(value, kind):
        raise InvalidInput(f"the {type(owner).__name__.lower()}'s {name} must be {what}, not {shown(repr(value))}")


def check_number(owner: object, name: str, low: float, high: float, *, whole: bool = False) -> None:
    """Raises InvalidInput if the setting is no number from `low` to `high`; `whole` allows no fractions."""
    value = getattr(owner, name)
    kind = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        what = "a whole number" if whole else "a number"
        raise InvalidInput(
            f"the {type(owner).__name__.lower()}'s {name} must be {what} from {_said(low)} to {_said(high)}, "
            f"not {shown(repr(value))}"
        )


def _said(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else f"{number:g}"
