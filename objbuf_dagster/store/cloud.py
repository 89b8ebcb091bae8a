"""Buckets: S3 and what speaks its protocol, Google Cloud Storage, Azure, through obstore."""

from __future__ import annotations

import contextlib
import html
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

from objbuf_dagster.errors import InvalidInput, NotFound, ObjbufError, StorageError
from objbuf_dagster.store.base import (
    Blob,
    Conflict,
    ObjectInfo,
    Payload,
    Store,
    TransientError,
    check_condition,
    check_path,
    check_size,
    check_timeout,
    folder,
)
from objbuf_dagster.store.showable import safe_url

_STATUS = re.compile(r"status code: (\d{3})")
_TRANSIENT = {"408", "425", "429"}
_REQUEST_TIMEOUT = "<Code>RequestTimeout</Code>"
"""S3's own, of a connection that sent nothing for a while: a 400, which is for good otherwise."""

_DELETE_AT_ONCE = 1000
_CLIENT_SETTINGS = re.compile(
    r"((aws|google|azure)_)?(allow_|connect_timeout|timeout|proxy|default_content|default_header|http[12]_|pool_|"
    r"randomize_|user_agent)",
    re.IGNORECASE,
)
"""Settings of obstore's HTTP client. Given among the others they make it panic, so they are refused."""

_PART_BYTES = 32 << 20
_TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
_TOO_SLOW = "no answer, or not all of it, in time: set timeout_seconds (--timeout) higher if the connection is slow"
_ENDPOINT = ("endpoint", "endpoint_url")
_METADATA_SERVICE = re.compile(r"/latest/(api/token|meta-data)|metadata\.google\.internal|/metadata/identity")
_NO_OBJECT = re.compile(
    r"performing HEAD \S+ in \S+ - [^\n]*status code: 404[^:\n]*:\s*(?:\Z|\n)"  # its answer has no body
    r"|<Code>(?:NoSuchKey|BlobNotFound)</Code>"
    r"|Bulk delete request failed for key [^\n]*blob does not exist\. \(code: 404\)"
)
_LONGEST_TEXT = 10_000
_LONGEST_PAGE = 100
_ANSWER = re.compile(r"<(?:\?xml|!doctype|html|head|body|title|h\d|p|div|pre|table|error)\b", re.IGNORECASE)
_ROOT = re.compile(r"<([a-z][\w:.-]*)", re.IGNORECASE)
_PAGE = re.compile(r"html|head|body|title|h\d|p|div|pre|table", re.IGNORECASE)
_SAID = (re.compile(r"<Code>([^<]*)"), re.compile(r"<Message>([^<]*)"))
_NO_TEXT = re.compile(r"<(script|style)\b.*?(?:</\1>|\Z)|<[^>]*(?:>|\Z)", re.IGNORECASE | re.DOTALL)

_HEADER = r"(?:(?:security|session)[-_]?token|authorization)"
_SCHEME = r"(?:bearer|basic|digest|negotiate|ntlm|aws4?-[\w-]+|sharedkey(?:lite)?|sharedaccesssignature)"
_LONG = r"[\w+/=.~:-]{16,}"
_NAME = r"(?:(?<![a-z])sig|signature|token|secret|password|credential|(?:access|account|secret)[-_]?key)"
_SECRETS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        rf"(<[\w:-]*{_HEADER}\b[^>]*>).*?(?=</|\Z)",
        rf"({_HEADER}\\*['\"]?\s*[:=,]\s*[\[(]?\s*(?P<quote>\\*['\"])).*?(?=(?<!\\)(?P=quote)|\Z)",
        rf"({_HEADER}\\*['\"]?\s*[:=]\s*)(?!\s|\\*['\"])[^\n]+",
        rf"({_HEADER}[^\w<]{{1,5}})(?:{_SCHEME}\s[^\n]+|(?:token\s+)?{_LONG})",
        rf"(\b{_SCHEME}\s+){_LONG}",
        rf"({_NAME}=)(?:\\*\"[^\"]*|\\*'[^']*|[^&\s'\"<>,;]+)",
    )
)
"""What goes before a secret, and the secret: an element, a quoted value, and otherwise all that is left of the line,
since nobody can say where the value of such a header ends."""

