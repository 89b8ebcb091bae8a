"""What deltalake leaves to the kernel on a local disk.

It links a commit's file into place without syncing it. The batches of a range may be deleted once its landing is
acked, so a landing that says it is done must be there after a power cut, and so must the log that leads to it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from objbuf_dagster.errors import StorageError

LOG = "_delta_log"
_VERSIONED = re.compile(r"(\d{20})\.")
_STAGED = re.compile(r"#\d+$")
_ABANDONED_AFTER = 24 * 3600.0  # seconds until a staged file can be nobody's commit in progress


def sync_before_commit(root: Path) -> None:
    """Data files are synced by the store that wrote them; a folder that another task made may not be, yet."""
    with _translated(root):
        _sync(root.parent)
        _sync(root)


def sync_log(root: Path, since: int) -> None:
    """Sync the log's files from version `since` on, checkpoints included, and the folders that name them.

    Others' commits too: a log with a hole is no log, and whoever made the commit below ours may have died before
    syncing it. What is older was synced by the commits after it.
    """
    log = root / LOG
    with _translated(root):
        for name in os.listdir(log):
            version = _VERSIONED.match(name)
            if name == "_last_checkpoint" or (version and int(version[1]) >= since and not _STAGED.search(name)):
                with contextlib.suppress(FileNotFoundError):  # cleaned up meanwhile
                    _sync(log / name)
        _sync(log)
        _sync(root)


def tidy_log(root: Path) -> int:
    """Delete the staged files of commits that were killed a day or more ago, and return how many."""
    gone = 0
    with _translated(root):
        for name in os.listdir(root / LOG):
            file = root / LOG / name
            with contextlib.suppress(FileNotFoundError):
                if _STAGED.search(name) and time.time() - file.stat().st_mtime > _ABANDONED_AFTER:
                    file.unlink()
                    gone += 1
    return gone


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translated(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot sync the table at {root}, check the disk and this user's rights, then land the range again: "
            f"{error.strerror}",
            in_doubt=True,
        ) from error
