"""What comes out can be kept: Delta, Spark and DuckDB know every type, and give the rows back as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from objbuf_dagster.decode import decode_block, failures_schema, rows_schema
from objbuf_dagster.decode.otlp import OtlpDecoder
from objbuf_dagster.decode.requests import official
from tests.decode.messages import DECODERS, entries_batch


def filled(message: Any) -> Any:
    """A message with every field set, two of each list; but for an index in place of a key, which no entry may have."""
    for field in message.DESCRIPTOR.fields:
        if field.name == "key_strindex":
            continue
        if field.message_type is not None and field.message_type.name == "AnyValue":
            getattr(message, field.name).CopyFrom(AnyValue(int_value=7))
        elif field.message_type is not None and field.is_repeated:
            for _ in range(2):
                filled(getattr(message, field.name).add())
        elif field.message_type is not None:
            filled(getattr(message, field.name))
        elif field.is_repeated:
            getattr(message, field.name).extend([1, 2] if field.cpp_type != field.CPPTYPE_STRING else ["x", "y"])
        elif field.cpp_type == field.CPPTYPE_STRING:
            setattr(message, field.name, b"\x01\x02" if field.type == field.TYPE_BYTES else "text")
        else:
            setattr(message, field.name, 1)
    return message


def rows_of(decoder: OtlpDecoder) -> pa.Table:
    full = filled(official(decoder.signal)())
    entries = [full.SerializeToString(), b""]
    for kind in ("gauge", "sum", "histogram", "exponential_histogram") if decoder.name == "otlp_metrics" else ():
        request = official(decoder.signal)()
        filled(getattr(request.resource_metrics.add().scope_metrics.add().metrics.add(), kind))
        entries.append(request.SerializeToString())
    batch = entries_batch(entries, bytes((1, decoder.signal, 1, 0)))
    table = pa.Table.from_batches([rows for rows, _ in decode_block(decoder, batch)])
    assert len(table) > 4
    return table


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_delta_gives_the_rows_back(decoder: OtlpDecoder, tmp_path: Path) -> None:
    table = rows_of(decoder)
    assert not [name for name in table.schema.names if table.column(name).null_count == len(table)]

    deltalake.write_deltalake(tmp_path, table)

    assert deltalake.DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == table.to_pylist()


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_duckdb_reads_the_maps(decoder: OtlpDecoder, tmp_path: Path) -> None:
    table = rows_of(decoder)
    pq.write_table(table, tmp_path / "rows.parquet")

    read = duckdb.sql(f"select * from '{tmp_path}/rows.parquet'")  # noqa: S608  our own path

    assert read.columns == table.schema.names
    assert len(read.fetchall()) == len(table)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_spark_has_a_type_for_every_column(decoder: OtlpDecoder) -> None:
    for schema in (rows_schema(decoder), failures_schema()):
        spark = from_arrow_schema(schema)
        assert [field.nullable for field in spark] == [field.nullable for field in schema]
        again = to_arrow_schema(spark, timezone="UTC")
        assert [field.type for field in again] == [field.type for field in schema]
