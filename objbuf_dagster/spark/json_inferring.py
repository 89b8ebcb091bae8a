"""Columns for JSON entries, proposed by Spark's own inference from some that have landed.

It is a proposal, made once: a person reads it and writes it into the code, as the columns of a `JsonDecoder`. No run
ever infers: a table whose columns depend on what came first, or last, cannot be landed twice with the same outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from objbuf_dagster.decode import Undecodable
from objbuf_dagster.decode.json_check import Checker
from objbuf_dagster.decode.json_reading import top_fields
from objbuf_dagster.decode.json_types import REST, Array, Field, Struct, check_names, columns_ddl, parse_spark_columns
from objbuf_dagster.errors import InvalidInput, shown
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.reading import read
from objbuf_dagster.spark.session import prepare
from objbuf_dagster.spark.tasks import job_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RANGES = 16
_NO_TYPE = "it has no name, or is null or empty whenever it is there"
_ENTRY_BYTES = 64 << 10
_SAMPLE_BYTES = 4 << 20
_PLACE = "xxhash64(_odb_sequence, _odb_entry_index)"
_OPTIONS = {
    "dropFieldIfAllNull": "true",
    "maxNumLen": str((1 << 31) - 1),
    "maxStringLen": str((1 << 31) - 1),
}
"""What was null in the whole sample has no type that could be told."""


@dataclass(frozen=True, slots=True)
class InferredJson:
    """A proposal.

    ddl: the columns, for `JsonDecoder(ddl)`.
    left_out: top-level fields that stay in `_rest`, by name, with why.
    entries: how many it was inferred from. refused: how many more of the sample are no JSON objects.
    """

    ddl: str
    left_out: Mapping[str, str]
    entries: int
    refused: int


def infer_json(
    spark: SparkSession,
    entries: LakeTable,
    ranges: Iterable[SequenceRange | str] | None = None,
    *,
    payload: bytes | None = None,
    prefix: bytes | None = None,
    sample: int = 1000,
) -> InferredJson:
    """Columns that hold a sample of these entries whole, without loss.

    ranges: those that the sample is of, by default the newest 16. payload, prefix: as of JsonDecoder.
    sample: how many entries, of up to 64 KiB each and 4 MiB together, from all over the ranges, always the same ones.

    What no column can hold is left to `_rest`: a field that is of several types, or null whenever it is there, or whose
    name cannot be a column's. Raises InvalidInput if nothing is left, and as `job_errors`.
    """
    keys = list(entries.ranges())[-_RANGES:] if ranges is None else list(ranges)
    with job_errors("nothing was changed: infer again"):
        found = read(prepare(spark), entries, keys).where(f"length(entry) <= {_ENTRY_BYTES}")
        spread = found.where(_taken(payload, prefix)).selectExpr("entry", f"{_PLACE} AS place").orderBy("place")
        some = [bytes(row["entry"]) for row in spread.limit(sample).collect()]
    good, refused = _good(some)
    if not good:
        raise InvalidInput(
            f"none of the {len(some)} entries looked at is a JSON object: name other ranges, or the payload that JSON "
            "entries have"
        )
    with job_errors("nothing was changed: infer again"):
        options = ", ".join(f"'{name}', '{value}'" for name, value in _OPTIONS.items())
        text = b"[" + b",".join(good) + b"]"
        query = f"SELECT schema_of_json(:text, map({options})) AS ddl"
        (row,) = spark.sql(query, args={"text": text.decode()}).collect()
    columns, left_out = _holding(_fields(row["ddl"]), good)
    if not columns:
        raise InvalidInput(f"no field of these entries can be a column: {left_out}; all of them would be in {REST}")
    return InferredJson(columns_ddl(Struct(tuple(columns))), left_out, len(good), refused)


def _taken(payload: bytes | None, prefix: bytes | None) -> str:
    if payload is not None:
        return f"_odb_metadata = X'{payload.hex()}'"
    return "true" if prefix is None else f"startswith(_odb_metadata, X'{prefix.hex()}')"


def _good(some: Sequence[bytes]) -> tuple[list[bytes], int]:
    """The entries that are JSON objects, as many as are looked at, and how many others there are among them."""
    anything = Checker(Struct(()), _ENTRY_BYTES)
    good: list[bytes] = []
    refused = size = 0
    for entry in some:
        size += len(entry)
        if size > _SAMPLE_BYTES:
            break
        try:
            anything.check(entry)
        except Undecodable:
            refused += 1
        else:
            good.append(entry)
    return good, refused


def _fields(ddl: str) -> tuple[Field, ...]:
    """Those of the objects, from what Spark says of an array of them."""
    if ddl == "ARRAY<STRUCT<>>":
        return ()
    kind = parse_spark_columns(f"every {ddl}").fields[0].kind
    inner = kind.element if isinstance(kind, Array) else kind
    return inner.fields if isinstance(inner, Struct) else ()


def _holding(fields: Sequence[Field], good: Sequence[bytes]) -> tuple[list[Field], dict[str, str]]:
    """The fields that hold what all these entries have for them, and why the others do not."""
    columns: list[Field] = []
    names = {name for entry in good for name, *_ in top_fields(entry.decode())}
    left_out = dict.fromkeys(sorted(names - {field.name for field in fields}), _NO_TYPE)
    for field in fields:
        alone = Struct((field,))
        try:
            check_names(Struct((*columns, field)), "")
            checker = Checker(alone, _ENTRY_BYTES)
            for entry in good:
                checker.check(entry)
        except (InvalidInput, Undecodable) as error:
            left_out[field.name] = shown(str(error))
        else:
            columns.append(field)
    return columns, left_out
