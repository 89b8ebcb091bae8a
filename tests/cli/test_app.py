"""The command as a whole: help that is true, errors of one line, a quick start."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from objbuf_dagster import __version__, buffer, ranges
from objbuf_dagster.buffer import gc
from objbuf_dagster.cli import cluster, shared, upkeep
from objbuf_dagster.cli import lake as lake_command
from objbuf_dagster.cli import main as entry
from objbuf_dagster.cli import ranges as ranges_command
from objbuf_dagster.cli.app import main
from objbuf_dagster.cli.cluster import reason
from objbuf_dagster.cli.text import duration, plural, printable, redact, size
from objbuf_dagster.lake import LakeTable
from objbuf_dagster.lake.dead_letters import DEAD_LETTERS
from objbuf_dagster.lake.upkeep import DEFAULT_RETENTION, SHORTEST_RETENTION
from objbuf_dagster.spark.session import DEFAULT_MASTER
from objbuf_dagster.store import open_store
from tests.cli.commands import COMMAND, environment, error, fill, ok, one_line, run
from tests.cli.letters import put_letters
from tests.support.s3 import S3Location


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, (*path, name))


ALL = dict(commands(main))
EXAMPLES = [
    line.strip() for command in ALL.values() for line in (command.epilog or "").splitlines() if "objbuf " in line
]


def as_arguments(s3: S3Location) -> list[str]:
    return [part for key, value in s3.options.items() for part in ("--option", f"{key}={value}")]


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "objbuf")
def test_every_command_is_explained(path: tuple[str, ...]) -> None:
    out = ok(*path, "--help")

    assert out == ok(*path, "-h")
    command = ALL[path]
    assert command.get_short_help_str(200).endswith(".")
    assert "Examples:\n" in out
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, f"{option.name} is not described"


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_runs(example: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    more: dict[str, str] = {}
    line = example
    if "s3://" in example:
        s3: S3Location = request.getfixturevalue("s3")
        more = {
            "AWS_ENDPOINT_URL": s3.options["endpoint"],
            "AWS_REGION": s3.options["region"],
            "AWS_ACCESS_KEY_ID": s3.options["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": s3.options["secret_access_key"],
        }
        fill(s3.open(), [b"a"])
        ok("ranges", "plan", s3.url, *as_arguments(s3), "--max-wait", "0")
        LakeTable(f"{s3.url}/lake/entries", options=s3.options).commit("000000000000-000000000000", [], epoch=1)
        letters = LakeTable(f"{s3.url}/lake/dead_letters", DEAD_LETTERS, options=s3.options)
        letters.commit("000000000000-000000000000", [], epoch=1, part="otlp_logs")
        line = line.replace("s3://my-bucket/events", s3.url).replace("s3://my-bucket/lake", f"{s3.url}/lake")
    else:
        fill(tmp_path, [b"a"])
        ok("ranges", "plan", tmp_path, "--max-wait", "0")
        LakeTable(tmp_path / "lake" / "entries").commit("000000000000-000000000000", [], epoch=1)
        letters = LakeTable(tmp_path / "lake" / "dead_letters", DEAD_LETTERS)
        letters.commit("000000000000-000000000000", [], epoch=1, part="otlp_logs")
        if "dead-letters show" in example:
            put_letters(letters, "000000000000-000000000000", "otlp_logs", [(0, 0, "truncated", b"x")])
        line = line.replace("/tmp/buffer", str(tmp_path)).replace("/tmp/lake", f"{tmp_path}/lake")  # noqa: S108  as in the help
    assert line != example
    (tmp_path / "access.log").write_bytes(b"one\ntwo\n")
    shim = tmp_path / "bin" / "objbuf"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    shim.chmod(0o755)
    path = f"{shim.parent}:{os.environ['PATH']}"

    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=tmp_path,
        env=environment(PATH=path, PYTHONPATH=os.getcwd(), **more),
        capture_output=True,
        check=False,
        timeout=120,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout


def test_version_is_the_packages() -> None:
    assert ok("--version") == f"objbuf {__version__}\n"


@pytest.mark.parametrize("path", [(), ("ranges",), ("manifest",), ("lake",), ("dead-letters",)])
def test_group_alone_shows_its_help(path: tuple[str, ...]) -> None:
    assert ok(*path) == ok(*path, "--help")


class Interrupted(ModuleType):
    """A module that is just being loaded when Ctrl-C comes."""

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_ctrl_c_while_it_starts_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "objbuf_dagster.cli.app", Interrupted("app"))

    with pytest.raises(SystemExit) as caught:
        entry()

    assert caught.value.code == 130
    assert capsys.readouterr() == ("", "objbuf: interrupted\n")


def test_what_the_library_logs_is_for_debugging_only(tmp_path: Path) -> None:
    """A warning of the library's, without any handler, would be a line more on stderr."""
    fill(tmp_path, [b"a"])
    code = (
        "import logging, sys; from objbuf_dagster.cli.shared import Buffer; Buffer(sys.argv[1]).open(); "
        "logging.getLogger('objbuf_dagster.buffer.gc').warning('a word of the library')"
    )
    for debug, is_told in (("0", False), ("1", True)):
        command = [sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment(OBJBUF_DEBUG=debug))
        assert ("a word of the library" in done.stderr) is is_told


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from objbuf_dagster.cli.app import main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    heavy = {"pyarrow", "obstore", "zstandard", "deltalake", "pyspark", "logging"}
    heavy |= {f"objbuf_dagster.{part}" for part in ("buffer", "store", "lake", "spark")}
    assert heavy.isdisjoint(done.stdout.split())


