"""A table as a directory and back: all of one version, or a refusal that changes nothing."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from objbuf_dagster.errors import CorruptData, InvalidInput, NotFound, ObjbufError, StorageError, UnsupportedVersion
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.failures import NoTable
from objbuf_dagster.lake.files import batches_of
from objbuf_dagster.lake.state import StateTable
from objbuf_dagster.lake.state_cursor import StateCursor
from objbuf_dagster.lake.transfer import Transferred, export_table, import_table
from tests.cli.commands import files_in
from tests.lake import landings
from tests.lake.states import QUICK, Accounts, World, some_entries
from tests.lake.test_state import More
from tests.support.proxy import Proxy, Request, Spoiling, proxied
from tests.support.s3 import S3Location


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(str(tmp_path / "lake"))
    rng = random.Random(2)
    start = 0
    for _ in range(3):
        start = world.land(start, some_entries(rng, 3)).end + 1
    world.apply()
    return world


@pytest.fixture
def exported(world: World, tmp_path: Path) -> Path:
    export_table(world.state, tmp_path / "export")
    return tmp_path / "export"


def batches(world: World) -> tuple[str, str] | None:
    cursor = world.state.cursor()
    assert cursor is not None
    return batches_of(world.entries.files([cursor.last_range]))


def bring_in(world: World, exported: Path, target: Path) -> Transferred:
    return import_table(exported, StateTable(target, Accounts(), buckets=4), fold=Accounts(), batches=batches(world))


def resum(exported: Path) -> None:
    """Somebody who damages it on purpose makes the checksums fit."""
    paths = [path for path in sorted(exported.rglob("*")) if path.is_file() and path.name != "SHA256SUMS"]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(exported)}\n" for path in paths]
    (exported / "SHA256SUMS").write_text("".join(lines))


def test_what_comes_back_is_the_same_state_and_goes_on(world: World, exported: Path, tmp_path: Path) -> None:
    done = bring_in(world, exported, tmp_path / "lake" / "again")

    again = World(world.url, landed=dict(world.landed))
    again.state = StateTable(tmp_path / "lake" / "again", Accounts(), buckets=4)
    assert again.found() == world.found() == world.expected()
    assert again.state.cursor() == world.state.cursor()
    assert done.rows == len(world.expected())
    again.land(again.state.load().cursor.next_sequence, [["a1 put 5", "zz put 1"]])  # type: ignore[union-attr]
    assert again.apply().ranges == 1
    assert again.found() == again.expected()


def test_an_export_is_plain_files_that_other_tools_can_check(world: World, exported: Path) -> None:
    names = {path.name for path in exported.iterdir()}
    assert names == {"manifest.json", "cursor.json", "schema.json", "data", "SHA256SUMS"}
    cursor = StateCursor.from_json(json.loads((exported / "cursor.json").read_text()))
    assert cursor == world.state.cursor()
    if tool := shutil.which("sha256sum"):
        subprocess.run([tool, "-c", "--strict", "SHA256SUMS"], cwd=exported, check=True, capture_output=True)
    assert [path for path in exported.parent.iterdir() if path.name.endswith(".part")] == []


def test_tables_of_ranges_go_the_same_way(tmp_path: Path) -> None:
    table = LakeTable(tmp_path / "entries")
    for number in (0, 1, 3):
        landings.land(table, landings.key(number))
    table.commit(landings.key(4), [], epoch=1)

    done = export_table(table, tmp_path / "export")
    import_table(tmp_path / "export", LakeTable(tmp_path / "again"))

    again = LakeTable(tmp_path / "again")
    assert done.cursor == {"runs": [[0, 19], [30, 49]]}
    assert landings.sequences(again) == landings.sequences(table)
    assert again.ranges() == table.ranges()
    assert {file.path: file.stats for file in again.files()} == {file.path: file.stats for file in table.files()}
    landings.land(again, landings.key(2))
    assert landings.sequences(again) == list(range(40))


def test_an_export_while_ranges_land_is_of_one_cursor(world: World, tmp_path: Path) -> None:
    ended = threading.Event()
    failures: list[BaseException] = []

    def apply() -> None:
        rng = random.Random(8)
        other = World(world.url, landed=world.landed)
        try:
            start = max(one.end for one in world.landed) + 1
            while not ended.is_set():
                start = other.land(start, some_entries(rng, 1)).end + 1
                other.apply()
        except BaseException as error:  # noqa: BLE001  told by the test
            failures.append(error)

    thread = threading.Thread(target=apply)
    thread.start()
    seen = set()
    try:
        for number in range(60):
            export_table(world.state, tmp_path / f"export{number}")
            import_table(
                tmp_path / f"export{number}", LakeTable(tmp_path / f"again{number}"), fold=Accounts(), trust=True
            )
            again = World(world.url, landed=dict(world.landed))
            again.state = StateTable(tmp_path / f"again{number}", Accounts(), buckets=4)
            cursor = again.state.cursor()
            assert cursor is not None
            assert again.found() == again.expected(through=cursor.next_sequence - 1)
            seen.add(cursor.next_sequence)
            if number >= 4 and len(seen) > 2:
                break
    finally:
        ended.set()
        thread.join()
    assert failures == []
    assert len(seen) > 2, "nothing landed meanwhile"


def damages() -> Iterator[tuple[str, str]]:
    for what in ("flip", "cut", "grow", "delete", "empty"):
        for path in ("manifest.json", "cursor.json", "schema.json", "data", "SHA256SUMS"):
            yield what, path


@pytest.mark.parametrize(("what", "path"), list(damages()))
def test_damage_of_any_file_is_refused_before_anything_is_written(
    world: World, exported: Path, tmp_path: Path, what: str, path: str
) -> None:
    victim = exported / path
    if path == "data":
        victim = max(exported.rglob("*.parquet"), key=lambda file: file.stat().st_size)
    data = victim.read_bytes()
    if what == "delete":
        victim.unlink()
    elif what == "flip":
        middle = len(data) // 2
        victim.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        victim.write_bytes({"cut": data[:-7], "grow": data + b"\nmore", "empty": b""}[what])

    with pytest.raises((CorruptData, InvalidInput)):
        bring_in(world, exported, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"kind": "other"},
        {"partitions": ["_odb_range"]},
        {"files": []},
        {"files": [{"path": "../../x.parquet", "size": 1, "rows": 0, "partition": {}, "stats": {}}]},
    ],
)
def test_a_manifest_that_lies_is_refused_although_its_checksum_fits(
    world: World, exported: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    manifest = json.loads((exported / "manifest.json").read_text())
    (exported / "manifest.json").write_text(json.dumps({**manifest, **change}))
    resum(exported)

    with pytest.raises((CorruptData, InvalidInput, UnsupportedVersion)):
        bring_in(world, exported, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_cursor_that_was_put_forward_is_refused(world: World, exported: Path, tmp_path: Path) -> None:
    cursor = json.loads((exported / "cursor.json").read_text())
    cursor |= {"last_range": "000000000000-000000000099", "next_sequence": 100}
    (exported / "cursor.json").write_text(json.dumps(cursor))
    resum(exported)

    with pytest.raises(CorruptData, match="cursor is not the one that its data has"):
        bring_in(world, exported, tmp_path / "again")


def test_files_and_links_that_do_not_belong_there_are_refused(world: World, exported: Path, tmp_path: Path) -> None:
    (exported / "data" / "more.parquet").write_bytes(b"x")
    with pytest.raises(CorruptData, match="not in SHA256SUMS"):
        bring_in(world, exported, tmp_path / "again")
    (exported / "data" / "more.parquet").unlink()
    victim = next(exported.rglob("*.parquet"))
    victim.rename(tmp_path / "elsewhere")
    victim.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptData, match="is a link"):
        bring_in(world, exported, tmp_path / "again")


def test_a_foreign_cursor_is_refused(world: World, exported: Path, tmp_path: Path) -> None:
    target = LakeTable(tmp_path / "again")
    ours = batches(world)
    with pytest.raises(InvalidInput, match=r"cursor is foreign: its fold accounts has version 1, not 2.*rebuild"):
        import_table(exported, target, fold=More(), batches=ours)
    with pytest.raises(InvalidInput, match=r"of another buffer.*rebuild"):
        import_table(exported, target, fold=Accounts(), batches=("ingest/x.batch", "ingest/y.batch"))
    with pytest.raises(InvalidInput, match=r"nothing here tells.*land that range first, or pass --trust-cursor"):
        import_table(exported, target, fold=Accounts())
    assert not (tmp_path / "again").exists()
    import_table(exported, target, fold=Accounts(), trust=True)


def test_a_place_with_something_in_it_is_refused(world: World, exported: Path, tmp_path: Path) -> None:
    before = files_in(Path(world.url) / "accounts")
    with pytest.raises(InvalidInput, match=r"accounts is not empty.*where nothing is"):
        bring_in(world, exported, Path(world.url) / "accounts")
    assert files_in(Path(world.url) / "accounts") == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match=r"notes\.txt"):
        bring_in(world, exported, tmp_path / "other")
    with pytest.raises(InvalidInput, match="is not empty"):
        export_table(world.state, tmp_path / "other")
    with pytest.raises(InvalidInput, match="is no export"):
        bring_in(world, tmp_path / "other", tmp_path / "again")
    (tmp_path / "empty").mkdir()
    export_table(world.state, tmp_path / "empty")


def test_what_cannot_be_exported_says_so_and_leaves_nothing(world: World, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="check its URL"):
        export_table(LakeTable(tmp_path / "nowhere"), tmp_path / "export")
    state = StateTable(tmp_path / "new", Accounts())
    state.load_or_create()
    with pytest.raises(InvalidInput, match="nothing to export"):
        export_table(state, tmp_path / "export")
    for file in (Path(world.url) / "accounts").rglob("_odb_bucket=0*/*.parquet"):
        file.unlink()
    with pytest.raises(NotFound):
        export_table(world.state, tmp_path / "export")
    assert not (tmp_path / "export").exists()
    assert not list(tmp_path.glob(".export*"))


def test_a_directory_that_refuses_is_named(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="check the disk"):
        export_table(world.state, tmp_path / "file" / "export")


def test_the_current_directory_is_refused_before_anything_is_copied(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be replaced, and whoever is in it would look at nothing."""
    (tmp_path / "here" / "inside").mkdir(parents=True)
    (tmp_path / "here" / "inside").rmdir()
    monkeypatch.chdir(tmp_path / "here")
    for directory in (".", tmp_path / "here", "inside/.."):
        with pytest.raises(InvalidInput, match=r"here cannot be replaced.*name a directory inside of it"):
            export_table(world.state, directory)
    assert [*tmp_path.glob(".*"), *tmp_path.glob("here/.*"), *tmp_path.glob("here/*")] == []
    export_table(world.state, "./inside/../new")
    bring_in(world, tmp_path / "here" / "new", tmp_path / "again")


def there(table: LakeTable) -> bool:
    try:
        table.open_delta()
    except NoTable:
        return False
    return True


@pytest.fixture
def proxy(s3: S3Location) -> Iterator[Proxy]:
    with proxied(s3) as found:
        yield found


def test_an_import_that_dies_at_any_request_can_be_repeated(world: World, exported: Path, proxy: Proxy) -> None:
    options, done, number = proxy.location.options, False, 0
    while not done:
        number += 1
        left = number

        def die(request: Request) -> Spoiling:
            nonlocal left
            left -= 1
            return 403 if left < 1 else None

        target = LakeTable(f"{proxy.location.url}/again{number % 4}", options=options, retry=QUICK)
        proxy.spoil = die
        try:
            import_table(exported, target, fold=Accounts(), batches=batches(world))
            done = True
        except ObjbufError:
            pass
        proxy.spoil = lambda request: None
        if not there(target):
            import_table(exported, target, fold=Accounts(), batches=batches(world))
        again = World(world.url, landed=dict(world.landed))
        again.state = StateTable(target.url, Accounts(), buckets=4, options=options)
        assert again.found() == world.expected()
        target.store.delete([info.path for info in target.store.list()])
    assert number > 5