_CONDITIONAL_PUT = "conditional_put"
_NO_CREDENTIALS = "no credentials were found, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or your cloud's own)"
_BUCKET_IS_MISSING = re.compile("NoSuchBucket|ContainerNotFound")
_NO_BUCKET = "the bucket does not exist, create it or correct the URL"
_NOT_THE_OBJECT = "a 404 that does not say that the object is missing, check the endpoint and the credentials"
_DENIED = "access denied, check the credentials and their rights"

Credentials = Callable[[], Any]
"""An obstore credential provider; it must be picklable where the store is to be."""


class CloudStore(Store):
    """Objects below `url` (`s3://bucket/prefix`, `gs://...`, `az://...`).

    `options` are obstore's settings by name (`region`, `endpoint`, `access_key_id`, ...); what is not given comes from
    the environment the way each cloud's own tools read it. A request, with all its bytes, may take `timeout_seconds`;
    objects larger than `part_bytes` are read by one for each such part, and written in parts unless that has a
    condition; others are one request. Requests are not repeated in here, because only the caller knows whether a
    conditional put may be: `RetryingStore` does.
    """

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        timeout_seconds: float = 60.0,
        part_bytes: int = _PART_BYTES,
    ) -> None:
        self.url = url
        self._settings = (dict(options or {}), credentials, timeout_seconds)
        self._part_bytes = part_bytes
        self._store = _connect(url, *self._settings)
        self._version: Literal["e_tag", "version"] = "version" if _is_google(self._store) else "e_tag"

    @property
    def place(self) -> tuple[str, str]:
        """Its bucket, and where that is if it was told."""
        options = self._settings[0]
        endpoints = [value for name, value in options.items() if name.lower().removeprefix("aws_") in _ENDPOINT]
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}", "".join(endpoints)

    def __repr__(self) -> str:
        return f"CloudStore({safe_url(self.url)!r})"  # nor the options: they may be secrets

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.url, *self._settings, self._part_bytes)

    def get(self, path: str, *, max_bytes: int | None = None) -> Blob:
        found = self.get_if_changed(path, "", max_bytes=max_bytes)
        if found is None:
            raise StorageError(f"storage says that {path!r} has not changed, which nobody asked for")
        return found

    def get_if_changed(self, path: str, version: str, *, max_bytes: int | None = None) -> Blob | None:
        """A server that does not know the condition, and Google, whose versions it is not about, send the bytes.

        They come behind the version, and are not waited for if that is the same.
        """
        import obstore
        from obstore.exceptions import NotModifiedError

        options: Any = {"if_none_match": version} if version and self._version == "e_tag" else None
        with _translated(path):
            try:
                found = obstore.get(self._store, check_path(path), options=options)
            except NotModifiedError:
                return None
            meta: Any = found.meta
            if version and meta[self._version] == version:
                return None
            check_size(path, meta["size"], max_bytes)
            if meta["size"] <= self._part_bytes:
                data = found.bytes().to_bytes()
            else:
                del found  # the last that holds it: its connection is closed, and its bytes are not waited for
                data = self._in_parts(path, meta["size"], meta["e_tag"])
            return Blob(data, meta[self._version] or "")

    def _in_parts(self, path: str, size: int, tag: str | None) -> bytes:
        """One request for a large object would need a fast connection, or a timeout that nobody awaits."""
        import obstore

        # Joined parts would be there twice. This has room for all from the start, and what it gives is no copy.
        whole = io.BytesIO()
        whole.seek(size - 1)
        whole.write(b"\0")
        whole.seek(0)
        for start in range(0, size, self._part_bytes):
            options: Any = {"range": (start, min(start + self._part_bytes, size)), **({"if_match": tag} if tag else {})}
            whole.write(obstore.get(self._store, path, options=options).bytes())
        if whole.tell() != size:
            raise TransientError(f"the parts of {path!r} have {whole.tell()} bytes in all, and not {size}")
        return whole.getvalue()

    def put(
        self, path: str, data: Payload, *, if_version: str | None = None, if_absent: bool = False
    ) -> Conflict | None:
        import obstore

        check_condition(if_version, if_absent)
        mode: Any = "create" if if_absent else "overwrite" if if_version is None else {self._version: if_version}
        conditional = if_absent or if_version is not None
        body: Any = data if isinstance(data, bytes) else list(data)
        size = len(data) if isinstance(data, bytes) else sum(map(len, body))
        in_parts = None if not conditional and size > self._part_bytes else False
        try:
            with _translated(path):
                obstore.put(self._store, check_path(path), body, mode=mode, use_multipart=in_parts)
        except _Lost:
            if not conditional:
                raise
            return Conflict()
        except NotFound:
            if if_version is None:
                raise StorageError(f"storage refused to write {path!r}: it says that there is no such object") from None
            return Conflict()
        return None

    def head(self, path: str) -> ObjectInfo:
        import obstore

        with _translated(path):
            return _info({**obstore.head(self._store, check_path(path)), "path": path})

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        import obstore

        below = folder(prefix).rstrip("/") or None
        with _translated(prefix):
            for page in obstore.list(self._store, below, offset=after):
                yield from sorted(map(_info, page), key=lambda info: info.path)

    def delete(self, paths: Iterable[str]) -> dict[str, ObjbufError]:
        """In bulk; a bulk that fails for good is repeated one by one, so that one object does not stop the rest."""
        wanted = [check_path(path) for path in paths]
        failed: dict[str, ObjbufError] = {}
        for start in range(0, len(wanted), _DELETE_AT_ONCE):
            some = wanted[start : start + _DELETE_AT_ONCE]
            try:
                self._delete(some)
            except TransientError:
                raise
            except ObjbufError:
                for path in some:
                    try:
                        self._delete([path])
                    except NotFound:
                        continue
                    except TransientError:
                        raise
                    except ObjbufError as error:
                        failed[path] = error
        return failed

    def _delete(self, paths: Sequence[str]) -> None:
        import obstore

        with _translated(paths[0]):
            obstore.delete(self._store, list(paths))


