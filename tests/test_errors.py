"""Errors: one tree, each tells the caller what to do, and none loses anything on its way between processes."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from objbuf_dagster import errors
from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.lake import RangeCheck

_EXAMPLES: list[ObjbufError] = [
    errors.ObjbufError("something"),
    errors.InvalidInput("not so"),
    errors.CorruptData("batch", "bytes are left over", offset=17),
    errors.CorruptData("manifest", "it is cut short"),
    errors.CorruptData("manifest", "it is cut short", path="ingest/manifest"),
    errors.UnsupportedVersion("range object", "two", 1),
    errors.UnsupportedCompression(255),
    errors.NotFound("ingest/manifest", "produce something first"),
    errors.NotFound("ingest/manifest"),
    errors.StorageError("access denied"),
    errors.StorageUnavailable("503, five times", in_doubt=True),
    errors.StorageUnavailable("no answer"),
    errors.Fenced(3, 4),
    errors.Fenced(3, 4, in_doubt=True),
    errors.OutOfOrderAck("7 was expected", expected=7, got=9),
    errors.TimedOut("2 s are over"),
    errors.JobFailed("Spark ended the job: an executor was killed; nothing was committed: land it again"),
    errors.SequenceGap(5, 8),
    errors.BufferReplaced("next_sequence went from 900 to 2"),
    errors.RangeNotPlanned("00000000000000000005", "run the planner"),
    errors.RangesOverlap("5-9", "8-12", unused="8-12", path="ranges/8", other_path="ranges/5"),
    errors.RangeExpired("5-8", since_ms=1_700_000_000_000, since="2023-11-14", retention_seconds=3600.0),
    errors.CheckFailed(
        "5-8", (RangeCheck("a", True, "all is well", {}), RangeCheck("b", False, "row 7 is lost", {"rows": 6}))
    ),
]
_CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, BaseException) and kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", _CLASSES)
def test_every_error_has_an_example_here(kind: type[BaseException]) -> None:
    assert kind in {type(example) for example in _EXAMPLES}


@pytest.mark.parametrize("kind", _CLASSES)
def test_every_error_is_an_objbuf_error(kind: type[BaseException]) -> None:
    assert issubclass(kind, ObjbufError)


@pytest.mark.parametrize("kind", [kind for kind in _CLASSES if kind is not ObjbufError])
def test_every_error_says_what_to_do(kind: type[BaseException]) -> None:
    first_paragraph = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]

    assert first_paragraph.endswith((" retry.", " restart.", " give up."))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", _EXAMPLES, ids=lambda error: type(error).__name__)
def test_type_message_and_attributes_survive_pickling(error: ObjbufError, protocol: int) -> None:
    revived = pickle.loads(pickle.dumps(error, protocol))

    assert type(revived) is type(error)
    assert str(revived) == str(error)
    assert revived.args == error.args
    assert vars(revived) == vars(error)


@pytest.mark.parametrize("error", _EXAMPLES, ids=lambda error: type(error).__name__)
def test_a_copied_error_is_the_same_error(error: ObjbufError) -> None:
    for copied in (copy.copy(error), copy.deepcopy(error)):
        assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))


def test_an_error_pickled_inside_another_value_survives() -> None:
    error = errors.StorageUnavailable("503", in_doubt=True)

    revived = pickle.loads(pickle.dumps({"task 3": [error]}))["task 3"][0]

    assert isinstance(revived, errors.StorageUnavailable)
    assert revived.in_doubt


def test_time_that_is_up_is_a_timeout_to_the_standard_library_too() -> None:
    assert isinstance(errors.TimedOut("2 s"), TimeoutError)


def test_unavailable_storage_is_caught_as_a_storage_error() -> None:
    assert isinstance(errors.StorageUnavailable("503"), errors.StorageError)
