"""Resources: the buffer and the lake. Making one, in a tick or a run, reads nothing and takes nothing over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from objbuf_dagster.buffer import (
    DEFAULT_DATA_PREFIX,
    DEFAULT_MANIFEST_PATH,
    BufferPlace,
    BufferState,
    Consumer,
    FetchHandle,
    Producer,
    state_of,
)
from objbuf_dagster.buffer.metrics import Metrics
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.orchestration.literals import Guarded, check_place
from objbuf_dagster.orchestration.s3 import settings_of
from objbuf_dagster.protocol import DEFAULT_MAX_BYTES
from objbuf_dagster.ranges import RangeLedger
from objbuf_dagster.store import LocalStore, Store, check_path, open_store
from objbuf_dagster.store.cloud import without_secrets
from objbuf_dagster.store.showable import safe_url

if TYPE_CHECKING:
    from objbuf_dagster.lake import LakeTable, TableSchema

_S3_HELP = "dagster-aws' S3Resource: region, endpoint, profile and keys for an s3:// URL. Boto3's own defaults without."
_OPTIONS_HELP = (
    "More settings of a bucket's store, as obstore names them. What may be secret must be an `EnvVar`, or be left "
    "to `s3` or the environment: Dagster stores all else."
)


class _Place(Guarded):
    """Where something is kept. Neither stored nor shown with a credential in it."""

    url: str

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        check_place(cls.__name__, given)

    def __repr__(self) -> str:
        """Without the options and the S3Resource: they may be secrets."""
        is_variable = isinstance(self.url, dg.EnvVar)
        url = f"EnvVar({self.url!r})" if is_variable else repr(safe_url(self.url))
        return f"{type(self).__name__}({url})"

    __str__ = __repr__


class BufferResource(_Place):
    """The fenced consumer of one buffer, and what belongs to it.

        defs = dg.Definitions(resources={"buffer": BufferResource(url="s3://bucket/events", s3=S3Resource(...))})

    Only `consumer()` takes the buffer over. The sensor calls it when its cursor is empty; everything else attaches with
    the epoch that the sensor published.

    >>> buffer = BufferResource(url="memory://docs")
    >>> with buffer.producer() as producer:
    ...     _ = producer.produce([b"one"])
    >>> buffer.peek().queue_length, buffer.peek().epoch
    (1, 0)
    """

    url: str = Field(description="Where the buffer is: file:///dir, s3://bucket/prefix, gs://..., az://...")
    manifest_path: str = Field(default=DEFAULT_MANIFEST_PATH, description="The manifest's path below the URL.")
    data_prefix: str = Field(default=DEFAULT_DATA_PREFIX, description="Where batches and ranges are, below the URL.")
    max_batch_bytes: int = Field(
        default=DEFAULT_MAX_BYTES, gt=0, description="Bytes that a batch may have, stored and decompressed."
    )
    timeout_seconds: float = Field(default=60.0, gt=0, description="Seconds that one request to a bucket may take.")
    s3: dg.ConfigurableResource | None = Field(default=None, description=_S3_HELP)  # type: ignore[type-arg]
    options: dict[str, str] = Field(default_factory=dict, description=_OPTIONS_HELP)

    def store(self) -> Store:
        return _open(self.url, self.s3, self.options, self.timeout_seconds)

    def place(self) -> BufferPlace:
        """All that a worker needs to know; picklable."""
        return BufferPlace(self.store(), self.manifest_path, self.data_prefix, self.max_batch_bytes)

    def identity(self) -> str:
        """What tells this buffer from others, and is no secret. State that was made for another one is refused."""
        store = self.store()
        where = store.root.resolve().as_uri() if isinstance(store, LocalStore) else self.url.rstrip("/")
        where = where.replace("s3a://", "s3://", 1)  # two names of one place
        endpoint = self.options.get("endpoint") or getattr(self.s3, "endpoint_url", None)
        where += f" at {without_secrets(endpoint)}" if endpoint else ""
        return f"{where} {check_path(self.manifest_path)} {check_path(self.data_prefix)}"

    def consumer(self) -> Consumer:
        """Take the buffer over: whoever held it is fenced from now on. Garbage collection is a job of its own."""
        return Consumer.open(
            self.store(), self.manifest_path, self.data_prefix, gc_interval=None, max_bytes=self.max_batch_bytes
        )

    def attach(self, epoch: int, store: Store | None = None, metrics: Metrics | None = None) -> Consumer:
        """Join with an epoch that this deployment holds; if it does not any more, the first operation raises Fenced.

        `store`, if the caller has one around this buffer's, is used instead. `metrics` gets the consumer's.
        """
        return Consumer.attach(
            store or self.store(),
            self.manifest_path,
            self.data_prefix,
            epoch=epoch,
            max_bytes=self.max_batch_bytes,
            metrics=metrics,
        )

    def producer(self, **settings: Any) -> Producer:
        """A producer into this buffer; settings as Producer takes them."""
        return Producer(self.store(), self.manifest_path, self.data_prefix, **settings)

    def fetcher(self) -> FetchHandle:
        return self.place().fetcher()

    def ledger(self) -> RangeLedger:
        return RangeLedger(self.store(), self.data_prefix)

    def peek(self) -> BufferState:
        """Look, whoever owns it: one GET."""
        import time

        return state_of(self.place().manifests().read(), time.time())


class LakeResource(_Place):
    """Where the tables are: each is a folder of this URL.

    >>> import tempfile
    >>> LakeResource(url=tempfile.mkdtemp()).table("entries").exists()
    False
    """

    url: str = Field(
        description="Where the tables are: file:///dir, s3://bucket/prefix, gs://..., az://..., hdfs://..."
    )
    timeout_seconds: float = Field(default=60.0, gt=0, description="Seconds that one request to a bucket may take.")
    s3: dg.ConfigurableResource | None = Field(default=None, description=_S3_HELP)  # type: ignore[type-arg]
    options: dict[str, str] = Field(default_factory=dict, description=_OPTIONS_HELP)

    def table(self, name: str, schema: TableSchema | None = None) -> LakeTable:
        """A table by its name, with these columns (those of `entries`, if none are given). Nothing is read yet."""
        from objbuf_dagster.lake import ENTRIES

        return self._open(name, schema or ENTRIES)

    def any_table(self, name: str) -> LakeTable:
        """A table by its name, with whatever columns it has: to look at it and to look after it."""
        return self._open(name, None)

    def _open(self, name: str, schema: TableSchema | None) -> LakeTable:
        from objbuf_dagster.lake import LakeTable

        options, credentials = _bucket_settings(self.url, self.s3, self.options)
        return LakeTable(
            f"{self.url.rstrip('/')}/{check_path(name)}",
            schema,
            options=options,
            credentials=credentials,
            timeout_seconds=self.timeout_seconds,
        )


def _open(url: str, s3: Any, options: dict[str, str], timeout_seconds: float) -> Store:
    given, credentials = _bucket_settings(url, s3, options)
    return open_store(url, options=given, credentials=credentials, timeout_seconds=timeout_seconds)


def _bucket_settings(url: str, s3: Any, options: dict[str, str]) -> tuple[dict[str, str], Any]:
    if s3 is None:
        return dict(options), None
    if not url.startswith(("s3://", "s3a://")):
        raise InvalidInput(f"an S3Resource is for s3:// URLs, and this is {url.partition('://')[0]}://: leave it out")
    given, credentials = settings_of(s3)
    return {**given, **options}, credentials
