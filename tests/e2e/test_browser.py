"""What a person sees in the UI, and can do there."""

from __future__ import annotations

import json
import operator
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from objbuf_dagster.protocol import Metadata
from objbuf_dagster.ranges import SequenceRange
from tests.e2e.browsing import browser, page_at
from tests.e2e.deployment import CHECKS, Deployment
from tests.e2e.running import PATIENCE_SECONDS
from tests.support.buffers import append, put_batch

pytestmark = pytest.mark.timeout(1800)

SENSOR = "/locations/objbuf/sensors/buffer_sensor"
NUMBERS = ("rows", "batches", "bytes", "files", "seconds", "MB/s", "lag_seconds")
BUFFER = ("epoch", "frontier", "next_sequence", "queue_length", "lag_seconds", "in_flight", "failed_ranges")
REGULATOR = ("in_flight_bytes", "held", "budget_bytes", "pressure", "rho", "catch_up_seconds")
STATE = (*BUFFER, *REGULATOR)

ODD = (
    "\x1b[2J\x1b]0;title\x07\0\r\n\t\x7f\x9b31m",
    "\u202ethgir ot tfel\u202c\u2028\ufeff",
    "<b id=injected>bold</b><script>window.injected = 1</script><img src=x onerror='window.injected = 1'>",
    "| a | b |\n| --- | --- |\n| **c** | [d](javascript:window.injected=1) |",
)
"""What moves cursors, turns text round, is markup or a table elsewhere; each is an entry and a part of the metadata."""
ODD_LOCATION = "ingest/<b id=injected>|\u202e'\"<script>window.injected=1.batch"

ODD_KEYS = ("\x1b[2J\u202e<b id=injected>x</b>", "a\nb")
"""Partitions that somebody adds; Dagster takes them."""

