"""JSON entries: one object each, one row each, with columns that are declared.

This is the declaration, and the check that every entry passes first. The rows are made by Spark's own parser, so only
`land_decoded` (and what is built on it) can decode with it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NoReturn

from objbuf_dagster.decode.decoder import Decoded, Decoder, Failure, Undecodable
from objbuf_dagster.decode.json_check import Checker
from objbuf_dagster.decode.json_types import REST, Struct, columns_ddl, parse_columns
from objbuf_dagster.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BYTES = 16 << 20
"""Of an entry, unless the decoder says otherwise: its parsing takes about eight times as much of a task's heap."""

TEXT, KNOWN = "text", "known"


class JsonDecoder(Decoder):
    """Entries that are JSON objects, as rows of the declared columns, and `_rest` for all that these do not hold.

    ddl: the columns in Spark's words: `id BIGINT NOT NULL, user STRUCT<name: STRING>`. They are pinned here: what an
        entry has never changes them. `infer_json` proposes some.
    name: what dead letters call it; decoders of different columns need different names.
    version: count it up whenever the columns change.
    payload: take only entries with exactly this metadata payload; prefix: that begins with this. By default all are
        taken, and those that are no JSON fail.
    max_bytes: an entry that is larger fails. Executors need about eight times this for each task that they run.

    docs/json.md says what becomes of each kind of value. Raises InvalidInput.
    """

    def __init__(
        self,
        ddl: str,
        *,
        name: str = "json",
        version: int = 1,
        payload: bytes | None = None,
        prefix: bytes | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if payload is not None and prefix is not None:
            raise InvalidInput("either a payload or a prefix of payloads tells which entries are taken: give one")
        if max_bytes < 1:
            raise InvalidInput(f"max_bytes is how large an entry may be, and not {max_bytes}")
        self.columns: Struct = parse_columns(ddl)
        self.name = name
        self.version = version
        self.payload = payload
        self.prefix = prefix
        self.max_bytes = max_bytes

    @property
    def ddl(self) -> str:
        """The declared columns, without `_rest`."""
        return columns_ddl(self.columns)

    @property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        fields = [pa.field(one.name, one.kind.arrow(), nullable=not one.required) for one in self.columns.fields]
        return pa.schema([*fields, pa.field(REST, pa.map_(pa.string(), pa.string()), nullable=False)])

    def takes(self, payload: bytes | None) -> bool:
        if self.payload is not None:
            return payload == self.payload
        return self.prefix is None or (payload is not None and payload.startswith(self.prefix))

    def decode(self, entries: pa.Array) -> NoReturn:  # noqa: ARG002
        raise InvalidInput(f"{self.name} is decoded by Spark's own parser: give the decoder to land_decoded")


class JsonCheck(Decoder):
    """The first half of a JsonDecoder: its failures, and of all other entries what the second half needs.

    Rows have the text of the entry, to be parsed, how many values a parser must find in it, and `_rest`.
    """

    def __init__(self, decoder: JsonDecoder) -> None:
        self.decoder = decoder
        self.name = decoder.name
        self.version = decoder.version

    @functools.cached_property
    def _checker(self) -> Checker:
        return Checker(self.decoder.columns, self.decoder.max_bytes)

    @property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(
            [
                pa.field(TEXT, pa.string(), nullable=False),
                pa.field(KNOWN, pa.int64(), nullable=False),
                pa.field(REST, pa.map_(pa.string(), pa.string()), nullable=False),
            ]
        )

    def takes(self, payload: bytes | None) -> bool:
        return self.decoder.takes(payload)

    def decode(self, entries: pa.Array) -> Decoded:
        import pyarrow as pa

        checked = []
        index: list[int] = []
        failures: list[Failure] = []
        for position, entry in enumerate(entries.to_pylist()):
            try:
                checked.append(self._checker.check(entry))
            except Undecodable as error:
                failures.append(Failure(position, error.reason))
            else:
                index.append(position)
        columns = [[one.text for one in checked], [one.known for one in checked], [one.rest for one in checked]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return Decoded(rows, pa.array(index, pa.int32()), tuple(failures))
