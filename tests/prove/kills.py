"""Kill -9, anything, at any moment: the real deployment is restarted, settles, and has every durable entry once.

Each round starts producers, waits for a moment of its target's life, kills it, lets the producers end, starts again
what ended, waits until all is landed and acked, and compares the table with what the producers were told. A round that
fails leaves its folder, and says where; `make prove ARGS='kills --round N'` tries one alone, on a fresh deployment.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from tests.prove.kill_stage import Stage, deployed
from tests.prove.kill_targets import TARGETS
from tests.prove.proof import Proof, Size, timed

_ATTEMPTS = 8
"""At the moment of a target's life that is meant."""

_KILLS = 200

_LEAST = 5
"""Of them, of each target at full size."""

_LARGE = ("the code server", "a run that writes", "a run that decoded", "a run that kept dead letters")
"""Killed at full size only: each is much like another one."""

_WAITS = ("3", "1")
"""Seconds that a batch waits for its range, in each deployment: with one second a round has several runs at a time, and
takes longer for it."""


@dataclass(frozen=True, slots=True)
class Share:
    """What is killed on one deployment: rounds with their numbers, until so many of them were hit."""

    rounds: tuple[tuple[int, str], ...]
    wanted: int
    max_wait: str


def prove(size: Size) -> Iterator[Proof]:
    given = shares(size)
    wanted = sum(share.wanted for share in given)
    proof = Proof("kill -9, then restart, settle and compare", "kills", wanted=wanted, wanted_parts=wanted_parts(size))
    with timed(proof):
        if len(given) == 1:
            found = [_share(size, given[0])]
        else:
            with ProcessPoolExecutor(len(given), get_context("spawn")) as pool:
                found = list(pool.map(_share, repeat(size), given))
    for one in found:
        proof.tried += one.tried
        proof.lost += one.lost
        proof.doubled += one.doubled
        proof.invented += one.invented
        proof.parts += one.parts
        proof.notes += one.notes
    proof.notes.insert(0, ", ".join(f"{target} {times}" for target, times in sorted(proof.parts.items())))
    proof.notes += [f"too seldom: {target}" for target in proof.short]
    yield proof


def shares(size: Size) -> list[Share]:
    """One for each deployment, as most of a round is spent waiting. A round that is tried alone is on one like its."""
    stages = size.pick(1, len(_WAITS))
    rounds = list(enumerate(_targets(size), 1))
    assert size.round in (None, *range(1, len(rounds) + 1)), f"there are {len(rounds)} rounds"
    found = []
    for stage, max_wait in enumerate(_WAITS[:stages]):
        own = tuple(one for one in rounds[stage::stages] if size.round in (None, one[0]))
        wanted = size.pick(len(rounds), _KILLS // stages) if size.round is None else 1
        if own:
            found.append(Share(own, wanted, max_wait))
    return found


def wanted_parts(size: Size) -> dict[str, int]:
    """How often each target must be hit: two hundred kills of something else show nothing of it."""
    if size.round is not None:
        return {}
    return {target: size.pick(1, _LEAST) for target in TARGETS if target not in size.pick(_LARGE, ())}


def _share(size: Size, share: Share) -> Proof:
    """These rounds, on a deployment of their own."""
    proof = Proof("", "")
    parent = os.getppid()
    folder = Path(tempfile.mkdtemp(prefix="objbuf-kills-"))
    misses, number, target = 0, 0, "starting"
    try:
        with deployed(folder, share.max_wait) as stage:
            for number, target in share.rounds:
                assert os.getppid() == parent, "who wanted to know is gone"
                misses += _round(size, number, target, stage, proof)
                if proof.lost or proof.doubled or proof.invented:
                    break  # the first kill that breaks a promise is the one to look at
                if proof.tried >= share.wanted:
                    break
            proof.notes.append(f"{stage.landed:,} rows at the end; {misses} times it was over before its moment came")
    except Exception as error:  # noqa: BLE001, whatever it was, it came of a kill
        proof.tried += 1
        proof.invented += 1
        proof.notes.append(f"round {number}, {target}: {type(error).__name__}: {str(error)[:2000]}")
    if not (proof.lost or proof.doubled or proof.invented):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        proof.notes.append(f"round {number}, {target}, seed {size.seed}: all is left as it was in {folder}")
    return proof


def _round(size: Size, number: int, target: str, stage: Stage, proof: Proof) -> int:
    """One kill, compared; how often its moment was missed before."""
    started = time.monotonic()
    print(f"    round {number}: {target} (seed {size.seed}) ...", flush=True)
    stage.haste = 1.0
    for misses in range(_ATTEMPTS):
        hit = TARGETS[target](stage, size.chance("kill", number, misses + 1))
        killed = time.monotonic()
        stage.recover()
        recovered = time.monotonic()
        stage.compare(proof)
        if hit or proof.lost or proof.doubled or proof.invented:
            break
        stage.haste *= 2
    else:
        misses = _ATTEMPTS
    proof.tried += hit
    proof.parts[target] += hit
    done = time.monotonic()
    print(
        f"    round {number}: {target}; {stage.landed:,} rows, {misses} misses, {done - started:.0f} s (last, "
        f"{recovered - killed:.0f} to recover, {done - recovered:.0f} to compare)",
        flush=True,
    )
    return misses


def _targets(size: Size) -> list[str]:
    """Each target once; or turns of all, each in an order of its own, and as many again for those that are missed."""
    wanted = size.pick(len(TARGETS) - len(_LARGE), 2 * _KILLS)
    drawn: list[str] = []
    while len(drawn) < wanted:
        turn = sorted(target for target in TARGETS if target not in size.pick(_LARGE, ()))
        size.chance("turn", len(drawn)).shuffle(turn)
        drawn += turn
    return drawn[:wanted]
