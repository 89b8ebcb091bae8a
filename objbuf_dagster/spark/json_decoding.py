"""Spark's own JSON parser between two halves of a decoding task.

The first half reads the entries and checks them (`decode/json_check.py`): what fails is a failure with its reason, what
passes goes on as text. Spark parses the texts, with the declared columns. The second half writes rows and dead letters
just as for any other decoder. All three happen in one Spark task, block by block: no shuffle comes between them.

The check says how many values a text has for the columns. If the parser finds another number, or says that the text is
corrupt, the entry is a failure too: whatever a version or a setting of Spark does, no value becomes null unseen.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from objbuf_dagster.decode import RECORD_INDEX, JsonDecoder, decode_block, failures_schema, rows_schema
from objbuf_dagster.decode.json import KNOWN, TEXT, JsonCheck
from objbuf_dagster.decode.json_types import REST
from objbuf_dagster.errors import InvalidInput, JobFailed
from objbuf_dagster.lake import ENTRIES
from objbuf_dagster.spark.decoding_worker import REMEDY, DecodeTask, Report, Share, Working
from objbuf_dagster.spark.tasks import job_errors, parallelism, share_tasks, shares_in

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import SparkSession

_CORRUPT, _PARSED, _CONTROL = "_odb_corrupt", "parsed", "control"
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowComments": "false",
    "allowNonNumericNumbers": "false",
    "allowNumericLeadingZeros": "false",
    "allowSingleQuotes": "false",
    "allowUnquotedFieldNames": "false",
    "locale": "en-US",
    "maxNumLen": str((1 << 31) - 1),
    "maxStringLen": str((1 << 31) - 1),
    "primitivesAsString": "false",
    "timeZone": "UTC",
}
"""Those that could be set elsewhere, and those of limits that the check has already."""

_DISAGREES = "Spark's parser finds other values in it than the {} that are there for the columns; tell us of it"


def json_reports(
    spark: SparkSession, cut: Callable[[int], Iterable[Share]], task: DecodeTask, decoder: JsonDecoder
) -> list[Report]:
    """Run a job as `tasks.reports` does, with Spark's parser in it.

    Raises as `job_errors`, and InvalidInput for a session whose settings change what the parser makes of times.
    """
    if spark.conf.get("spark.sql.legacy.timeParserPolicy", None) == "LEGACY":
        raise InvalidInput(
            "spark.sql.legacy.timeParserPolicy=LEGACY cuts times: unset it for sessions that decode JSON"
        )
    with job_errors(REMEDY):
        shares = [pickle.dumps(share) for share in cut(parallelism(spark))]
        if not shares:
            return []
        checked = share_tasks(spark, shares, _Checking(task, decoder), _ddl(_between()))
        rows = checked.selectExpr("*", _parse(decoder)).mapInArrow(_Writing(task, decoder), "report binary").collect()
    return [pickle.loads(row["report"]) for row in rows]  # noqa: S301  our own tasks wrote it


def _parse(decoder: JsonDecoder) -> str:
    """The expression that parses. It is text, since functions of PySpark are either classic or Spark Connect."""
    columns = ", ".join(f"`{one.name}` {one.kind.ddl()}" for one in decoder.columns.fields)
    options = ", ".join(f"'{name}', '{value}'" for name, value in _OPTIONS.items())
    return f"from_json(`{TEXT}`, '{columns}, `{_CORRUPT}` STRING', map({options})) AS `{_PARSED}`"


def _between() -> dict[str, str]:
    """What goes from the first half to the second: of an entry that is to be parsed, of one that failed, or a word
    between the halves."""
    of_entry = {column.name: column.type for column in ENTRIES.data}
    of_row = {RECORD_INDEX: "long", TEXT: "string", KNOWN: "long", REST: "map<string,string>"}
    return {**of_entry, **of_row, "reason": "string", _CONTROL: "binary"}


def _ddl(columns: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


@dataclass(frozen=True, slots=True)
class _Checking:
    """The first half. Each share begins with itself and ends with a report, which has what only this half knows."""

    task: DecodeTask
    decoder: JsonDecoder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check = JsonCheck(self.decoder)
        for packed in shares_in(batches):
            share: Share = pickle.loads(packed)  # noqa: S301  the driver made it
            yield _word(share)
            working = Working(self.task, share)
            try:
                for block in working.blocks():
                    for pair in decode_block(check, block):
                        yield from (_filled(some) for some in pair if len(some))
                report = Report(
                    share.number,
                    share.range,
                    entries=working.entries,
                    taken=working.taken,
                    bytes_read=working.bytes_read,
                )
            except ImportError:
                raise
            except Exception as error:  # noqa: BLE001  as in DecodeTask
                report = working.failure(error)
            yield _word(report)


def _word(said: Share | Report) -> pa.RecordBatch:
    import pyarrow as pa

    return _filled(pa.record_batch([pa.array([pickle.dumps(said)], pa.binary())], names=[_CONTROL]))


def _filled(some: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with all columns, null where they have none."""
    import pyarrow as pa

    schema = pa.schema(
        [
            *ENTRIES.to_arrow(),
            (RECORD_INDEX, pa.int64()),
            (TEXT, pa.string()),
            (KNOWN, pa.int64()),
            (REST, pa.map_(pa.string(), pa.string())),
            ("reason", pa.string()),
            (_CONTROL, pa.binary()),
        ]
    )
    columns = [
        some.column(field.name) if field.name in some.schema.names else pa.nulls(len(some), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


@dataclass(frozen=True, slots=True)
class _Writing:
    """The second half: the reports, as `DecodeTask` makes them."""

    task: DecodeTask
    decoder: JsonDecoder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        parts = _parts(batches)
        for part in parts:
            if isinstance(part, Share):  # what is left of one that failed is passed over
                report = self._report(part, parts)
                yield pa.record_batch([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])

    def _report(self, share: Share, parts: Iterator[Share | Report | pa.RecordBatch]) -> Report:
        working = Working(self.task, share)
        try:
            return working.written(self._pairs(working, parts))
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001  as in DecodeTask
            return working.failure(error)

    def _pairs(
        self, working: Working, parts: Iterator[Share | Report | pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        for part in parts:
            if isinstance(part, Report):
                if part.error is not None:
                    raise part.error
                working.entries, working.taken, working.bytes_read = part.entries, part.taken, part.bytes_read
                return
            yield parsed_rows(self.decoder, part)
        raise JobFailed(f"range {working.share.range}: its entries came without their end; {REMEDY}")


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[Share | Report | pa.RecordBatch]:
    """What the first half said and, in between, rows."""
    import numpy as np

    for batch in batches:
        control = batch.column(_CONTROL)
        begin = 0
        for at in np.flatnonzero(control.is_valid().to_numpy(zero_copy_only=False)).tolist():
            if at > begin:
                yield batch.slice(begin, at - begin)
            yield pickle.loads(control[at].as_py())  # noqa: S301  the first half wrote it
            begin = at + 1
        if begin < len(batch):
            yield batch.slice(begin)


def parsed_rows(decoder: JsonDecoder, part: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Rows (`rows_schema`) and failures (`failures_schema`), of entries that failed and of texts with what Spark made
    of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = part.filter(part.column(TEXT).is_valid())
    parsed = given.column(_PARSED)
    *columns, corrupt = parsed.flatten()
    found = sum((counts(column) for column in columns), counts(corrupt))
    right = pc.and_(pc.and_(parsed.is_valid(), corrupt.is_null()), pc.equal(given.column(KNOWN), pa.array(found)))
    failed = part.filter(part.column("reason").is_valid())
    failures = [_failures(decoder, failed, failed.column("entry"), failed.column("reason"))]
    wrong = given.filter(pc.invert(right))
    if len(wrong):
        reasons = pa.array([_DISAGREES.format(known) for known in wrong.column(KNOWN).to_pylist()], pa.string())
        failures.append(_failures(decoder, wrong, wrong.column(TEXT).cast(pa.binary()), reasons))
        given = given.filter(right)
    target = rows_schema(decoder)
    named = dict(zip(decoder.schema.names, given.column(_PARSED).flatten()[:-1], strict=False))
    rows = [named[field.name] if field.name in named else given.column(field.name) for field in target]
    return (
        pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(rows, target, strict=True)], schema=target
        ),
        pa.concat_batches(failures),
    )


def _failures(decoder: JsonDecoder, part: pa.RecordBatch, entries: pa.Array, reasons: pa.Array) -> pa.RecordBatch:
    import pyarrow as pa

    schema = failures_schema()
    told = {
        "entry": entries,
        "reason": reasons,
        "decoder": pa.repeat(pa.scalar(decoder.name), len(part)),
        "decoder_version": pa.repeat(pa.scalar(decoder.version, pa.int32()), len(part)),
    }
    columns = [told[field.name] if field.name in told else part.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def counts(array: pa.Array) -> npt.NDArray[np.int64]:
    """Per row what `Checked.known` counts: values that are not null, at all depths, and lengths."""
    import numpy as np
    import pyarrow as pa

    found: npt.NDArray[np.int64] = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_struct(array.type):
        for child in array.flatten():
            found += counts(child)
    elif pa.types.is_list(array.type) or pa.types.is_map(array.type):
        offsets = array.offsets.to_numpy().astype(np.int64)
        children = array.items if pa.types.is_map(array.type) else array.values
        inside = counts(children.slice(offsets[0], offsets[-1] - offsets[0]))
        until = np.concatenate((np.zeros(1, np.int64), np.cumsum(inside))) if len(inside) else np.zeros(1, np.int64)
        found += np.diff(offsets) + np.diff(until[offsets - offsets[0]])
    return found
