"""deltalake's errors as ours.

It tells a passing failure, a refusal and a lost race apart by class only in part; the rest is in the text, whose shape
a test holds on to. The text names objects and endpoints, and may hold what a server said, but no header; signed parts
of URLs are cut.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from objbuf_dagster.errors import ObjbufError, StorageError, StorageUnavailable
from objbuf_dagster.store.cloud import without_secrets
from objbuf_dagster.store.deadline import Overdue
from objbuf_dagster.store.namenode import Refusal, one_line, refusal_in

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STATUS = re.compile(r"status code\W+(\d{3})\b")
_TRANSIENT = {"408", "409", "412", "425", "429"}  # S3 answers 409 when two conditional puts meet
_METADATA_SERVICE = re.compile(r"/latest/(api/token|meta-data)|metadata\.google\.internal|/metadata/identity")
_DENIED = re.compile(r"lacked (the necessary privileges|valid authentication)|\(os error (1|13|30)\)|code: (1|13|30),")
_FILE = re.compile(r"\(os error 20\)|code: 20,")
_FULL = re.compile(r"\(os error (28|122)\)|code: (28|122),")
_HDFS = "HdfsObjectStore"
_LONGEST = 500

_HINTS = {
    "bucket": "the bucket does not exist, create it or correct the URL",
    "credentials": "no credentials were found, give them as options or in the environment",
    "denied": "access denied, check the credentials or this user's rights",
    "file": "a part of its path is a file, give it another place",
    "full": "the disk is full, free some space",
    "passing": "storage failed, check that it is up and reachable, then try again",
    "protocol": "the table asks for more than this deltalake can do, upgrade it or give the landing a table of its own",
    "unknown": "deltalake cannot use the table, check that nobody but Delta writers changed its _delta_log",
}


class NoTable(ObjbufError):
    """Inside `lake/` only: there is no table yet; make it: retry."""


class LostRace(ObjbufError):
    """Inside `lake/` only: another commit came first, and nothing was written; load the table again: retry."""


@contextlib.contextmanager
def translated(where: str, *, writing: bool = False) -> Iterator[None]:
    """Raises NoTable, LostRace, StorageUnavailable or StorageError for whatever deltalake raises inside.

    With `writing`, what got no answer may have happened: the error is `in_doubt`.
    """
    from deltalake import exceptions as theirs

    try:
        yield
    except Overdue as error:
        raise StorageUnavailable(f"{_HINTS['passing']} ({where}): {error}", in_doubt=writing) from None
    except theirs.TableNotFoundError as error:
        if writing or _DENIED.search(str(error)) or _refusal(error):
            raise _explained(error, where, in_doubt=False) from None
        raise NoTable(f"there is no table at {where} yet") from None
    except theirs.CommitFailedError:
        raise LostRace(f"another commit to {where} came first") from None
    except (theirs.DeltaError, OSError, ValueError, TypeError) as error:
        raise _explained(error, where, in_doubt=writing) from None
    except (ObjbufError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001  a panic in Rust is no Exception, and who knows what it did before
        raise StorageError(
            f"deltalake failed at {where}, check the settings: {_line(error)}", in_doubt=writing
        ) from None


def _explained(error: Exception, where: str, *, in_doubt: bool) -> StorageError:
    from deltalake.exceptions import DeltaProtocolError

    refusal = _refusal(error)
    if refusal is not None and not refusal.passing:
        return StorageError(f"{refusal.hint} ({where}): {_fit(refusal.line)}")
    line = _fit(refusal.line) if refusal else _line(error)
    kind = "protocol" if isinstance(error, DeltaProtocolError) else _kind(str(error))
    message = f"{_HINTS[kind]} ({where}): {line}"
    return StorageUnavailable(message, in_doubt=in_doubt) if kind == "passing" else StorageError(message)


def _refusal(error: Exception) -> Refusal | None:
    """What a NameNode, or the client, refused."""
    text = _COLOURS.sub("", str(error)).replace("↳", ":")
    return refusal_in(text) if _HDFS in text else None


def _kind(text: str) -> str:
    text = _COLOURS.sub("", text)
    status = _STATUS.search(text)
    code = status[1] if status else ""
    listing_without_bucket = code == "404" and "list request" in text
    if "NoSuchBucket" in text or listing_without_bucket:
        return "bucket"
    if _METADATA_SERVICE.search(text):
        return "credentials"
    if _DENIED.search(text) or code in ("401", "403"):
        return "denied"
    for kind, said in (("file", _FILE), ("full", _FULL)):
        if said.search(text):
            return kind
    unanswered = "HTTP error" in text or _HDFS in text  # what a NameNode refused for good is told before
    if code in _TRANSIENT or code.startswith("5") or (not code and unanswered):
        return "passing"
    return "unknown"


def _line(error: BaseException) -> str:
    """The text on one line, without colours, fit for a message."""
    return _fit(one_line(_COLOURS.sub("", str(error)).replace("↳", ":")))


def _fit(line: str) -> str:
    """Without what may be secret in its URLs, and printable: it may repeat what it found in a damaged log."""
    line = without_secrets(line)
    return line if line.isprintable() else ascii(line)[1:-1][:_LONGEST]
