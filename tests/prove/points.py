"""In which ways a store call can go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from objbuf_dagster.store import RetryPolicy
from tests.support.faults import AT_ONCE, Call

Kind = Literal["fail", "lost", "twice", "unavailable", "overtaken", "taken over", "collected"]
"""As in `faults.Fault`; the last three: the call is late, and before it another producer appends, another deployment
takes the buffer over, or a person collects."""

KINDS: tuple[Kind, ...] = get_args(Kind)
POLICIES = {"repeated": AT_ONCE, "not repeated": RetryPolicy(attempts=1)}


@dataclass(frozen=True, slots=True)
class Point:
    """The call that goes wrong, from 1, how, and whether the store's client repeats it; how late an overdue one is."""

    call: int
    kind: Kind | Literal["overdue"]
    policy: str
    lateness: int = 0


def ways(call: Call) -> list[tuple[Kind, str]]:
    """In which this call can go wrong, each with the policies that make a difference.

    What no client would repeat has one. A read that is done twice is a read, and one whose answer is lost has failed:
    only a listing can break off.
    """
    once: tuple[Kind, ...] = ("unavailable", "overtaken", "taken over", "collected")
    kinds: tuple[Kind, ...] = KINDS
    if call.method not in ("put", "delete"):
        kinds = ("fail", *once) if call.method != "list" else ("fail", "lost", *once)
    return [(kind, policy) for kind in kinds for policy in POLICIES if policy == "repeated" or kind not in once]
