"""A deadline, for calls into libraries that wait for ever.

Such a call cannot be ended, only left alone: it goes on in a thread of its own, which ends when it does or with the
process. Nobody hears what comes of it, so it must be one that may still happen later. The caller waits in Python, where
Ctrl-C is heard.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Overdue(Exception):
    """Inside `store/` and `lake/` only: there was no answer in time."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """What the call gives or raises. Raises Overdue if that takes longer; it may go on then."""
    answers: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            answers.put((None, error))

    threading.Thread(target=run, name="objbuf-within", daemon=True).start()
    try:
        found, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise Overdue(f"no answer in {seconds:g} s") from None
    if error is not None:
        raise error
    return found  # type: ignore[return-value]  # it came without an error
