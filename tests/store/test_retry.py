"""Transient errors, tried again: how often, how patiently, and what is known when it did not help."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from objbuf_dagster.errors import CorruptData, InvalidInput, NotFound, StorageError, StorageUnavailable
from objbuf_dagster.store import Conflict, MemoryStore, Payload, RetryingStore, RetryPolicy, Store
from tests.support.faults import Call, Fault, FaultStore, Script

_QUICK = RetryPolicy(attempts=4, base_seconds=0)
_OPERATIONS: dict[str, tuple[str, Callable[[Store], object]]] = {
    "get": ("get", lambda store: store.get("object")),
    "read": ("read", lambda store: store.read("object")),
    "head": ("head", lambda store: store.head("object")),
    "list": ("list", lambda store: list(store.list())),
    "get if changed": ("get", lambda store: store.get_if_changed("object", "another")),
    "delete": ("delete", lambda store: store.delete(["object"])),
    "put": ("put", lambda store: store.put("object", b"new")),
    "put if absent": ("put", lambda store: store.put("absent", b"new", if_absent=True)),
    "put if version": ("put", lambda store: store.put("object", b"new", if_version=store.get("object").version)),
}


@pytest.fixture
def memory() -> MemoryStore:
    store = MemoryStore()
    store.put("object", b"old")
    return store


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for, none of which is made."""
    made: list[float] = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


def _retrying(memory: MemoryStore, script: Script, policy: RetryPolicy = _QUICK) -> tuple[RetryingStore, FaultStore]:
    faults = FaultStore(memory, script)
    return RetryingStore(faults, policy), faults


def _always(method: str, fault: Fault) -> Script:
    return lambda call: fault if call.method == method else None


def _calls(faults: FaultStore, method: str) -> int:
    return sum(call.method == method for call in faults.calls)


# Which calls are repeated


@pytest.mark.parametrize("name", _OPERATIONS)
def test_a_transient_error_is_tried_again_until_it_passes(memory: MemoryStore, name: str) -> None:
    method, operation = _OPERATIONS[name]
    store, faults = _retrying(memory, {(method, nth): "fail" for nth in (1, 2, 3)})

    result = operation(store)

    assert _calls(faults, method) == 4
    assert not isinstance(result, Conflict)


@pytest.mark.parametrize("name", _OPERATIONS)
def test_after_the_last_attempt_the_storage_is_unavailable(memory: MemoryStore, name: str) -> None:
    method, operation = _OPERATIONS[name]
    store, faults = _retrying(memory, _always(method, "fail"))

    with pytest.raises(StorageUnavailable, match="4 times in a row") as caught:
        operation(store)

    assert type(caught.value) is StorageUnavailable  # TransientError stays inside
    assert caught.value.in_doubt == name.startswith("put if")
    assert _calls(faults, method) == 4


def test_a_single_attempt_is_not_repeated(memory: MemoryStore) -> None:
    store, faults = _retrying(memory, _always("get", "fail"), RetryPolicy(attempts=1))

    with pytest.raises(StorageUnavailable, match="1 times in a row"):
        store.get("object")

    assert len(faults.calls) == 1


@pytest.mark.parametrize("name", _OPERATIONS)
def test_what_is_unavailable_for_good_is_not_tried_again(memory: MemoryStore, name: str) -> None:
    method, operation = _OPERATIONS[name]
    store, faults = _retrying(memory, _always(method, "unavailable"))

    with pytest.raises(StorageUnavailable, match="found nobody"):
        operation(store)

    assert _calls(faults, method) == 1


def test_a_permanent_error_is_not_tried_again(memory: MemoryStore) -> None:
    store, faults = _retrying(memory, {})
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (NotFound, lambda: store.get("nothing")),
        (NotFound, lambda: store.head("nothing")),
        (CorruptData, lambda: store.read("object", max_bytes=1)),
        (InvalidInput, lambda: store.put("../x", b"")),
        (InvalidInput, lambda: store.delete([".."])),
        (InvalidInput, lambda: list(store.list(".."))),
    ]

    for kind, call in calls:
        with pytest.raises(kind):
            call()

    assert len(faults.calls) == len(calls)


def test_a_refusal_after_a_transient_error_is_passed_on(memory: MemoryStore) -> None:
    store, faults = _retrying(memory, {("head", 1): "fail"})

    with pytest.raises(NotFound):
        store.head("nothing")

    assert len(faults.calls) == 2


# Conditional puts


def test_a_conflict_passes_through_untouched(memory: MemoryStore) -> None:
    store, faults = _retrying(memory, {})

    assert store.put("object", b"new", if_absent=True) == Conflict()
    assert store.put("object", b"new", if_version="another") == Conflict()

    assert _calls(faults, "put") == 2
    assert memory.read("object") == b"old"


def test_a_put_if_absent_that_landed_without_an_answer_is_a_conflict_in_doubt(memory: MemoryStore) -> None:
    store, _ = _retrying(memory, {("put", 1): "lost"})

    assert store.put("absent", b"new", if_absent=True) == Conflict(in_doubt=True)

    assert memory.read("absent") == b"new"


def test_a_put_if_version_that_landed_without_an_answer_is_a_conflict_in_doubt(memory: MemoryStore) -> None:
    store, _ = _retrying(memory, {("put", 1): "lost"})

    assert store.put("object", b"new", if_version=memory.get("object").version) == Conflict(in_doubt=True)

    assert memory.read("object") == b"new"


