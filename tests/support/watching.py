"""Hears at once of what appears in a directory: for some moments, the next look comes too late."""

from __future__ import annotations

import ctypes
import os
import select
from pathlib import Path

_CREATED = 0x100  # IN_CREATE


class Created:
    """Tells whether something was created in a directory since it was entered. Linux only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Created:
        libc = ctypes.CDLL(None, use_errno=True)
        self._file = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self._file < 0 or libc.inotify_add_watch(self._file, os.fsencode(self._folder), _CREATED) < 0:
            raise OSError(ctypes.get_errno(), f"{self._folder} cannot be watched")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def wait(self, seconds: float) -> bool:
        """Whether something was, now or within so many seconds."""
        return bool(select.select([self._file], [], [], seconds)[0])
