"""A store that fails when it is told to."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeVar

from objbuf_dagster.errors import ObjbufError, StorageUnavailable
from objbuf_dagster.store import Blob, Conflict, ObjectInfo, Payload, RetryPolicy, Store, TransientError

T = TypeVar("T")

AT_ONCE = RetryPolicy(attempts=3, base_seconds=0)
"""Retries without waiting."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a store: the `number`th of all, the `nth` of its method (both from 1).

    A listing's path is its prefix; a delete's is its first path.
    """

    number: int
    nth: int
    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait this long, then do it."""

    seconds: float


Fault = Literal["fail", "lost", "twice", "unavailable", "overdue"] | Delay
"""`fail`: TransientError, and nothing was done. `lost`: it is done, then TransientError: the answer was lost; a listing
breaks off after its first half. `twice`: it is done, and done again, as by a proxy that repeats; the answer is the
second's, so a conditional put meets itself. `unavailable`: StorageUnavailable, and nothing was done (nobody retries
that). `overdue`: TransientError, and it is done when `deliver` is called: it was on its way still when its caller gave
up; a listing just fails."""

Script = Callable[[Call], Fault | None] | Mapping[tuple[str, int], Fault]
"""Which calls fail: `{("put", 2): "lost"}` loses the answer of the second put; a callable decides for each call."""


class FaultStore(Store):
    """Passes calls on to `inner`, except as `script` says; it may be replaced at any time, `{}` heals the store.

    `calls` has all calls in order, the failed ones included; `overdue` has what is still to be done. Wrap it for
    retries without waiting: `RetryingStore(FaultStore(store, script), AT_ONCE)`.
    """

    def __init__(self, inner: Store, script: Script) -> None:
        self.inner = inner
        self.script = script
        self.calls: list[Call] = []
        self.overdue: list[Callable[[], object]] = []
        self._mutex = threading.Lock()
        self._by_method: Counter[str] = Counter()

    @property
    def has_own_clock(self) -> bool:
        return self.inner.has_own_clock

    def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
        return self._do("get", path, lambda: self.inner.get(path, max_bytes=max_bytes))

    def get_if_changed(self, path: str, version: str, *, max_bytes: int | None = None) -> Blob | None:
        return self._do("get", path, lambda: self.inner.get_if_changed(path, version, max_bytes=max_bytes))

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        return self._do("read", path, lambda: self.inner.read(path, max_bytes=max_bytes))

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        return self._do("put", path, lambda: self.inner.put(path, data, if_version=if_version, if_absent=if_absent))

    def head(self, path: str) -> ObjectInfo:
        return self._do("head", path, lambda: self.inner.head(path))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        lost = self._begin("list", prefix)
        if lost == "overdue":
            raise TransientError(f"list {prefix!r} took too long, as the test asked")
        if not isinstance(lost, TransientError):  # twice is as good as once
            yield from self.inner.list(prefix, after=after)
        else:
            half = (sum(1 for _ in self.inner.list(prefix, after=after)) + 1) // 2
            yield from islice(self.inner.list(prefix, after=after), half)
            raise lost

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        wanted = tuple(paths)
        return self._do("delete", wanted[0] if wanted else "", lambda: self.inner.delete(wanted))

    def deliver(self) -> None:
        """Do what is overdue, as it was asked for: a put keeps its condition. Nobody hears what comes of it."""
        with self._mutex:
            arrived, self.overdue = self.overdue, []
        for action in arrived:
            with contextlib.suppress(ObjbufError):
                action()

    def _do(self, method: str, path: str, action: Callable[[], T]) -> T:
        lost = self._begin(method, path)
        if lost == "overdue":
            self.overdue.append(action)
            raise TransientError(f"{method} {path!r} took too long, as the test asked")
        result = action()
        if lost == "twice":
            return action()
        if lost is not None:
            raise lost
        return result

    def _begin(self, method: str, path: str) -> TransientError | Literal["twice", "overdue"] | None:
        """Count the call and fail it now, or return what to raise once it is done, or how else it is to be done."""
        with self._mutex:
            self._by_method[method] += 1
            call = Call(len(self.calls) + 1, self._by_method[method], method, path)
            self.calls.append(call)
            script = self.script
            fault = script(call) if callable(script) else script.get((method, call.nth))
        if isinstance(fault, Delay):
            time.sleep(fault.seconds)
            return None
        if fault in ("twice", "overdue"):
            return fault
        if fault == "fail":
            raise TransientError(f"{method} {path!r} failed, as the test asked")
        if fault == "unavailable":
            raise StorageUnavailable(f"{method} {path!r} found nobody, as the test asked")
        return (
            TransientError(f"the answer of {method} {path!r} was lost, as the test asked") if fault == "lost" else None
        )