def _info(meta: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))


class _Lost(TransientError):
    """A request met another state than it asked for, or (without a condition) another request at work on the object."""


def _connect(url: str, options: dict[str, str], credentials: Credentials | None, timeout_seconds: float) -> Any:
    import obstore.exceptions
    import obstore.store

    for name, value in options.items():
        if _CLIENT_SETTINGS.match(name):
            raise InvalidInput(f"{name} is no setting of a store: use timeout_seconds, or leave it out")
        if name.lower().removeprefix("aws_").startswith("endpoint"):
            _check_endpoint(name, value)
    check_timeout(timeout_seconds)
    if url.startswith(("s3://", "s3a://")):  # whatever the environment says: everything here rests on it
        given = {
            name: value for name, value in options.items() if name.lower().removeprefix("aws_") != _CONDITIONAL_PUT
        }
        options = {**given, _CONDITIONAL_PUT: "etag"}
    settings: dict[str, Any] = {
        "config": options or None,
        "client_options": {"allow_http": True, "timeout": timedelta(seconds=timeout_seconds)},
        "retry_config": {"max_retries": 0},
    }
    if credentials is not None:
        settings["credential_provider"] = credentials
    try:
        return obstore.store.from_url(url, **settings)
    except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
        raise InvalidInput(f"cannot use {safe_url(url)} as a store: {_first_line(error)}") from None


def _check_endpoint(name: str, endpoint: str) -> None:
    """A URL that obstore cannot use makes it panic at the first request."""
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidInput(f"{name} must be a URL, as http://127.0.0.1:9000")


def _is_google(store: Any) -> bool:
    """Google compares generations, the others ETags; obstore asks for the right one and takes no other."""
    import obstore.store

    return isinstance(store, obstore.store.GCSStore)


