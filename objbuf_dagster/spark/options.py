"""The options of the data source: text that a person wrote, checked here, with an answer that says what to do."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import dataclass, field

from objbuf_dagster.buffer import DEFAULT_DATA_PREFIX, DEFAULT_MANIFEST_PATH, BufferPlace
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.protocol import DEFAULT_MAX_BYTES
from objbuf_dagster.protocol.model import MAX_U64
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.store import open_store
from objbuf_dagster.store.cloud import Credentials
from objbuf_dagster.store.showable import is_showable

DEFAULT_PARTITION_BYTES = 64 << 20

_STORAGE = "storage."
_OPTIONS = (
    "buffer",
    "manifest_path",
    "data_prefix",
    "max_bytes",
    "range",
    "from",
    "to",
    "since_frontier",
    "partition_bytes",
    "min_partitions",
)
_SELECT = "range=<key>[,<key>...], from=<sequence> and/or to=<sequence>, or since_frontier=true"


@dataclass(frozen=True, slots=True)
class Session:
    """What `register` was told: settings that must not be options, and defaults that only the session knows."""

    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: Credentials | None = field(default=None, repr=False)
    min_partitions: int = 1


@dataclass(frozen=True, slots=True)
class Ranges:
    """These planned ranges."""

    wanted: tuple[SequenceRange, ...]


@dataclass(frozen=True, slots=True)
class FromTo:
    """These sequences, both included; None is as far as there is something."""

    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class SinceFrontier:
    """All that is not acked."""


Selection = Ranges | FromTo | SinceFrontier


@dataclass(frozen=True, slots=True)
class Options:
    """What a read was asked for. Nothing was read yet.

    partition_bytes: about how many stored bytes a partition has.
    min_partitions: how many there are at the least, where the data is worth it.
    """

    place: BufferPlace
    selection: Selection
    partition_bytes: int
    min_partitions: int


def parse(options: Mapping[str, str], session: Session) -> Options:
    """Raises InvalidInput, in one line which never has the value of a store's setting in it."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    storage = {name.removeprefix(_STORAGE): given.pop(name) for name in list(given) if name.startswith(_STORAGE)}
    if unknown := sorted(set(given) - set(_OPTIONS)):
        raise InvalidInput(f"unknown option {unknown[0]!r}: there are {', '.join(_OPTIONS)} and storage.<setting>")
    if not given.get("buffer"):
        raise InvalidInput("the option 'buffer' is missing: give the buffer's URL, as s3://bucket/prefix")
    place = BufferPlace(
        open_store(
            _check_url(given["buffer"]),
            options=_storage(given["buffer"], storage, session),
            credentials=session.credentials if _is_bucket(given["buffer"]) else None,
        ),
        given.get("manifest_path", DEFAULT_MANIFEST_PATH),
        given.get("data_prefix", DEFAULT_DATA_PREFIX),
        _number(given, "max_bytes", 1, DEFAULT_MAX_BYTES),
    )
    return Options(
        place,
        _selection(given),
        _number(given, "partition_bytes", 1, DEFAULT_PARTITION_BYTES),
        _number(given, "min_partitions", 1, max(1, session.min_partitions)),
    )


def _selection(given: Mapping[str, str]) -> Selection:
    ways: list[Selection] = []
    if "range" in given:
        keys = [key.strip() for key in given["range"].split(",")]
        ways.append(Ranges(tuple(sorted({SequenceRange.from_key(key) for key in keys}))))
    if "from" in given or "to" in given:
        bounds = [_number(given, name, 0, 0) if name in given else None for name in ("from", "to")]
        first, last = bounds
        if first is not None and last is not None and first > last:
            raise InvalidInput(f"from={first} is behind to={last}: both are included, and from is the smaller one")
        ways.append(FromTo(first, last))
    if _flag(given, "since_frontier"):
        ways.append(SinceFrontier())
    if len(ways) != 1:
        problem = "what to read is not said" if not ways else "what to read is said in several ways"
        raise InvalidInput(f"{problem}: give one of {_SELECT}")
    return ways[0]


def _number(given: Mapping[str, str], name: str, least: int, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else -1
    if not least <= number <= MAX_U64:
        raise InvalidInput(f"the option {name!r} is a whole number of at least {least}, not {text[:80]!r}")
    return number


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidInput(f"the option {name!r} is true or false, not {text[:80]!r}")
    return text == "true"


def _check_url(url: str) -> str:
    if url.startswith("memory:"):
        raise InvalidInput("a memory:// buffer is in one process, and Spark's workers are others: use a file:// one")
    if "://" not in url and not os.path.isabs(url):
        raise InvalidInput(f"the buffer {url[:200]!r} is no URL and no absolute path: workers run in other directories")
    return url


def _is_bucket(url: str) -> bool:
    return "://" in url and not url.startswith("file:")


def _storage(url: str, options: Mapping[str, str], session: Session) -> dict[str, str]:
    for name, value in options.items():
        if not is_showable(name, value):
            raise InvalidInput(
                f"the option '{_STORAGE}{name}' may be a credential, and Spark shows options in plans and logs: give "
                "it to register(spark, storage={...}), or set it in the environment of driver and executors"
            )
    return {**(session.storage if _is_bucket(url) else {}), **options}
