"""What the client needs of an object store, and nothing more.

*Paths* are relative to the store's root, `/` between segments. A *version* is an opaque string that changes whenever
the object's bytes do. A *conditional* put happens only if the object still has the version given (or still is not
there); losing that race is an answer, `Conflict`, and not an error.

Every method may raise StorageUnavailable (retry) or StorageError (give up), and InvalidInput for a path that no store
should see. Stores are safe to use from many threads and can be pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from objbuf_dagster.errors import CorruptData, InvalidInput, ObjbufError, StorageUnavailable

_LONGEST_TIMEOUT = 86_400.0

Payload = bytes | Sequence[bytes | bytearray | memoryview]
"""An object's bytes, whole or in parts."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The put did not happen, because the object is not what the caller thought.

    With `in_doubt` an earlier attempt of the same call got no answer and may have happened: what changed the object may
    have been this very put.
    """

    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Blob:
    """An object's bytes and their version."""

    data: bytes
    version: str


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object without its bytes.

    modified_ms: when it was written, by the store's own clock; None if the store does not say.
    """

    path: str
    size: int
    modified_ms: int | None = field(default=None, compare=False)


class TransientError(StorageUnavailable):
    """Inside `store/` only: one attempt failed in a way that may pass. `RetryingStore` makes the best of it: retry."""


class Store(ABC):
    """See the module's text."""

    @property
    def has_own_clock(self) -> bool:
        """Whether its times are told by a clock that none of its users' machines can set."""
        return True

    @abstractmethod
    def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
        """The whole object. Raises NotFound, and CorruptData before reading one larger than `max_bytes`."""

    def get_if_changed(self, path: str, version: str, *, max_bytes: int | None = None) -> Blob | None:
        """The whole object, or None if it still has this version: then a bucket does not send its bytes.

        One request. A directory's file is read until its times can tell it from any other bytes: seconds after a change
        they cannot, and a change that is missed would not land. An empty version, of a store that gives none, is never
        the same. Raises as `get` does.
        """
        blob = self.get(path, max_bytes=max_bytes)
        return None if version and blob.version == version else blob

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Its bytes alone, for objects that never change: some stores pay for the version."""
        return self.get(path, max_bytes=max_bytes).data

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """A part of its bytes; fewer at its end. Stores that are not asked for parts read all of it."""
        return self.read(path)[start : start + size]

    @abstractmethod
    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        """Write the whole object: None says that it is durable, Conflict that nothing was written.

        Readers see all of the old bytes or all of the new. Without a condition the put may be repeated at will; with
        one, StorageUnavailable.in_doubt says that it may have happened all the same.
        """

    @abstractmethod
    def head(self, path: str) -> ObjectInfo:
        """Raises NotFound."""

    @abstractmethod
    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        """All objects below the folder `prefix`, at any depth, by rising path; with `after`, those behind it only."""

    def tidy(self, prefix: str) -> int:  # noqa: ARG002  for those that have something to tidy
        """Delete what killed writers left below the folder `prefix` that is no object, and return how many."""
        return 0

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        """Delete these objects and return what failed, by path. What is gone already did not fail."""


def check_path(path: str) -> str:
    """Refuse what could leave the root or mean different things to different stores."""
    if not path or "\\" in path or any(character < " " or character == "\x7f" for character in path):
        raise InvalidInput(f"a path must not be empty or have backslashes or control characters: {path!r}")
    if any(segment in ("", ".", "..") for segment in path.split("/")):
        raise InvalidInput(f"a path must stay inside the store and have no empty, '.' or '..' part: {path!r}")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"a path must be valid Unicode: {path!r}") from None
    return path


def check_condition(if_version: str | None, if_absent: bool) -> None:
    if if_version is not None and if_absent:
        raise InvalidInput("a put can ask for a version or for absence, not for both")
    if if_version == "":  # S3 takes it for no condition at all
        raise InvalidInput("an empty version compares with nothing: a store that gives none cannot compare-and-swap")


def check_timeout(seconds: float) -> None:
    if not 0 < seconds < _LONGEST_TIMEOUT:
        raise InvalidInput(f"timeout_seconds must be above 0 and below {_LONGEST_TIMEOUT:g}: {seconds}")


def check_size(path: str, size: int, max_bytes: int | None) -> None:
    if max_bytes is not None and size > max_bytes:
        raise CorruptData(f"object {path!r}", f"its {size} bytes are more than the {max_bytes} it may have")


def folder(prefix: str) -> str:
    """`prefix` as the beginning of paths below it; the root is the empty one."""
    return f"{check_path(prefix)}/" if prefix else ""
