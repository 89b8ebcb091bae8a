"""A proof that cannot fail proves nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.prove.proof import HEADING, Entry, Proof, recorded

TOLD: list[Entry] = [(0, 0, "a"), (0, 1, "b"), (1, 0, "c")]
SENT = {"a", "b", "c", "unsure"}


@pytest.mark.parametrize(
    ("landed", "lost", "doubled", "invented"),
    [
        (TOLD, 0, 0, 0),
        ([*TOLD, (2, 0, "unsure")], 0, 0, 0),
        (TOLD[1:], 1, 0, 0),
        ([*TOLD, TOLD[0]], 0, 1, 0),
        ([*TOLD, (2, 0, "a")], 0, 1, 1),
        ([*TOLD, (2, 0, "unsure"), (3, 0, "unsure")], 0, 1, 0),
        ([*TOLD, (1, 0, "unsure")], 0, 1, 0),
        ([*TOLD, (2, 0, "never sent")], 0, 0, 1),
        ([(0, 0, "a"), (0, 1, "b"), (2, 0, "c")], 1, 0, 1),
        ([], 3, 0, 0),
    ],
    ids=["exact", "unsure once", "lost", "twice", "twice elsewhere", "unsure twice", "one place for two", "invented",
         "misplaced", "nothing"],
)  # fmt: skip
def test_what_is_wrong_with_a_table_is_counted(landed: list[Entry], lost: int, doubled: int, invented: int) -> None:
    proof = Proof("a table", "entries", tried=1)

    proof.compare(TOLD, SENT, landed)

    assert (proof.lost, proof.doubled, proof.invented) == (lost, doubled, invented)
    assert proof.holds == (lost == doubled == invented == 0)


def test_a_proof_that_tried_nothing_does_not_hold() -> None:
    assert not Proof("nothing", "tries").holds


def test_a_proof_that_tried_less_than_it_should_does_not_hold() -> None:
    assert not Proof("kills", "kills", tried=199, wanted=200).holds
    assert Proof("kills", "kills", tried=200, wanted=200).holds


def test_a_proof_that_tried_one_kind_less_than_it_should_does_not_hold() -> None:
    wanted = {"a run": 5, "the daemon": 5}
    proof = Proof("kills", "kills", tried=200, wanted=200, wanted_parts=wanted, parts=Counter({"a run": 200}))

    assert proof.short == ["the daemon"]
    assert not proof.holds

    proof.parts["the daemon"] = 5
    assert proof.short == []
    assert proof.holds


def test_the_lines_of_proofs_are_left_where_the_suite_s_artefacts_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OBJBUF_TEST_ARTEFACTS", str(tmp_path / "artefacts"))
    proofs = [Proof("kills", "kills", tried=13, notes=["a note"]), Proof("points", "points", tried=1_138, lost=2)]

    assert recorded(proofs) == proofs

    first, note, second = (tmp_path / "artefacts" / "proofs.txt").read_text().splitlines()
    assert (first.split(), note, second.split()) == (
        ["kills", "13", "kills", "0", "0", "0", "0.0"],
        "    a note",
        ["points", "1,138", "points", "2", "0", "0", "0.0"],
    )
    assert len(first) == len(second) == len(HEADING)
