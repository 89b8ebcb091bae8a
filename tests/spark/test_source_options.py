"""The data source's options: what is wrong is said in one line, with what to do, and without anybody's secrets."""

from __future__ import annotations

import pickle

import pytest

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.ranges import SequenceRange
from objbuf_dagster.spark.options import FromTo, Options, Ranges, Session, SinceFrontier, parse

FILE = {"buffer": "file:///somewhere"}
BUCKET = {"buffer": "s3://bucket/prefix"}
MARK = "m4rk-of-a-secret"


def parsed(session: Session | None = None, /, **options: str) -> Options:
    return parse({**FILE, **options}, session or Session())


def test_each_way_to_select_is_understood() -> None:
    key, other = "000000000000-000000000099", "000000000100-000000000199"

    assert parsed(range=f"{other}, {key},{key}").selection == Ranges((SequenceRange(0, 99), SequenceRange(100, 199)))
    assert parsed(**{"from": "7"}).selection == FromTo(7, None)
    assert parsed(to="9").selection == FromTo(None, 9)
    assert parsed(**{"from": "7", "to": "9", "since_frontier": "False"}).selection == FromTo(7, 9)
    assert parsed(since_frontier="TRUE").selection == SinceFrontier()


def test_names_of_options_are_case_insensitive() -> None:
    assert parse({"BUFFER": "/somewhere", "Since_Frontier": "true"}, Session()).selection == SinceFrontier()


def test_every_setting_reaches_what_it_sets() -> None:
    options = parsed(
        Session(min_partitions=3),
        since_frontier="true",
        manifest_path="other/manifest",
        data_prefix="other",
        max_bytes="1234",
        partition_bytes="99",
    )

    assert (options.place.manifest_path, options.place.data_prefix) == ("other/manifest", "other")
    assert options.place.max_bytes == 1234
    assert options.partition_bytes == 99
    assert options.min_partitions == 3
    assert parsed(Session(min_partitions=3), since_frontier="true", min_partitions="5").min_partitions == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({}, "what to read is not said: give one of range=", id="nothing selected"),
        pytest.param({"since_frontier": "false"}, "what to read is not said", id="nothing selected after all"),
        pytest.param({"from": "1", "since_frontier": "true"}, "in several ways: give one of", id="two ways"),
        pytest.param({"from": "2", "to": "1"}, "from=2 is behind to=1", id="from behind to"),
        pytest.param({"from": "-1"}, "'from' is a whole number of at least 0, not '-1'", id="negative"),
        pytest.param({"from": "1_000"}, "'from' is a whole number", id="underscore"),
        pytest.param({"to": "9" * 5000}, "'to' is a whole number", id="far too long"),
        pytest.param({"to": str(2**64)}, "'to' is a whole number", id="too large"),
        pytest.param({"range": "0-99"}, "a range is written as 000000000000-000000000099", id="not a key"),
        pytest.param({"range": ""}, "a range is written as", id="no key"),
        pytest.param({"since_frontier": "yes"}, "true or false, not 'yes'", id="not a flag"),
        pytest.param({"max_bytes": "0", "to": "1"}, "'max_bytes' is a whole number of at least 1", id="no bytes"),
        pytest.param({"partition_bytes": "64m", "to": "1"}, "'partition_bytes' is a whole number", id="with a unit"),
        pytest.param({"sequence": "1"}, "unknown option 'sequence': there are buffer, ", id="unknown"),
        pytest.param({"path": "/x", "to": "1"}, "unknown option 'path'", id="a path, as files have"),
        pytest.param({"buffer": ""}, "'buffer' is missing: give the buffer's URL", id="no buffer"),
        pytest.param({"buffer": "memory://x", "to": "1"}, "use a file:// one", id="memory"),
        pytest.param({"buffer": "some/dir", "to": "1"}, "no absolute path", id="relative"),
        pytest.param({"buffer": "ftp://x", "to": "1"}, "unknown kind of store 'ftp'", id="unknown store"),
        pytest.param({"storage.region": "eu", "to": "1"}, "only buckets take options", id="settings for a directory"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parsed(**options)

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "name",
    [
        "aws_secret_access_key",
        "secret_access_key",
        "aws_access_key_id",
        "aws_session_token",
        "account_key",
        "azure_storage_sas_key",
        "azure_client_secret",
        "google_service_account_key",
        "sse_customer_key_base64",
        "not_aws_region",
        "something_that_obstore_learns_later",
    ],
)
def test_what_may_be_a_credential_is_no_option(name: str) -> None:
    with pytest.raises(InvalidInput, match="register") as refused:
        parse({**BUCKET, "since_frontier": "true", f"storage.{name}": MARK}, Session())

    assert MARK not in str(refused.value)


@pytest.mark.parametrize("endpoint", [f"https://user:{MARK}@host", f"https://host?sig={MARK}", f"//[{MARK}"])
def test_a_url_with_a_secret_in_it_is_no_option_either(endpoint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse({**BUCKET, "since_frontier": "true", "storage.endpoint": endpoint}, Session())

    assert MARK not in str(refused.value)


def test_settings_of_the_session_are_for_buckets_and_show_nowhere() -> None:
    session = Session({"secret_access_key": MARK, "access_key_id": MARK, "region": "eu-1"})

    bucket = parse({**BUCKET, "since_frontier": "true", "storage.endpoint": "http://127.0.0.1:1"}, session)
    directory = parse({**FILE, "since_frontier": "true"}, session)

    assert MARK not in repr((session, bucket, directory))
    assert MARK.encode() in pickle.dumps(bucket)  # so it does reach the workers
    assert MARK.encode() not in pickle.dumps(directory)
