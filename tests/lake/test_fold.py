"""Folds alone: keys, scopes, contracts, and the ready-made ones against plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objbuf_dagster.decode import OtlpLogs
from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.lake.fold import Changes, Fold, Scope, buckets_of, checked, codes_of, state_schema
from objbuf_dagster.lake.fold_latest import LastRow, ServiceLatest
from objbuf_dagster.lake.fold_named import find_fold
from objbuf_dagster.lake.state import StateTable
from tests.decode.messages import decoded, entries_batch
from tests.lake.services import logs_of
from tests.lake.states import Accounts

KEY = pa.schema([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.int64(), nullable=False)])


class Latest(LastRow):
    """Of rows with key, text and a mark that deletes."""

    name = "latest"
    version = 1
    reads = ("a", "b", "text", "end")
    counts = ("rows", "sum")
    key = KEY
    last = pa.schema([pa.field("text", pa.string())])

    def keyed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [*(rows.column(name) for name in ("a", "b", "text")), pa.repeat(pa.scalar(True), len(rows))]
        columns += [rows.column("b"), rows.column("end")]
        return pa.RecordBatch.from_arrays(columns, names=["a", "b", "text", "rows", "sum", "_deleted"])


def table(rows: Sequence[tuple[str, int]]) -> pa.Table:
    return pa.Table.from_pylist([{"a": a, "b": b} for a, b in rows], KEY)


@given(st.lists(st.tuples(st.text(max_size=6), st.integers(-(2**63), 2**63 - 1)), max_size=20))
def test_keys_have_the_same_code_only_if_they_are_the_same(rows: list[tuple[str, int]]) -> None:
    codes = codes_of(table(rows), KEY).to_pylist()
    assert len(set(codes)) == len(set(rows))
    assert len({*zip(rows, codes, strict=True)}) == len(set(rows))
    homes = buckets_of(codes_of(table(rows), KEY), 16).to_pylist()
    assert len({*zip(codes, homes, strict=True)}) == len(set(rows))


def test_keys_are_spread_over_buckets() -> None:
    codes = codes_of(table([("service", number) for number in range(2000)]), KEY)
    homes = buckets_of(codes, 16).to_pylist()
    assert min(homes.count(f"{number:02d}") for number in range(16)) > 60


@pytest.mark.parametrize(
    ("scope", "chosen"),
    [
        (Scope(), "all"),
        (Scope.of("pay"), ["pay/eu-1", "payments/eu-2", "payments/us-1"]),
        (Scope.of(("payments", "eu-")), ["payments/eu-2"]),
        (Scope.of("shop", ("payments", "us")), ["payments/us-1", "shop/eu-1"]),
        (Scope.of("", "pay"), "all"),
        (Scope.of("PAY"), []),
    ],
)
def test_a_scope_is_all_keys_or_those_with_a_prefix(scope: Scope, chosen: str | list[str]) -> None:
    key = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("service", "instance")])
    names = ["pay/eu-1", "payments/eu-2", "payments/us-1", "shop/eu-1", "Pay/x"]
    rows = pa.RecordBatch.from_pylist([dict(zip(key.names, name.split("/"), strict=True)) for name in names], key)
    scope.check(key)

    found = [f"{row['service']}/{row['instance']}" for row in scope.within(rows, key).to_pylist()]
    assert found == (names if chosen == "all" else chosen)


def test_scopes_that_keys_cannot_have_are_refused() -> None:
    for scope in (Scope.of(("x", "1")), Scope.of(("x", "1", "2"))):
        with pytest.raises(InvalidInput, match="no prefix of keys"):
            scope.check(KEY)
    with pytest.raises(InvalidInput, match="at least one value"):
        Scope.of(())
    assert Scope.of("b", "a", "b") == Scope.of("a", "b")


class Broken(Accounts):
    """Gives whatever a test says."""

    def __init__(self, key: pa.Schema | None = None, value: pa.Schema | None = None) -> None:
        self.key = Accounts.key if key is None else key
        self.value = Accounts.value if value is None else value


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (pa.schema([]), None, "one at least"),
        (pa.schema([pa.field("who", pa.string())]), None, "nullable=False"),
        (pa.schema([pa.field("who", pa.float64(), nullable=False)]), None, "key columns"),
        (None, pa.schema([pa.field("who", pa.string())]), "name of its own"),
        (None, pa.schema([pa.field("_odb_bucket", pa.string())]), "is ours"),
        (None, pa.schema([pa.field("n", pa.uint64())]), "signed"),
    ],
)
def test_columns_that_a_state_cannot_have_are_refused(
    key: pa.Schema | None, value: pa.Schema | None, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        state_schema(Broken(key, value))


def test_a_fold_that_breaks_its_contract_is_refused() -> None:
    fold = Accounts()
    good = {"who": "a", "total": 1, "count": 1, "last": "x", "sequence": 0}
    schema = state_schema(fold)
    touched = pa.array([b"a", b"b"])

    def check(rows: list[dict[str, Any]], deleted: list[str] = [], columns: pa.Schema = schema) -> None:  # noqa: B006
        gone = pa.Table.from_pylist([{"who": who} for who in deleted], fold.key)
        checked(fold, Changes(pa.Table.from_pylist(rows, columns), gone), touched)

    check([good])
    for says, arguments in {
        "key twice": ([good, good],),
        "a key twice": ([good], ["a"]),
        "no row had": ([{**good, "who": "c"}],),
        "columns": ([good], [], schema.remove(1)),
        "deleted keys with nulls": ([good], [None]),
        "nulls for total": ([{**good, "total": None}], [], pa.schema([pa.field(f.name, f.type) for f in schema])),
    }.items():
        with pytest.raises(InvalidInput, match=says):
            check(*arguments)  # type: ignore[arg-type]


class Given(Accounts):
    """Gives keys and values of whatever columns a test says."""

    def __init__(self, key: Mapping[str, Any], value: Mapping[str, Any] | None = None) -> None:
        self.given = key, value

    def key_of(self, _: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return self.given[0]

    def step(self, *_: Any) -> Mapping[str, Any] | None:
        return self.given[1]


LINE = pa.RecordBatch.from_pylist(
    [{"_odb_sequence": 7, "_odb_entry_index": 2, "_odb_record_index": 0, "who": "a", "what": "put", "amount": 1}]
)
GOOD = {"total": 1, "count": 1, "last": "x", "sequence": 0}


@pytest.mark.parametrize("value", [None, GOOD], ids=["deleted", "kept"])
@pytest.mark.parametrize("key", [{"who": None}, {}], ids=["null", "left out"])
@pytest.mark.parametrize("scope", [Scope(), Scope.of("a")], ids=["all", "a prefix"])
def test_a_key_of_nulls_is_refused_before_anything_is_written(
    tmp_path: Path, scope: Scope, key: Mapping[str, Any], value: Mapping[str, Any] | None
) -> None:
    state = StateTable(tmp_path / "state", Given(key, value), scope, buckets=4)
    shadow = state.shadow()

    with pytest.raises(InvalidInput, match=r"fold accounts breaks its contract: it gave nulls for the key's who"):
        shadow.add([LINE])

    shadow.write_out()
    assert (shadow.files, list(tmp_path.rglob("*.parquet"))) == ({}, [])


@pytest.mark.parametrize(
    ("fold", "says"),
    [
        (Given({"who": "a"}, {**GOOD, "extra": 5, "more": 6}), "failed in step .*no column for extra, more"),
        (Given({"who": "a", "where": "b"}, GOOD), "failed in key_of .*no column for where"),
    ],
    ids=["value", "key"],
)
def test_names_that_are_no_columns_are_refused_and_not_dropped(tmp_path: Path, fold: Given, says: str) -> None:
    shadow = StateTable(tmp_path / "state", fold, buckets=4).shadow()

    with pytest.raises(InvalidInput, match=f"fold accounts 1 {says}") as raised:
        shadow.add([LINE])

    assert "at sequence 7, entry index 2" in str(raised.value)


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.one_of(st.none(), st.text(max_size=3)), st.booleans()),
    max_size=30,
)


@given(rows=ROWS, cuts=st.lists(st.integers(0, 30), max_size=4))
def test_the_last_row_is_what_plain_python_says_however_rows_are_cut(
    rows: list[tuple[str, int, str | None, bool]], cuts: list[int]
) -> None:
    expected: dict[tuple[str, int], tuple[str | None, int, int]] = {}
    for a, b, text, end in rows:
        if end:
            expected.pop((a, b), None)
        else:
            _, count, total = expected.get((a, b), (None, 0, 0))
            expected[a, b] = (text, count + 1, total + b)
    fold = Latest()
    schema = pa.schema([*KEY, pa.field("text", pa.string()), pa.field("end", pa.bool_())])
    state = state_schema(fold).empty_table()
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for begin, until in pairwise(bounds):
        part = pa.RecordBatch.from_pylist(
            [dict(zip(schema.names, row, strict=True)) for row in rows[begin:until]], schema
        )
        state = _applied(fold, pa.Table.from_batches([fold.keyed(part)]), state)

    found = {(row["a"], row["b"]): (row["text"], row["rows"], row["sum"]) for row in state.to_pylist()}
    assert found == expected


def _applied(fold: Fold, rows: pa.Table, state: pa.Table) -> pa.Table:
    """As a state table does it: a fold sees the state of the keys that it got rows of, and no other."""
    import pyarrow.compute as pc

    codes = codes_of(state, fold.key)
    touched = codes_of(rows, fold.key).unique()
    new, there, gone = checked(fold, fold.apply(rows, state.filter(pc.is_in(codes, touched))), touched)
    kept = state.filter(pc.invert(pc.is_in(codes, pa.concat_arrays([there, gone]))))
    return pa.concat_tables([kept, new])


def test_the_last_of_each_service_and_instance() -> None:
    fold = ServiceLatest()
    entries = [
        logs_of("shop", "1", [9, 13, 17], 1_000),
        logs_of("shop", None, [21], 0),
        logs_of(None, "1", [9]),
        logs_of("", "1", [9]),
        logs_of("till", "1", [9], 7_123),
        logs_of("shop", "1", [10], 500),
    ]
    rows, _ = decoded(OtlpLogs(), entries_batch(entries))
    schema = pa.schema([*_order_fields(), *(each for each in OtlpLogs().schema if each.name in fold.reads)])
    block = pa.RecordBatch.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)

    state = _applied(fold, pa.Table.from_batches([fold.keyed(block)]), state_schema(fold).empty_table())

    found = {(row["ServiceName"], row["ServiceInstanceId"]): row for row in state.to_pylist()}
    assert set(found) == {("shop", "1"), ("shop", ""), ("till", "1")}
    last = found["shop", "1"]
    assert (last["LastSeenUnixNano"], last["LastSeverityText"], last["LastSeverityNumber"]) == (500, "S10", 10)
    assert (last["Records"], last["Warnings"], last["Errors"]) == (4, 1, 1)
    assert (last["_odb_sequence"], last["_odb_record_index"]) == (105, 0), (
        "the last by sequence, whatever its clock said"
    )
    assert found["shop", ""]["LastSeenUnixNano"] == 5_000, "when it was observed, where it has no time"
    assert found["till", "1"]["LastSeenUnixNano"] == 7_123, "exactly"
    assert found["till", "1"]["LastSeen"].microsecond == 7


def test_both_columns_of_when_a_service_was_seen_are_of_one_time() -> None:
    fold = ServiceLatest()
    rows, _ = decoded(OtlpLogs(), entries_batch([logs_of("shop", "1", [9], 2**63 + 5)]))
    schema = pa.schema([*_order_fields(), *(each for each in OtlpLogs().schema if each.name in fold.reads)])
    row = {**{name: rows[0][name] for name in schema.names}, "ObservedTimestamp": 7, "ObservedTimestampUnixNano": 7_000}

    (found,) = fold.keyed(pa.RecordBatch.from_pylist([row], schema)).to_pylist()

    assert (found["LastSeen"], found["LastSeenUnixNano"]) == (None, 5 - 2**63), "what came, and nothing is guessed"


class Failing(Accounts):
    """That knows no b."""

    def key_of(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return {"who": {"a": "a"}[row["who"]]}


def test_a_fold_that_fails_names_the_row() -> None:
    schema = pa.schema([*_order_fields(), pa.field("who", pa.string())])
    rows = [dict(zip(schema.names, (7, at, 0, who), strict=True)) for at, who in enumerate("aab")]

    with pytest.raises(InvalidInput, match=r"fold accounts 1 failed in key_of at sequence 7, entry index 2.*KeyError"):
        Failing().keyed(pa.RecordBatch.from_pylist(rows, schema))
    assert len(Failing().keyed(pa.RecordBatch.from_pylist(rows[:2], schema))) == 2


def _order_fields() -> list[pa.Field]:
    return [pa.field(name, pa.int64()) for name in ("_odb_sequence", "_odb_entry_index", "_odb_record_index")]


def test_folds_are_found_by_name() -> None:
    assert isinstance(find_fold("service_latest"), ServiceLatest)
    assert isinstance(find_fold("tests.lake.states:Accounts"), Accounts)
    for name in ("nothing", "tests.lake.states:Nothing", "no_such_module:X", "tests.lake.states:World"):
        with pytest.raises(InvalidInput, match=r"fold|Fold"):
            find_fold(name)