def test_defaults_are_the_librarys() -> None:
    limits = ranges.Limits()

    assert shared.MANIFEST_PATH == buffer.DEFAULT_MANIFEST_PATH
    assert shared.DATA_PREFIX == buffer.DEFAULT_DATA_PREFIX
    for opens in (open_store, LakeTable):
        assert inspect.signature(opens).parameters["timeout_seconds"].default == shared.TIMEOUT_SECONDS
    assert upkeep.GRACE_SECONDS == gc.DEFAULT_GRACE_SECONDS
    assert cluster.MASTER == DEFAULT_MASTER
    assert DEFAULT_RETENTION.total_seconds() == lake_command.RETENTION
    assert SHORTEST_RETENTION.total_seconds() == lake_command.SHORTEST_RETENTION
    assert (
        limits.max_batches,
        limits.max_bytes,
        limits.max_wait,
    ) == (ranges_command.MAX_BATCHES, ranges_command.MAX_BYTES, ranges_command.MAX_WAIT)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing"], "No such command 'nothing'; see `objbuf --help`"),
        (["stat"], "stat: Missing argument 'URL'; see `objbuf stat --help`"),
        (["ranges", "show", "x"], "ranges show: Missing argument 'KEY'; see `objbuf ranges show --help`"),
        (["produce", "x", "--rate", "0"], "produce: Invalid value for '--rate': give a number above 0; see "),
        (["produce", "x", "--rate", "nan"], "produce: Invalid value for '--rate': give a number above 0; see "),
        (["gc", "x", "--grace", "inf"], "gc: Invalid value for '--grace': give a number of 0 or more; see "),
        (["stat", "/x", "--option", "region=x"], "stat: --option is for buckets: a directory has no settings"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(args: list[str], message: str) -> None:
    assert error(*args, code=2).startswith(message)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "unknown kind of store 'ftp'"),
        ("s3://", "s3:// needs a bucket"),
        ("file://dir", "a file URL has three slashes"),
        ("", "an empty URL names no store"),
        ("memory://x", "a memory:// buffer would be gone when this command ends"),
        ("s3://b/p?region=x", "a store's URL has no '?' or '#' part"),
    ],
)
def test_bad_url_says_how_a_good_one_looks(url: str, message: str) -> None:
    assert error("stat", url).startswith(message)


@pytest.mark.parametrize(
    "args",
    [
        ["stat", "s3://bucket/x"],
        ["lake", "stat", "s3://bucket/x"],
        ["land", "all", "--buffer", "s3://bucket/x", "--lake", "/x"],
        ["land", "all", "--buffer", "/x", "--lake", "s3://bucket/x"],
    ],
)
def test_a_timeout_reaches_the_store(args: list[str]) -> None:
    """Which refuses one that is longer than a day."""
    assert error(*args, "--timeout", "90000") == "timeout_seconds must be above 0 and below 86400: 90000.0"
    assert "give a number above 0" in error(*args, "--timeout", "nan", code=2)


@pytest.mark.parametrize("flag", ["--data-prefix", "--manifest-path"])
def test_paths_that_leave_the_buffer_are_refused(tmp_path: Path, flag: str) -> None:
    assert "must stay inside the store" in error("stat", tmp_path, flag, "../x")