def test_a_conflict_after_an_attempt_that_failed_is_in_doubt_too(memory: MemoryStore) -> None:
    """Nobody can tell a put that failed from one whose answer was lost."""
    store, _ = _retrying(memory, {("put", 1): "fail"})

    assert store.put("object", b"new", if_absent=True) == Conflict(in_doubt=True)

    assert memory.read("object") == b"old"


def test_a_conditional_put_that_never_got_an_answer_is_in_doubt(memory: MemoryStore) -> None:
    store, _ = _retrying(memory, {("put", 1): "lost"}, RetryPolicy(attempts=1))

    with pytest.raises(StorageUnavailable) as caught:
        store.put("absent", b"new", if_absent=True)

    assert caught.value.in_doubt
    assert memory.read("absent") == b"new"


def test_a_conditional_put_that_passes_at_last_is_no_conflict(memory: MemoryStore) -> None:
    store, _ = _retrying(memory, {("put", 1): "fail", ("put", 2): "fail"})

    assert store.put("object", b"new", if_version=memory.get("object").version) is None

    assert memory.read("object") == b"new"


def test_an_unconditional_put_or_delete_that_lost_its_answer_is_simply_repeated(memory: MemoryStore) -> None:
    store, faults = _retrying(memory, {("put", 1): "lost", ("delete", 1): "lost"})

    assert store.put("object", b"new") is None
    assert memory.read("object") == b"new"
    assert store.delete(path for path in ("object", "nothing")) == {}

    assert list(memory.list()) == []
    assert (_calls(faults, "put"), _calls(faults, "delete")) == (2, 2)


# Listings


def test_a_listing_that_breaks_off_goes_on_behind_the_last_object(memory: MemoryStore) -> None:
    paths = [f"folder/{number:03d}" for number in range(100)]
    for path in paths:
        memory.put(path, b"")
    script: Script = {("list", 1): "lost", ("list", 2): "lost", ("list", 3): "fail", ("list", 4): "lost"}
    store, faults = _retrying(memory, script)

    assert [info.path for info in store.list("folder")] == paths

    assert len(faults.calls) == 5


def test_a_listing_that_breaks_off_again_and_again_ends_as_long_as_it_moves(memory: MemoryStore) -> None:
    paths = [f"folder/{number:03d}" for number in range(200)]
    for path in paths:
        memory.put(path, b"")
    store, faults = _retrying(memory, lambda call: "lost" if call.nth < 8 else None, RetryPolicy(2, base_seconds=0))

    assert [info.path for info in store.list("folder", after="folder/009")] == paths[10:]

    assert len(faults.calls) == 8


def test_a_listing_that_moves_no_more_is_given_up(memory: MemoryStore) -> None:
    def script(call: Call) -> Fault | None:
        return "lost" if call.nth == 1 else "fail"

    store, faults = _retrying(memory, script)
    seen = []

    with pytest.raises(StorageUnavailable, match="4 times in a row"):  # noqa: PT012, what came before counts
        for info in store.list():
            seen.append(info.path)  # noqa: PERF401, a comprehension would lose them

    assert seen == ["object"]
    assert len(faults.calls) == 4


# Pauses


def test_pauses_double_up_to_the_cap_and_are_random(memory: MemoryStore, pauses: list[float]) -> None:
    policy = RetryPolicy(attempts=9, base_seconds=0.5, cap_seconds=10)
    store, _ = _retrying(memory, _always("get", "fail"), policy)
    limits = [0.5, 1, 2, 4, 8, 10, 10, 10]

    for _ in range(50):
        with pytest.raises(StorageUnavailable):
            store.get("object")

    assert len(pauses) == 50 * len(limits)
    for position, limit in enumerate(limits):
        some = pauses[position :: len(limits)]
        assert 0 <= min(some) < limit / 2 < max(some) <= limit  # fails by chance once in 2**49
        assert len(set(some)) > 25


def test_a_success_needs_no_pause(memory: MemoryStore, pauses: list[float]) -> None:
    store, _ = _retrying(memory, {}, RetryPolicy())

    store.get("object")
    list(store.list())

    assert pauses == []


def test_a_listing_that_moved_is_patient_from_the_start_again(memory: MemoryStore, pauses: list[float]) -> None:
    for number in range(64):
        memory.put(f"{number:02d}", b"")
    store, _ = _retrying(memory, lambda call: "lost" if call.nth < 6 else None, RetryPolicy(base_seconds=0.5))

    assert len(list(store.list())) == 65

    assert len(pauses) == 5
    assert max(pauses) <= 0.5


def test_very_many_failures_do_not_overflow() -> None:
    assert 0 <= RetryPolicy().pause(100_000) <= 10


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"base_seconds": -1}, {"cap_seconds": -1}], ids=str)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="at least one attempt"):
        RetryPolicy(**wrong)


def test_a_refusal_after_a_lost_answer_is_in_doubt_too() -> None:
    """The first attempt may have landed; that the second one is denied says nothing about it."""
    store = MemoryStore()

    class Denied(FaultStore):
        def put(
            self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
        ) -> Conflict | None:
            if self.calls:
                raise StorageError("denied")
            return super().put(path, data, if_version=if_version, if_absent=if_absent)

    with pytest.raises(StorageError, match="denied") as caught:
        RetryingStore(Denied(store, {("put", 1): "lost"}), RetryPolicy(base_seconds=0)).put("a", b"1", if_absent=True)

    assert caught.value.in_doubt
    assert store.read("a") == b"1"
