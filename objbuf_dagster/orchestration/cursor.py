"""The sensor's cursor: what it may remember between ticks.

A hint, never the truth: it is bound to one buffer and one format, and refused with what to do about it when it is
another's. An empty cursor is the way to take a buffer over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration.regulation import Memory
from objbuf_dagster.ranges import SequenceRange

VERSION = 3

RESET = (
    "To let this deployment take the buffer over, reset the cursor: on the sensor's page, or by `dagster sensor cursor "
    "{sensor} --delete`, where no `.env` names another DAGSTER_HOME: Dagster's commands believe that of the working "
    "directory more than the environment. Nothing is lost by that"
)


@dataclass(frozen=True, slots=True)
class Cursor:
    """buffer: the identity of the buffer that it is about.
    epoch: that this deployment holds.
    next_sequence: of the manifest, when it was last seen; it never falls.
    known: the last range that Dagster has a partition for.
    oldest: a range that begins at or before the frontier, the last one seen: listings begin there.
    observed: what the last observation said.
    regulation: what the regulator and the gate remember.
    known_batch: the last batch of `known`, by which it is told from that of another buffer; None if it had expired.
    skipped: sequences before this one that are in no range were told already, or left before this deployment came.
    caught_up: the frontier for which states need not be looked at again.
    """

    buffer: str
    epoch: int
    next_sequence: int = 0
    known: SequenceRange | None = None
    oldest: SequenceRange | None = None
    observed: Mapping[str, int | float] = field(default_factory=dict)
    regulation: Memory = field(default_factory=Memory)
    known_batch: str | None = None
    skipped: int = 0
    caught_up: int = 0

    def to_text(self) -> str:
        written = {one.name: getattr(self, one.name) for one in fields(self)}
        written |= {name: one.key if one else None for name, one in (("known", self.known), ("oldest", self.oldest))}
        return json.dumps({"version": VERSION, **written, "regulation": self.regulation.to_json()})

    @classmethod
    def from_text(cls, text: str, buffer: str, sensor: str) -> Cursor:
        """Raises InvalidInput for anything that was not written by `to_text` for this buffer."""
        reset = RESET.format(sensor=sensor)
        try:
            given = json.loads(text)
            version = given.pop("version")
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise InvalidInput(f"the sensor's cursor is damaged: {text[:100]!r}. {reset}") from None
        if type(version) is not int or version != VERSION:
            raise InvalidInput(
                f"the sensor's cursor has format {str(version)[:20]!r}, and this release writes {VERSION}: it was made "
                f"by another release. {reset}"
            )
        try:
            found = _checked(given)
        except (InvalidInput, TypeError, ValueError, KeyError) as error:
            raise InvalidInput(
                f"the sensor's cursor is damaged, or of another release ({error}): {text[:100]!r}. {reset}"
            ) from None
        if found.buffer != buffer:
            raise InvalidInput(
                f"the sensor's cursor is of another buffer: {found.buffer[:300]!r}, and this is {buffer!r}. Correct "
                "the buffer's URL; or, for another buffer, use another DAGSTER_HOME, or a source of another name, "
                "since partitions and materialisations of the old one would be taken for those of the new one"
            )
        return found


def _checked(given: dict[str, Any]) -> Cursor:
    regulation = Memory.from_json(given.pop("regulation"))
    keys = {name: given.pop(name) for name in ("known", "oldest")}
    given |= {name: None if key is None else SequenceRange.from_key(key) for name, key in keys.items()}
    if given.keys() - ({one.name for one in fields(Cursor)} - {"regulation"}):
        raise TypeError("a name is none of its own")  # not Python's own words: they quote the name as it is
    cursor = Cursor(**given, regulation=regulation)
    if not isinstance(cursor.buffer, str) or not isinstance(cursor.observed, dict):
        raise TypeError("a value is of another type")
    if cursor.known_batch is not None and not isinstance(cursor.known_batch, str):
        raise TypeError("a batch is no text")
    whole = (cursor.epoch, cursor.next_sequence, cursor.skipped, cursor.caught_up)
    for number in (*whole, *cursor.observed.values()):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
            raise TypeError("a number is none")
    if not all(isinstance(number, int) for number in whole):
        raise TypeError("a number is not whole")
    return cursor