_METADATA = """query($partitions: [String!]) { assetNodeOrError(assetKey: {path: ["entries"]}) {
    ... on AssetNode { assetMaterializations(partitions: $partitions) { metadataEntries { label
        ... on TextMetadataEntry { text } ... on TableMetadataEntry { table { records } } } } } } }"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Closed with the last test here: while it is open, an event loop runs, and Dagster cannot start one of its own."""
    expect.set_options(timeout=PATIENCE_SECONDS / 5 * 1000)
    with browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept: in OBJBUF_TEST_ARTEFACTS, or with pytest's other files."""
    named = os.environ.get("OBJBUF_TEST_ARTEFACTS")
    place = Path(named) if named else tmp_path_factory.mktemp("pictures")
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture
def page(chromium: Browser, deployed: Deployment, pictures: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """On the deployment's UI. Chromium comes first: without one nothing needs to be started."""
    with page_at(chromium, deployed.dagster.url, pictures, request.node.name) as opened:
        yield opened


def test_every_range_is_a_materialised_partition_with_its_numbers_and_rows(page: Page, deployed: Deployment) -> None:
    keys = deployed.dagster.materialised()
    page.goto("/assets/entries?view=partitions")
    expect(page.get_by_text(f"Materialized ({len(keys)})")).to_be_visible()
    expect(page.get_by_text("Failed (0)")).to_be_visible()
    for key in keys:
        expect(page.get_by_title(key).first).to_be_visible()

    page.get_by_title(keys[0]).first.click()

    expect(page.get_by_text("Materialized", exact=True)).to_be_visible()
    for name in (*NUMBERS, "preview"):
        expect(page.get_by_role("cell", name=name, exact=True)).to_be_visible()

    page.goto(f"/assets/otel_logs?view=partitions&partition={keys[0]}")

    for name in ("rows", "entries", "dead_letters", "decoder", "preview"):
        expect(page.get_by_role("cell", name=name, exact=True)).to_be_visible()
    expect(page.get_by_role("cell", name=re.compile(r"^producer-\d+ \d+$")).first).to_be_attached()


def test_the_asset_has_plots_over_its_ranges_and_passed_checks(page: Page, deployed: Deployment) -> None:
    page.goto("/assets/entries?view=overview")
    page.get_by_role("button", name="Plots").click()
    for name in NUMBERS:
        expect(page.get_by_text(name, exact=True)).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()
    assert page.locator("canvas").count() >= len(NUMBERS)

    page.goto("/assets/entries?view=checks")
    for name in CHECKS:
        expect(page.get_by_text(name, exact=True).first).to_be_visible()


def test_the_buffer_is_an_external_asset_with_observations_and_plots(page: Page, deployed: Deployment) -> None:
    page.goto("/assets/buffer?view=overview")
    expect(page.get_by_text("External Asset")).to_be_visible()
    page.get_by_role("button", name="Plots").click()
    for name in STATE:
        expect(page.get_by_text(name, exact=True)).to_be_visible()
    expect(page.locator("canvas").nth(len(STATE) - 1)).to_be_attached()  # one more, where the sensor itself has acked

    page.goto("/assets/buffer?view=events")
    expect(page.get_by_text("Observed", exact=True)).to_be_visible()
    frontier = page.get_by_role("row").filter(has=page.get_by_role("cell", name="frontier", exact=True))
    expect(frontier).to_contain_text(str(deployed.dagster.frontier))


def test_a_tick_of_the_sensor_says_in_a_sentence_what_it_saw(page: Page, deployed: Deployment) -> None:
    page.goto(SENSOR)
    expect(page.get_by_text("Running", exact=True)).to_be_visible()
    expect(page.get_by_text("Owns the buffer 'buffer'")).to_be_visible()
    expect(page.get_by_role("button", name="View logs").nth(3)).to_be_visible()

    page.get_by_role("button", name="0 runs requested").nth(2).click()  # the latest ones move while one looks

    tick = page.get_by_role("dialog")
    expect(tick.get_by_text("Tick for buffer_sensor")).to_be_visible()
    expect(tick.get_by_text(re.compile(r"Skip reason: epoch 1, frontier \d+, \d+ batch(es)? queued"))).to_be_visible()


def test_a_backfill_of_ranges_is_launched_by_clicking(page: Page, deployed: Deployment) -> None:
    # given
    dagster = deployed.dagster
    keys = dagster.materialised()[:2]
    before, frontier = [dagster.runs_of(key) for key in keys], dagster.frontier
    page.goto("/assets/entries?view=partitions")
    # when
    page.get_by_role("button", name="Materialize…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Select a partition or create one").click()
    for key in keys:
        page.get_by_role("menuitem", name=key).click()
    page.keyboard.press("Escape")
    dialog.get_by_role("button", name="Launch").click()
    # then: one run lands both, and leaves the frontier where it is
    dagster.wait_until("the ranges came again", lambda: all(map(operator.ne, map(dagster.runs_of, keys), before)))
    deployed.settle()
    after = [dagster.runs_of(key) for key in keys]
    assert [runs[1:] for runs in after] == before
    assert after[0][0] == after[1][0]
    tags = dagster.tags_of(after[0][0])
    assert "dagster/backfill" in tags
    assert "dagster/sensor_name" not in tags, "the click started it, and not the sensor"
    assert [tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end")] == keys
    assert dagster.frontier == frontier
    page.goto(f"/assets/entries?view=partitions&partition={keys[0]}")
    expect(page.get_by_text(f"View all historical events ({len(before[0]) + 1})")).to_be_visible()
    deployed.assert_exactly_once()


def produced_oddly(deployed: Deployment) -> str:
    """The partition of a batch that somebody who means harm has appended by hand. The ledgers know its entries."""
    store = deployed.dagster.buffer_at.open()
    put_batch(store, ODD_LOCATION, [text.encode() for text in ODD])
    now = int(time.time() * 1000)
    items = [Metadata(index, now, text.encode()) for index, text in enumerate(ODD)]
    sequence = append(store, ODD_LOCATION, items)
    ledger = deployed.place / f"odd-{len(deployed.ledgers)}"
    lines = [{"sent": list(ODD)}, *([sequence, index, text] for index, text in enumerate(ODD))]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    deployed.ledgers.append(ledger)
    deployed.settle()
    return SequenceRange(sequence, sequence).key


def test_odd_entries_metadata_and_locations_are_plain_text_to_the_ui(page: Page, deployed: Deployment) -> None:
    # given
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    key = produced_oddly(deployed)
    # then: GraphQL gives text that any terminal and browser can bear
    (event,) = deployed.dagster.query(_METADATA, partitions=[key])["assetNodeOrError"]["assetMaterializations"]
    by_label = {entry["label"]: entry for entry in event["metadataEntries"]}
    texts = [entry["text"] for entry in by_label.values() if "text" in entry]
    preview = [json.loads(record) for record in by_label["preview"]["table"]["records"]]
    values = [*texts, *(value for row in preview for value in row.values())]
    assert [value for value in values if not value.isprintable()] == []
    assert (
        [row["entry"] for row in preview] == [row["_odb_metadata"] for row in preview] == [ascii(t)[1:-1] for t in ODD]
    )
    # and: a browser shows just that, as text
    page.goto(f"/assets/entries?view=partitions&partition={key}")
    expect(page.get_by_text("Materialized", exact=True)).to_be_visible()
    cells = page.get_by_role("cell")
    for row in preview:
        for name in ("entry", "_odb_metadata", "_odb_data_path"):
            expect(cells.get_by_text(row[name], exact=True).first).to_be_attached()
    shown = cells.all_text_contents()
    assert [text for text in shown if not text.isprintable()] == []
    assert page.locator("#injected, td script, td b, td img, td a[href^='javascript']").count() == 0
    assert page.evaluate("window.injected") is None
    assert errors == []
    # and: they are dead letters, which the asset of these tells
    page.goto(f"/assets/dead_letters?view=partitions&partition={key}")
    expect(page.get_by_text("Materialized", exact=True)).to_be_visible()
    letters = page.get_by_role("row").filter(has=page.get_by_role("cell", name="dead_letters", exact=True))
    expect(letters).to_contain_text(str(len(ODD)))
    assert page.evaluate("window.injected") is None
    # and: the page works as before, and so does the rest
    page.goto("/assets/entries?view=partitions")
    expect(page.get_by_title(key).first).to_be_visible()
    deployed.assert_exactly_once()


def test_partitions_that_are_no_ranges_are_plain_text_to_the_ui_and_stop_nothing(
    page: Page, deployed: Deployment
) -> None:
    # given
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    dagster = deployed.dagster
    failed_ticks, failed = dagster.failed_ticks(), dagster.runs("FAILURE")
    for key in ODD_KEYS:
        dagster.add_partition(key)
    try:
        # then: a browser shows them as text
        assert dagster.not_materialised() == list(ODD_KEYS)
        page.goto("/assets/entries?view=partitions")
        expect(page.get_by_text(f"Missing ({len(ODD_KEYS)})")).to_be_visible()
        for key in ODD_KEYS:
            page.goto(f"/assets/entries?view=partitions&partition={quote(key, safe='')}")
            expect(page.get_by_title(key).first).to_be_attached()
            assert page.locator("#injected").count() == 0
        # and: a run of one says what is wrong with it
        for key in ODD_KEYS:
            dagster.backfill(key)
            dagster.wait_until("the run failed", lambda: set(dagster.runs("FAILURE")) - set(failed))
            (run,) = set(dagster.runs("FAILURE")) - set(failed)
            failed.append(run)
            said = dagster.failures_of(run)
            assert f"not a range: {key!a}" in said
            assert "a range is written as 000000000000-000000000099" in said
            page.goto(f"/runs/{run}")
            expect(page.get_by_text("not a range").first).to_be_visible()
            assert page.locator("#injected").count() == 0
        # and: what comes lands and is acked, with such partitions there
        frontier = dagster.frontier
        deployed.produce_a_few_ranges()
        deployed.settle()
        assert dagster.frontier > frontier
        page.goto(SENSOR)
        expect(page.get_by_text("Running", exact=True)).to_be_visible()
        assert dagster.failed_ticks() == failed_ticks
        assert errors == []
    finally:
        dagster.delete_partitions(*ODD_KEYS)
    deployed.assert_exactly_once()