def _reopen(
    url: str, options: dict[str, str], credentials: Credentials | None, timeout_seconds: float, part_bytes: int
) -> CloudStore:
    return CloudStore(
        url, options=options, credentials=credentials, timeout_seconds=timeout_seconds, part_bytes=part_bytes
    )


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """obstore's errors as ours. It tells a passing failure only by its text, whose shape a test holds on to."""
    import obstore.exceptions as theirs

    try:
        yield
    except FileNotFoundError as error:
        raise (NotFound(path) if _says_no_object(error) else _not_the_object(error)) from None
    except (theirs.AlreadyExistsError, theirs.PreconditionError) as error:
        status = _STATUS.search(str(error))
        if status and status[1] == "404" and not _says_no_object(error):
            raise _not_the_object(error) from None
        raise _Lost(f"{path!r} met another request to the same object") from None
    except (theirs.PermissionDeniedError, theirs.UnauthenticatedError) as error:
        raise StorageError(f"{_DENIED}: {_first_line(error)}") from None
    except theirs.BaseError as error:
        line = _first_line(error)
        if _METADATA_SERVICE.search(line):
            raise StorageError(f"{_NO_CREDENTIALS}: {line}") from None
        status = _STATUS.search(str(error))  # a long path may have pushed it out of the line
        if (status is None and "HTTP error" in str(error)) or (
            status and (status[1] in _TRANSIENT or status[1].startswith("5") or _REQUEST_TIMEOUT in str(error))
        ):
            slow = status is None and _TIMED_OUT.search(str(error))
            raise TransientError(f"{_TOO_SLOW}: {line}" if slow else line) from None
        denied = status is not None and status[1] in ("401", "403")
        missing = _BUCKET_IS_MISSING.search(str(error))
        reason = _NO_BUCKET if missing else _DENIED if denied else "storage refused"
        raise StorageError(f"{reason}: {line}") from None
    except (ObjbufError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001  a panic in Rust is no Exception, and who knows what it did before
        said = f"{type(error).__name__}: {_first_line(error)}"
        raise StorageError(f"the storage library failed, check the settings: {said}", in_doubt=True) from None


def _says_no_object(error: BaseException) -> bool:
    return _NO_OBJECT.search(str(error)[:_LONGEST_TEXT]) is not None


def _not_the_object(error: BaseException) -> StorageError:
    """A missing manifest is an empty queue, so a 404 from a proxy, or for a wrong key, must not look like one."""
    if "NoSuchUpload" in str(error):  # an upload in parts that was finished, and whose answer was lost: put it again
        return TransientError(_first_line(error))
    reason = _NO_BUCKET if _BUCKET_IS_MISSING.search(str(error)) else _NOT_THE_OBJECT
    return StorageError(f"{reason}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return without_secrets(str(error).partition("\n\nDebug source:")[0]).partition("\n")[0][:400]


def without_secrets(text: str) -> str:
    """What a library says of a failed request, without what may be secret in it.

    URLs may carry a password or a signature. And a server that refuses a request may repeat all of it in its answer,
    with the session token: of an answer in XML, its code and its message are left, of a page its beginning.
    """
    text = text[:_LONGEST_TEXT]
    if found := _ANSWER.search(text):
        text = text[: found.start()] + _in_short(text[found.start() :])
    return _cut(text)


def _in_short(answer: str) -> str:
    """What an answer says, and what follows it: nothing if it has no end, or if there is more of the kind."""
    root = _ROOT.search(answer)
    said = ": ".join(found[1] for part in _SAID if (found := part.search(answer)))
    if not said and root and _PAGE.fullmatch(root[1]):
        said = _one_line(_NO_TEXT.sub(" ", answer))[:_LONGEST_PAGE]
    _, end, rest = answer.rpartition(f"</{root[1]}>") if root else ("", "", "")
    return _one_line(said) + (rest if end and "<" not in rest else "")


def _one_line(text: str) -> str:
    return _cut(" ".join(html.unescape(text).split()))


def _cut(text: str) -> str:
    text = re.sub(r"(https?://[^\s?]*)\?\S*", r"\1", re.sub(r"//[^/\s]*@", "//...@", text))
    for secret in _SECRETS:
        text = secret.sub(r"\1...", text)
    return text
