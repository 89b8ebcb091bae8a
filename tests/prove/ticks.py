"""Every store call of a sensor's tick and of an ack hook goes wrong once, in every way; the next ticks make it good.

The tick and the hook are the real ones, on an instance of Dagster's in memory; runs are records. There is something for
them to do: a range has materialised and is not acked, another runs, and batches wait to be planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from dagster._core.storage.tags import PARTITION_NAME_TAG

from objbuf_dagster.buffer import Consumer, GarbageCollector
from objbuf_dagster.errors import Fenced, ObjbufError
from objbuf_dagster.orchestration import SensorSettings
from objbuf_dagster.orchestration.acking import ack_materialised
from objbuf_dagster.ranges.regulator import Regulator
from objbuf_dagster.store import MemoryStore, RetryingStore
from tests.orchestration.sensing import PAIRS, Sensing, key, produce, sensing
from tests.prove.points import POLICIES, Point, ways
from tests.prove.proof import Proof, Size
from tests.support.faults import Call, Fault, FaultStore

Act = Literal["tick", "regulated tick", "hook"]
ACTS: tuple[Act, ...] = get_args(Act)
FEW = 12
"""Points that are tried at the small size."""

_TICKS = 2
"""After which all must be well again."""

_TOLD = 5

_FIXED = SensorSettings(limits=PAIRS.limits, max_in_flight=9)
_REGULATED = SensorSettings(
    regulator=Regulator.of("balanced", min_bytes=1, max_bytes=2000, max_wait=0.0, expected_room=16.0), max_in_flight=4
)
_SIZE = 989
"""Of a batch's entry, so that two batches are a range for the regulator as well."""


@contextmanager
def staged(act: Act, policy: str) -> Iterator[tuple[Sensing, FaultStore, MemoryStore]]:
    """Range 0 to 1 has materialised, 2 to 3 runs, and two more batches wait."""
    inner = MemoryStore()
    faults = FaultStore(inner, {})
    settings = _REGULATED if act == "regulated tick" else _FIXED
    with sensing(RetryingStore(faults, POLICIES[policy]), settings) as sensor:
        sensor.tick()
        produce(inner, 4, size=_SIZE)
        sensor.tick()
        for one in (key(0, 1), key(2, 3)):
            sensor.begin(one)
        sensor.land(key(0, 1))
        produce(inner, 2, size=_SIZE)
        faults.calls.clear()
        yield sensor, faults, inner


def _act(sensor: Sensing, act: Act) -> None:
    if act == "hook":
        ack_materialised(sensor.instance, sensor.source, sensor.buffer)
    else:
        sensor.tick()


def calls(act: Act) -> list[Call]:
    """Of one in which nothing goes wrong."""
    with staged(act, "repeated") as (sensor, faults, _):
        _act(sensor, act)
        return list(faults.calls)


def points(size: Size) -> list[tuple[Act, Point]]:
    every = [(act, Point(call.number, *way)) for act in ACTS for call in calls(act) for way in ways(call)]
    return size.pick(size.chance("ticks").sample(every, FEW), every)


def run(act: Act, point: Point) -> list[str]:
    """What is wrong, at once or after some more ticks."""
    with staged(act, point.policy) as (sensor, faults, inner):

        def script(call: Call) -> Fault | None:
            if call.number != point.call:
                return None
            if point.kind == "overtaken":
                produce(inner, 1, size=_SIZE)
            elif point.kind == "taken over":
                Consumer.open(inner, gc_interval=None)
            elif point.kind == "collected":
                GarbageCollector(inner).collect_once()
            else:
                return point.kind
            return None

        faults.script = script
        try:
            _act(sensor, act)
        except Fenced:
            if point.kind != "taken over":
                raise
        except ObjbufError:
            pass
        found = _wrong_at_any_time(sensor)
        if len(faults.calls) < point.call:
            found.append("it did not come to that call")
        faults.script = {}
        if point.kind == "taken over":
            sensor.cursor = None  # a person takes it back
        for _ in range(_TICKS):
            sensor.tick()
            found += _wrong_at_any_time(sensor)
        return found + _wrong_in_the_end(sensor)


def _wrong_at_any_time(sensor: Sensing) -> list[str]:
    return [] if sensor.frontier <= 2 else [f"the frontier is {sensor.frontier}, and only 0 to 1 has materialised"]


def _wrong_in_the_end(sensor: Sensing) -> list[str]:
    """All that is there is planned, each range is a partition and has one run, and the frontier is where it may be."""
    planned = [key(one.start, one.end) for one in sensor.buffer.ledger().list()]
    runs = Counter(run.tags[PARTITION_NAME_TAG] for run in sensor.instance.get_runs())
    last = sensor.buffer.ledger().list()[-1].end
    found = []
    if sensor.frontier != 2:
        found.append(f"the frontier stays at {sensor.frontier}")
    if last + 1 != sensor.buffer.peek().next_sequence:
        found.append(f"nothing is planned after {last}")
    if sensor.partitions != planned:
        found.append(f"the partitions are {sensor.partitions}, and {planned} are planned")
    if runs != Counter(planned):
        found.append(f"the runs are {runs}")
    return found


def try_all(proof: Proof, size: Size) -> None:
    """Count these points, and what is wrong after them, with those of a proof."""
    tried: Counter[str] = Counter()
    proof.wanted += len(points(size))
    for act, point in points(size):
        try:
            wrongs = run(act, point)
        except Exception as error:  # noqa: BLE001, only errors of ours may come out, and those while it goes wrong
            wrongs = [f"{type(error).__name__}: {error}"]
        proof.tried += 1
        tried[act] += 1
        proof.invented += len(wrongs)
        if wrongs and len(proof.notes) < _TOLD:
            proof.notes.append(f"{act}, {point}: {wrongs[0]}")
    proof.notes.append(
        f"{tried['tick'] + tried['regulated tick']} of the points are in a sensor's tick, {tried['regulated tick']} of "
        f"them with the regulator on, {tried['hook']} in a hook"
    )
