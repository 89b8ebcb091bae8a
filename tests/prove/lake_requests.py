"""Every request of a landing to its bucket goes wrong once, in every way: the table's files, its log, its commits.

The same small pipeline, with its table behind an S3 server. What goes wrong is what a server or the way to it does:
nothing was done and nobody knows why (503), it was refused (403), it was done and the answer was lost, it was done
twice, or it was done after the client was told that it failed: before whatever the client does about that, or after. So
a process that dies before its commit, or between the commit and hearing of it, is among them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from objbuf_dagster.errors import ObjbufError
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.store import RetryPolicy
from tests.prove.proof import Proof, Size, timed
from tests.prove.small_pipeline import SmallPipeline, World
from tests.support.faults import AT_ONCE
from tests.support.proxy import Request, Spoiling, proxied
from tests.support.s3 import S3Location, has_real_server, real_s3_server, s3_server

WAYS: tuple[Spoiling, ...] = (503, 403, "lost", "twice", "late", "overdue")
FEW = 10
"""Requests that are tried at the small size."""

_QUICK = RetryPolicy(attempts=1, base_seconds=0.001, cap_seconds=0.001)
_COMMIT = re.compile(r"/_delta_log/\d{20}\.json$")
_TOLD = 5
_COUNTS = 3
_GOES = 10
"""Runs that count the requests, and runs until one of them comes to a request: about one landing in 300 makes three
requests fewer than the others."""


@dataclass(frozen=True, slots=True)
class Trial:
    pipeline: SmallPipeline
    requests: list[Request]
    spoiled: list[Request]
    """The one that went wrong; none, if it did not come to that."""
    errors: list[ObjbufError]
    wrongs: list[str]


def run(location: S3Location, number: int | None, way: Spoiling) -> Trial:
    """Produce, and land a range twice, with this request (from 1) going wrong in this way, if any, on to its end."""
    truth = LakeTable(location.url, options=location.options)
    spoiled: list[Request] = []
    with proxied(location) as proxy:

        def spoil(request: Request) -> Spoiling:
            if request.number != number:
                return None
            spoiled.append(request)
            return way

        proxy.spoil = spoil
        table = LakeTable(proxy.location.url, options=proxy.location.options, retry=_QUICK)
        pipeline = SmallPipeline(World(truth), table, {}, AT_ONCE, also_late=proxy.deliver)
        errors, wrongs = pipeline.run(pipeline.landing_steps())
        return Trial(pipeline, list(proxy.requests), spoiled, errors, wrongs)


def prove(size: Size) -> Iterator[Proof]:
    proof = Proof("a request to the table's bucket goes wrong (land, commit)", "points")
    whats: Counter[str] = Counter()
    errors = goes = 0
    with timed(proof), size.pick(s3_server, real_s3_server)() as root:
        requests = max(len(run(root.fresh(), None, None).requests) for _ in range(_COUNTS))
        every = [(number, way) for number in range(1, requests + 1) for way in WAYS]
        chosen = size.pick(size.chance("lake requests").sample(every, FEW), every)
        proof.wanted = len(chosen)
        for number, way in chosen:
            for _ in range(_GOES):
                goes += 1
                try:
                    trial = run(root.fresh(), number, way)
                except Exception as error:  # noqa: BLE001, only errors of ours may come out
                    _blame(proof, number, way, [f"{type(error).__name__}: {error}"])
                    break
                proof.compare(trial.pipeline.told, trial.pipeline.sent, trial.pipeline.world.rows())
                _blame(proof, number, way, trial.wrongs)
                errors += bool(trial.errors)
                if trial.spoiled:
                    proof.tried += 1
                    whats[_kind(trial.spoiled[0])] += 1
                    break
            else:
                proof.notes.append(f"request {number}, {way}: in {_GOES} goes it did not come to that")
    counts = ", ".join(f"{count} {what}" for what, count in sorted(whats.items()))
    proof.notes.append(
        f"{_server(size)}: {requests} requests, answered by 503, by 403 or not at all, done twice or late: {counts}; "
        f"{errors} of {goes} runs met an error"
    )
    yield proof


def _kind(request: Request) -> str:
    is_commit = request.method == "PUT" and _COMMIT.search(request.object)
    return "commits" if is_commit else f"other {request.method}s"


def _server(size: Size) -> str:
    if endpoint := os.environ.get("OBJBUF_TEST_S3_ENDPOINT"):
        return f"the server at {endpoint.rpartition('@')[2]}"
    return "versitygw" if size.pick(has_real_server(), True) else "moto"


def _blame(proof: Proof, number: int, way: Spoiling, wrongs: list[str]) -> None:
    proof.invented += len(wrongs)
    if wrongs and len(proof.notes) < _TOLD:
        proof.notes.append(f"request {number}, {way}: {wrongs[0]}")
