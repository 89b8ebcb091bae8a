"""Buckets that answer wrongly, late or not at all: which error comes of it, after how many requests."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator

import pytest

from objbuf_dagster.errors import CorruptData, NotFound, ObjbufError, StorageError, StorageUnavailable
from objbuf_dagster.store import CloudStore, Conflict, RetryingStore, RetryPolicy, Store, TransientError
from tests.prove.secrets import telltale
from tests.support.bucket import SECRET_KEY, Answer, FakeBucket, Trouble, fake_bucket
from tests.support.proxy import proxied
from tests.support.s3 import S3Location

_SHORT, _LONG = 0.5, 30.0  # seconds: where a request is to time out, and where only a busy machine is slow
_URL = "s3://bucket/prefix"

Operation = Callable[[Store], object]


def _delete(store: Store) -> None:
    for error in store.delete(["object"]).values():
        raise error


_READS: dict[str, Operation] = {
    "get": lambda store: store.get("object"),
    "get if changed": lambda store: store.get_if_changed("object", '"1"'),
    "read": lambda store: store.read("object"),
    "head": lambda store: store.head("object"),
    "list": lambda store: list(store.list("folder")),
}
_CONDITIONAL: dict[str, Operation] = {
    "put if version": lambda store: store.put("object", b"bytes", if_version='"1"'),
    "put if absent": lambda store: store.put("object", b"bytes", if_absent=True),
}
_OPERATIONS: dict[str, Operation] = {
    **_READS,
    **_CONDITIONAL,
    "put": lambda store: store.put("object", b"bytes"),
    "delete": _delete,
}
_PASSING: list[Trouble] = [
    *(Answer(500, "InternalError"), Answer(502), Answer(503, "SlowDown"), Answer(429), Answer(408), "hang", "drop"),
    # The answer to a HEAD has no body, so nobody can tell this from a request that is wrong for good
    (_SAID_IN_BODY := Answer(400, "RequestTimeout")),
]


@pytest.fixture
def bucket() -> Iterator[FakeBucket]:
    with fake_bucket() as bucket:
        yield bucket


@pytest.fixture
def timeout(request: pytest.FixtureRequest) -> float:
    """Short for tests with a bucket that hangs, long for all others: a busy machine must not fail them."""
    hangs = hasattr(request.node, "callspec") and "hang" in request.node.callspec.params.values()
    return _SHORT if hangs else _LONG


@pytest.fixture
def store(bucket: FakeBucket, timeout: float) -> CloudStore:
    return CloudStore(_URL, options=bucket.s3_options, timeout_seconds=timeout)


def _open(bucket: FakeBucket, scheme: str) -> CloudStore:
    azure = {"account_name": "nobody", "access_key": "aGVsbG8=", "endpoint": bucket.endpoint}
    options = {"s3": bucket.s3_options, "gs": bucket.google_options, "az": azure}[scheme]
    return CloudStore(f"{scheme}://bucket/prefix", options=options, timeout_seconds=_LONG)


def _fails(operation: Operation, store: Store) -> ObjbufError:
    """The error that the operation ends in, which tells no secret."""
    with pytest.raises(ObjbufError) as caught:
        operation(store)
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(vars(caught.value))
    assert SECRET_KEY not in told
    return caught.value


# One request


def test_the_fake_is_a_bucket(store: CloudStore) -> None:
    assert store.put("object", b"one", if_absent=True) is None
    assert store.put("object", b"two", if_absent=True) == Conflict()
    version = store.get("object").version
    assert store.put("object", b"two", if_version=version) is None
    assert store.put("object", b"three", if_version=version) == Conflict()
    assert store.read("object") == b"two"
    assert [(info.path, info.size) for info in store.list()] == [("object", 3)]
    assert store.delete(["object"]) == {}
    with pytest.raises(NotFound):
        store.head("object")


@pytest.mark.parametrize("trouble", _PASSING, ids=str)
@pytest.mark.parametrize("name", _OPERATIONS)
def test_a_failure_that_may_pass_is_transient_after_a_single_request(
    store: CloudStore, bucket: FakeBucket, name: str, trouble: Trouble
) -> None:
    bucket.fail(trouble)
    began = time.monotonic()

    error = _fails(_OPERATIONS[name], store)

    assert isinstance(error, TransientError) is not (name == "head" and trouble == _SAID_IN_BODY)
    assert len(bucket.requests) == 1  # obstore repeats nothing by itself
    assert trouble != "hang" or time.monotonic() - began < 10


def test_a_long_path_does_not_make_a_failure_permanent(store: CloudStore, bucket: FakeBucket) -> None:
    path = "/".join(["ä" * 80] * 5)

    for trouble in (trouble for trouble in _PASSING if trouble != "hang"):
        bucket.fail(trouble)
        for operation in (
            lambda store: store.get(path),
            *([lambda store: store.head(path)] if trouble != _SAID_IN_BODY else []),
            lambda store: store.put(path, b""),
        ):
            assert isinstance(_fails(operation, store), TransientError)


@pytest.mark.parametrize("name", ["get", "read", "list"])
def test_an_answer_that_breaks_off_is_transient(store: CloudStore, bucket: FakeBucket, name: str) -> None:
    bucket.fail("half")

    assert isinstance(_fails(_OPERATIONS[name], store), TransientError)

    assert len(bucket.requests) == 1


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer(403, "AccessDenied"), "access denied, check the credentials"),
        (Answer(401), "access denied, check the credentials"),
        (Answer(400, "InvalidRequest"), "storage refused"),
        (Answer(301), "region"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", _OPERATIONS)
def test_a_refusal_is_permanent_and_says_why(
    store: CloudStore, bucket: FakeBucket, name: str, answer: Answer, text: str
) -> None:
    bucket.fail(answer)
    retrying = RetryingStore(store, RetryPolicy(attempts=3, base_seconds=0))

    error = _fails(_OPERATIONS[name], retrying)

    assert type(error) is StorageError
    assert text in str(error)
    assert len(bucket.requests) == (2 if name == "delete" else 1)  # in bulk, then by itself


@pytest.mark.parametrize("name", sorted(_OPERATIONS.keys() - {"head"}))
def test_a_missing_bucket_is_no_missing_object(store: CloudStore, bucket: FakeBucket, name: str) -> None:
    bucket.fail(Answer(404, "NoSuchBucket"))

    error = _fails(_OPERATIONS[name], store)

    assert type(error) is StorageError
    assert "the bucket does not exist" in str(error)


@pytest.mark.parametrize("name", ["get", "read", "head"])
def test_a_missing_object_is_not_found(store: CloudStore, bucket: FakeBucket, name: str) -> None:
    error = _fails(_OPERATIONS[name], store)

    assert isinstance(error, NotFound)
    assert error.path == "object"


@pytest.mark.parametrize("name", sorted(_OPERATIONS.keys() - {"head"}))
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_another_404_is_no_missing_object(bucket: FakeBucket, scheme: str, name: str) -> None:
    bucket.fail(Answer(404, "XAdminUserNotFound"))

    error = _fails(_OPERATIONS[name], _open(bucket, scheme))

    assert type(error) is StorageError
    assert "XAdminUserNotFound" in str(error)


@pytest.mark.parametrize("name", ["put", "put if absent"])
def test_a_put_does_not_find_its_object_missing(store: CloudStore, bucket: FakeBucket, name: str) -> None:
    bucket.fail(Answer(404, "NoSuchKey"))

    assert type(_fails(_OPERATIONS[name], store)) is StorageError


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_put_that_finds_its_version_gone_is_a_conflict(bucket: FakeBucket, scheme: str) -> None:
    bucket.fail(Answer(404, "NoSuchKey"))

    assert _open(bucket, scheme).put("object", b"", if_version="1") == Conflict()


@pytest.mark.parametrize(("code", "kind"), [("BlobNotFound", NotFound), ("ContainerNotFound", StorageError)])
def test_azure_has_words_of_its_own(bucket: FakeBucket, code: str, kind: type[ObjbufError]) -> None:
    bucket.fail(Answer(404, code))

    assert type(_fails(_OPERATIONS["get"], _open(bucket, "az"))) is kind


@pytest.mark.timeout(1800)  # the server may have to be built
@pytest.mark.parametrize("name", sorted(_OPERATIONS.keys() - {"head"}))
def test_a_wrong_access_key_is_no_empty_buffer(real_s3: S3Location, name: str) -> None:
    place = real_s3.fresh()
    store = CloudStore(place.url, options={**place.options, "access_key_id": "nobody"}, timeout_seconds=_LONG)

    error = _fails(_OPERATIONS[name], store)

    assert type(error) is StorageError
    assert "access key" in str(error).lower()


@pytest.mark.parametrize("name", sorted(_OPERATIONS.keys() - {"head"}))
def test_a_404_without_a_word_is_no_missing_object(trusting_s3: S3Location, name: str) -> None:
    with proxied(trusting_s3) as proxy:
        proxy.spoil = lambda request: 404
        store = CloudStore(proxy.location.url, options=proxy.location.options, timeout_seconds=_LONG)

        assert type(_fails(_OPERATIONS[name], store)) is StorageError


@pytest.mark.parametrize("name", sorted(_OPERATIONS.keys() - {"head"}))
def test_a_page_of_a_proxy_is_no_missing_object(bucket: FakeBucket, name: str) -> None:
    with telltale(404, "page with a title") as server:
        store = CloudStore(_URL, options={**bucket.s3_options, "endpoint": server}, timeout_seconds=_LONG)

        error = _fails(_OPERATIONS[name], store)

    assert type(error) is StorageError
    assert "404 Not Found: SignatureDoesNotMatch" in str(error)


@pytest.mark.parametrize("status", [409, 412])
@pytest.mark.parametrize("name", _CONDITIONAL)
def test_a_conditional_put_that_meets_another_is_a_conflict(
    store: CloudStore, bucket: FakeBucket, name: str, status: int
) -> None:
    bucket.fail(Answer(status))

    assert _CONDITIONAL[name](store) == Conflict()

    assert len(bucket.requests) == 1


@pytest.mark.parametrize("status", [409, 412])
@pytest.mark.parametrize("name", ["put", "delete", "get", "head"])
def test_a_call_without_condition_that_meets_another_may_be_repeated(
    store: CloudStore, bucket: FakeBucket, name: str, status: int
) -> None:
    bucket.fail(Answer(status))

    assert isinstance(_fails(_OPERATIONS[name], store), TransientError)

    assert len(bucket.requests) == 1


def test_a_bucket_that_is_not_there_at_all_is_transient() -> None:
    with fake_bucket() as gone:
        options = gone.s3_options
    store = CloudStore(_URL, options=options, timeout_seconds=_LONG)

    for operation in _OPERATIONS.values():
        assert isinstance(_fails(operation, store), TransientError)


def test_a_large_object_is_refused_before_it_is_read(store: CloudStore, bucket: FakeBucket) -> None:
    bucket.fail("huge")

    for call in (store.get, store.read):
        with pytest.raises(CorruptData, match=str(1 << 40)):
            call("object", max_bytes=1 << 20)


# Many requests


@pytest.mark.parametrize("trouble", [Answer(503, "SlowDown"), "drop"], ids=str)
@pytest.mark.parametrize("name", _OPERATIONS)
def test_all_attempts_are_made_before_giving_up(
    store: CloudStore, bucket: FakeBucket, name: str, trouble: Trouble
) -> None:
    bucket.fail(trouble)

    error = _fails(_OPERATIONS[name], RetryingStore(store, RetryPolicy(attempts=3, base_seconds=0)))

    assert type(error) is StorageUnavailable
    assert "3 times in a row" in str(error)
    assert error.in_doubt == (name in _CONDITIONAL)
    assert len(bucket.requests) == 3


@pytest.mark.parametrize("trouble", [Answer(500), "drop", "hang"], ids=str)
@pytest.mark.parametrize("name", ["get", "read", "head", "list", "put", "put if absent", "delete"])
def test_a_failure_that_passes_is_not_seen(store: CloudStore, bucket: FakeBucket, name: str, trouble: Trouble) -> None:
    if name != "put if absent":
        store.put("object", b"bytes")
    bucket.fail(trouble, times=2)

    _OPERATIONS[name](RetryingStore(store, RetryPolicy(attempts=3, base_seconds=0)))

    assert len(bucket.requests) == 3


def test_a_conditional_put_whose_answer_was_lost_is_a_conflict_in_doubt(store: CloudStore, bucket: FakeBucket) -> None:
    retrying = RetryingStore(store, RetryPolicy(attempts=3, base_seconds=0))
    bucket.fail("lost", times=1)

    assert retrying.put("object", b"one", if_absent=True) == Conflict(in_doubt=True)

    assert store.read("object") == b"one"
    version = store.get("object").version
    bucket.fail("lost", times=1)
    assert retrying.put("object", b"two", if_version=version) == Conflict(in_doubt=True)
    assert store.read("object") == b"two"


# Secrets


def test_a_store_shows_no_secret_and_keeps_it_when_pickled(store: CloudStore, bucket: FakeBucket) -> None:
    again: CloudStore = pickle.loads(pickle.dumps(store))

    assert again.put("object", b"bytes") is None
    for shown in (repr(store), str(store), repr(again), repr(RetryingStore(again))):
        assert SECRET_KEY not in shown
        assert _URL in shown


def test_a_password_in_the_endpoint_is_not_told(bucket: FakeBucket) -> None:
    endpoint = bucket.endpoint.replace("//", "//somebody:PASSWORD@")
    store = CloudStore(_URL, options={**bucket.s3_options, "endpoint": endpoint}, timeout_seconds=_LONG)

    for trouble in (Answer(500), Answer(403), Answer(400), "drop"):
        bucket.fail(trouble)
        for operation in _OPERATIONS.values():
            assert "PASSWORD" not in str(_fails(operation, store))


# Objects that did not change


def test_the_bytes_of_an_unchanged_object_are_not_sent(store: CloudStore, bucket: FakeBucket) -> None:
    store.put("object", b"x" * 1000)
    version = store.get("object").version
    bucket.fail(None)
    sent = bucket.sent

    assert store.get_if_changed("object", version) is None

    assert (bucket.requests, bucket.sent - sent) == (["GET"], 0)


def test_a_server_that_knows_no_condition_is_read_no_further_than_the_version(
    store: CloudStore, bucket: FakeBucket
) -> None:
    bucket.is_modern = False
    store.put("object", b"x")
    version = store.get("object").version
    assert store.get_if_changed("object", version) is None

    store.put("object", b"other")

    changed = store.get_if_changed("object", version)
    assert changed == store.get("object")


# Google


@pytest.fixture
def google(bucket: FakeBucket) -> CloudStore:
    return _open(bucket, "gs")


def test_google_compares_generations(google: CloudStore) -> None:
    assert google.put("object", b"one", if_absent=True) is None
    assert google.put("object", b"two", if_absent=True) == Conflict()
    version = google.get("object").version

    assert google.put("object", b"two", if_version=version) is None
    assert google.put("object", b"three", if_version=version) == Conflict()

    assert google.read("object") == b"two"


def test_google_says_whether_a_generation_is_the_same(google: CloudStore) -> None:
    google.put("object", b"one")
    version = google.get("object").version

    assert google.get_if_changed("object", version) is None
    google.put("object", b"one")

    again = google.get_if_changed("object", version)
    assert again is not None
    assert again.data == b"one"
    assert again.version != version


def test_google_deletes_the_rest_when_one_is_gone(google: CloudStore, bucket: FakeBucket) -> None:
    for number in range(30):
        google.put(f"{number}", b"")

    assert google.delete(["gone", *(f"{number}" for number in range(30))]) == {}

    assert bucket.objects == {}


# What a library in another language does


def test_a_panic_is_an_error_of_ours(store: CloudStore, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panic(*_: object, **__: object) -> None:
        raise PanicException("called `Result::unwrap()` on an `Err` value")

    monkeypatch.setattr("obstore.get", panic)
    with pytest.raises(StorageError, match="check the settings") as caught:
        store.get("object")
    assert caught.value.in_doubt


def test_who_has_no_credentials_is_told_so(bucket: FakeBucket) -> None:
    options = {name: value for name, value in bucket.s3_options.items() if "key" not in name}
    store = CloudStore(_URL, options={**options, "metadata_endpoint": "http://127.0.0.1:1"}, timeout_seconds=_LONG)

    with pytest.raises(StorageError, match="no credentials were found, set AWS_ACCESS_KEY_ID") as caught:
        store.get("object")
    assert not isinstance(caught.value, TransientError)
