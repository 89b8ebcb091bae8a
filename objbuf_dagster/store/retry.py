"""Transient storage errors, tried again. It is a store around a store, so that every backend, and every test that makes
one fail, gets the same behaviour."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from objbuf_dagster.errors import InvalidInput, ObjbufError, StorageError, StorageUnavailable
from objbuf_dagster.store.base import Blob, Conflict, ObjectInfo, Payload, Store, TransientError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how patiently, a store call is repeated.

    attempts: calls in all, the first included.
    base_seconds: the longest first pause; it doubles with each attempt. Pauses are random from 0 up to that, so that
        clients which failed together do not come back together.
    cap_seconds: the longest pause.
    """

    attempts: int = 8
    base_seconds: float = 0.1
    cap_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base_seconds < 0 or self.cap_seconds < 0:
            raise InvalidInput(f"a retry policy needs at least one attempt and no negative time: {self}")

    def pause(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row."""
        return random.uniform(0, min(self.cap_seconds, self.base_seconds * 2.0 ** min(failures - 1, 30)))


class RetryingStore(Store):
    """Repeats what failed with TransientError; after the last attempt that becomes StorageUnavailable."""

    def __init__(self, inner: Store, policy: RetryPolicy | None = None) -> None:
        self.inner = inner
        self.policy = policy or RetryPolicy()

    def __repr__(self) -> str:
        return f"RetryingStore({self.inner!r})"

    @property
    def has_own_clock(self) -> bool:
        return self.inner.has_own_clock

    def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
        return self._retry(lambda: self.inner.get(path, max_bytes=max_bytes))

    def get_if_changed(self, path: str, version: str, *, max_bytes: int | None = None) -> Blob | None:
        return self._retry(lambda: self.inner.get_if_changed(path, version, max_bytes=max_bytes))

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        return self._retry(lambda: self.inner.read(path, max_bytes=max_bytes))

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self._retry(lambda: self.inner.read_range(path, start, size))

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        conditional = if_absent or if_version is not None
        attempts = 0

        def attempt() -> Conflict | None:
            nonlocal attempts
            attempts += 1
            return self.inner.put(path, data, if_version=if_version, if_absent=if_absent)

        try:
            conflict = self._retry(attempt, in_doubt=conditional)
        except StorageError as error:
            error.in_doubt = error.in_doubt or (conditional and attempts > 1)
            raise
        return Conflict(in_doubt=conflict.in_doubt or attempts > 1) if conflict else None

    def head(self, path: str) -> ObjectInfo:
        return self._retry(lambda: self.inner.head(path))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        """A listing that breaks off goes on behind the last object it gave."""
        failures = 0
        while True:
            try:
                for info in self.inner.list(prefix, after=after):
                    failures = 0
                    after = info.path
                    yield info
                return
            except TransientError as error:
                failures += 1
                self._pause_or_raise(failures, error, in_doubt=False)

    def tidy(self, prefix: str) -> int:
        return self._retry(lambda: self.inner.tidy(prefix))

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        left = list(paths)
        return self._retry(lambda: self.inner.delete(left))

    def _retry(self, call: Callable[[], T], *, in_doubt: bool = False) -> T:
        failures = 0
        while True:
            try:
                return call()
            except TransientError as error:
                failures += 1
                self._pause_or_raise(failures, error, in_doubt=in_doubt)

    def _pause_or_raise(self, failures: int, error: TransientError, *, in_doubt: bool) -> None:
        if failures >= self.policy.attempts:
            raise StorageUnavailable(
                f"storage failed {failures} times in a row, check that it is up and reachable, then try again: {error}",
                in_doubt=in_doubt,
            ) from error
        time.sleep(self.policy.pause(failures))