def test_missing_bucket_is_told_plainly(s3: S3Location) -> None:
    message = error("stat", "s3://no-such-bucket/x", *as_arguments(s3))

    assert message.startswith("the bucket does not exist, create it or correct the URL")
    assert s3.options["secret_access_key"] not in message


def test_bucket_works_with_options(s3: S3Location) -> None:
    ok("produce", s3.url, *as_arguments(s3), given=b"a\nb\n")

    assert ok("tail", s3.url, *as_arguments(s3)) == "a\nb\n"


@pytest.mark.parametrize(
    "args",
    [
        ["stat", "s3://user:hush-hush@bucket/x"],
        ["stat", "s3://bucket", "--option", "hush-hush"],
        ["stat", "s3://bucket", "--option", "secret_access_kay=hush-hush"],
        ["stat", "file://user:hush-hush@host/x"],
        ["stat", "s3://bucket/x?sig=hush-hush"],
    ],
)
def test_secrets_are_never_printed(args: list[str]) -> None:
    result = run(*args)

    assert result.exit_code in (1, 2)
    assert "hush-hush" not in result.output


def test_unexpected_error_is_one_line_and_debugging_shows_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("boom\nbang with hush-hush-key")

    monkeypatch.setattr("objbuf_dagster.store.open_store", fail)
    args = ["stat", "s3://b", "--option", "secret_access_key=hush-hush-key"]

    message = error(*args)
    assert message == (
        "internal error: RuntimeError: boom\\nbang with ...; please report it with OBJBUF_DEBUG=1 output"
    )

    monkeypatch.setenv("OBJBUF_DEBUG", "1")
    monkeypatch.setattr("objbuf_dagster.cli.shared._quieten_logging", lambda: None)
    from click.testing import CliRunner

    shown = CliRunner().invoke(main, args).stderr
    assert "Traceback" in shown
    assert "hush-hush" not in shown


def test_library_warnings_do_not_add_lines(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "stat", str(tmp_path / "x"), "--json"], capture_output=True, check=False, text=True
    )

    assert done.returncode == 1
    assert one_line(done.stderr)


def test_terminal_without_utf8_is_no_reason_to_fail(tmp_path: Path) -> None:
    root = tmp_path / "büffer"
    fill(root, [b"a"])

    done = subprocess.run(
        [*COMMAND, "stat", str(root)], capture_output=True, check=False, env=environment(PYTHONIOENCODING="ascii")
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert b"queue length   1 batch" in done.stdout


@pytest.mark.parametrize("command", [["tail"], ["produce"]])
def test_closed_streams_are_told(tmp_path: Path, command: list[str]) -> None:
    fill(tmp_path, [b"a"])
    closed = {"tail": ">&-", "produce": "<&-"}[command[0]]

    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *command, str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
    )

    assert done.returncode == 1
    assert "is closed" in one_line(done.stderr)


def test_text_for_people() -> None:
    assert [size(n) for n in (0, 1, 1023, 1536, 5 << 20, 3 << 40)] == [
        "0 bytes",
        "1 byte",
        "1023 bytes",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]
    assert [duration(s) for s in (0.04, 12.4, 60, 3700, 604800, 90000)] == [
        "0.0 s",
        "12 s",
        "1 min",
        "1 h 1 min",
        "7 d",
        "1 d 1 h",
    ]
    assert [plural(n, noun) for n, noun in ((1, "entry"), (0, "entry"), (2, "batch"), (3, "range"))] == [
        "1 entry",
        "0 entries",
        "2 batches",
        "3 ranges",
    ]
    assert printable("a\x1b\u202e\n\ud800é") == "a\\x1b\\u202e\\n\\ud800é"
    assert redact("GET https://me:pw@host/x?sv=1&sig=abc%3D done") == "GET https://...@host/x?sv=1&sig=... done"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Boom\n\tat a.b",
            "SparkException: Boom",
        ),
        ("[CONF.BAD] no\n\nJVM stacktrace:\njava.lang.X\n\tat y", "[CONF.BAD] no"),
        ("", "RuntimeError"),
        ("x" * 1000, "x" * 300 + "..."),
    ],
)
def test_what_spark_says_is_one_line(said: str, line: str) -> None:
    assert reason(RuntimeError(said)) == line
