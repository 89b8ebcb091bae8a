"""Large objects over slow connections: the time that a request may take is for a part, and not for all of them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from objbuf_dagster.errors import CorruptData, StorageUnavailable
from objbuf_dagster.store import CloudStore, RetryingStore, RetryPolicy
from tests.support.bucket import FakeBucket, fake_bucket
from tests.support.s3 import S3Location

_URL = "s3://bucket/prefix"
_DATA = bytes(range(256)) * 1000
_RATE = 100_000  # a second: all of it takes 2.56, a part 0.26
_PART = 25_601
_TIMEOUT = 2.0


@pytest.fixture
def bucket() -> Iterator[FakeBucket]:
    with fake_bucket() as found:
        found.put("prefix/large", _DATA)
        found.bytes_per_second = _RATE
        yield found


def store(bucket: FakeBucket, part_bytes: int = _PART) -> CloudStore:
    return CloudStore(_URL, options=bucket.s3_options, timeout_seconds=_TIMEOUT, part_bytes=part_bytes)


def test_an_object_that_takes_longer_than_a_request_may_is_read(bucket: FakeBucket) -> None:
    assert store(bucket).read("large") == _DATA

    bucket.bytes_per_second = None
    assert pickle.loads(pickle.dumps(store(bucket))).get("large").data == _DATA
    assert len(bucket.requests) == 2 * (1 + 10)


def test_a_request_that_takes_too_long_says_what_to_set(bucket: FakeBucket) -> None:
    slow = RetryingStore(store(bucket, len(_DATA)), RetryPolicy(attempts=1))

    with pytest.raises(StorageUnavailable, match=r"in time: set timeout_seconds \(--timeout\) higher"):
        slow.read("large")


def test_a_large_object_that_changes_meanwhile_is_read_again_and_never_in_parts_of_both(bucket: FakeBucket) -> None:
    other = bytes(reversed(_DATA))
    later = threading.Timer(0.8, bucket.put, ("prefix/large", other))
    later.start()

    found = RetryingStore(store(bucket), RetryPolicy(base_seconds=0)).read("large")

    later.join()
    assert found == other


def test_a_large_object_is_refused_before_any_part_of_it_is_read(bucket: FakeBucket) -> None:
    with pytest.raises(CorruptData, match="256000 bytes are more than the 255999 it may have"):
        store(bucket).read("large", max_bytes=len(_DATA) - 1)

    assert bucket.requests == ["GET"]


def test_a_real_server_gives_an_object_in_parts(s3: S3Location) -> None:
    place = CloudStore(s3.url, options=s3.options, part_bytes=1000)
    for size in (0, 1, 1000, 1001, 3500):
        place.put("object", _DATA[:size])
        assert place.read("object") == place.get("object").data == _DATA[:size]


_MIB = 1 << 20
_READ = """
import json, os, sys
from objbuf_dagster.store import CloudStore

url, options, part_bytes, size = json.loads(os.environ["GIVEN"])
data = CloudStore(url, options=options, part_bytes=part_bytes).read("object")
assert isinstance(data, bytes) and len(data) == size, len(data)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory a process had")
def test_a_large_object_is_held_once(s3: S3Location) -> None:
    """In a process each: what it held at most, beyond what a smaller object takes, is what the larger one has more."""
    place, part = CloudStore(s3.url, options=s3.options), 4 * _MIB
    peaks = []
    for size in (32 * _MIB, 96 * _MIB):
        place.put("object", bytes(size))
        given = json.dumps([s3.url, dict(s3.options), part, size])
        command = [sys.executable, "-c", _READ]
        done = subprocess.run(command, env={**os.environ, "GIVEN": given}, capture_output=True, check=True, timeout=60)
        peaks.append(int(done.stdout) * 1024)

    assert peaks[1] - peaks[0] < 64 * _MIB + 3 * part
