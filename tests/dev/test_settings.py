"""Where the settings come from, and what is written into `.env`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.settings import Settings, SetupError, load


def env_file(root: Path) -> str:
    return (root / ".env").read_text()


def places(settings: Settings) -> tuple[str, str, str]:
    """What the processes will see."""
    names = ("DAGSTER_HOME", "OBJBUF_BUFFER_URL", "OBJBUF_LAKE_URL")
    one, two, three = (settings.environment[name] for name in names)
    return one, two, three


def test_a_fresh_clone_gets_absolute_places_inside_itself(tmp_path: Path) -> None:
    expected = (f"{tmp_path}/.dagster", f"file://{tmp_path}/.data/buffer", f"file://{tmp_path}/.data/lake")
    settings = load(tmp_path, {})
    assert places(settings) == expected
    assert (settings.port, settings.demo, settings.owns_home, settings.notes) == (3000, True, True, ())
    written = env_file(tmp_path)
    assert [line.split("=")[0] for line in written.splitlines()] == [
        "DAGSTER_HOME",
        "OBJBUF_BUFFER_URL",
        "OBJBUF_LAKE_URL",
    ]
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    assert places(load(tmp_path, {})) == expected
    assert env_file(tmp_path) == written


def test_lines_that_are_there_stay_and_win_over_the_defaults(tmp_path: Path) -> None:
    mine = "# mine\nexport OBJBUF_LAKE_URL='s3://lake/of mine'\nAWS_REGION=eu-central-1"
    (tmp_path / ".env").write_text(mine)
    settings = load(tmp_path, {})
    assert settings.lake == "s3://lake/of mine"
    assert settings.environment["AWS_REGION"] == "eu-central-1"
    added = env_file(tmp_path).removeprefix(mine + "\n")
    assert [line.split("=")[0] for line in added.splitlines()] == ["DAGSTER_HOME", "OBJBUF_BUFFER_URL"]


def test_the_environment_wins_and_is_not_written_down(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("AWS_REGION=here\nPORT=4000\n")
    given = {
        "DAGSTER_HOME": "/other/home",
        "OBJBUF_BUFFER_URL": "s3://bucket/buffer",
        "OBJBUF_LAKE_URL": "s3://bucket/lake",
        "AWS_REGION": "there",
    }
    settings = load(tmp_path, given)
    assert places(settings) == ("/other/home", "s3://bucket/buffer", "s3://bucket/lake")
    assert (settings.environment["AWS_REGION"], settings.port, settings.owns_home) == ("there", 4000, False)
    assert "bucket" not in env_file(tmp_path)
    assert "/other" not in env_file(tmp_path)


def test_an_empty_value_is_no_value(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OBJBUF_BUFFER_URL=\n")
    settings = load(tmp_path, {"OBJBUF_LAKE_URL": "", "PORT": "", "DEMO": ""})
    assert places(settings)[1:] == (f"file://{tmp_path}/.data/buffer", f"file://{tmp_path}/.data/lake")
    assert (settings.port, settings.demo) == (3000, True)


def test_a_clone_may_be_called_anything(tmp_path: Path) -> None:
    root = tmp_path / "it's a #1 clöne $HOME \\ here"
    root.mkdir()
    load(root, {})
    settings = load(root, {})
    assert (settings.home, settings.is_embedded) == (root / ".dagster", True)


def test_a_relative_path_is_meant_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(tmp_path, {"OBJBUF_BUFFER_URL": "some/buffer"})
    assert settings.environment["OBJBUF_BUFFER_URL"] == f"file://{tmp_path}/some/buffer"


def test_a_clone_that_was_moved_is_told_what_to_do(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    load(old, {})
    old.rename(new)
    with pytest.raises(SetupError, match="delete these lines") as told:
        load(new, {})
    assert f"DAGSTER_HOME={old}/.dagster" in str(told.value)
    assert f"OBJBUF_LAKE_URL=file://{old}/.data/lake" in str(told.value)
    given = {"DAGSTER_HOME": "/h", "OBJBUF_BUFFER_URL": "s3://b/b", "OBJBUF_LAKE_URL": "s3://b/l"}
    assert places(load(new, given)) == ("/h", "s3://b/b", "s3://b/l")
    (new / ".env").unlink()
    assert load(new, {}).home == new / ".dagster"


def test_a_copy_of_a_clone_is_told_that_it_shares_the_data(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    load(old, {})
    (new / ".env").write_text(env_file(old))
    settings = load(new, {})
    assert settings.home == old / ".dagster"
    assert len(settings.notes) == 4
    assert any(note.startswith(f"DAGSTER_HOME is in {old}, as .env says") for note in settings.notes)


@pytest.mark.parametrize(
    ("buffer", "wish", "demo"),
    [
        (None, None, True),
        (None, "1", True),
        (None, "0", False),
        ("s3://bucket/buffer", None, False),
        ("s3://bucket/buffer", "0", False),
        ("s3://bucket/buffer", "1", True),
    ],
)
def test_nobody_elses_buffer_gets_demo_events_unasked(
    tmp_path: Path, buffer: str | None, wish: str | None, demo: bool
) -> None:
    given = {"OBJBUF_BUFFER_URL": buffer or "", "DEMO": wish or ""}
    settings = load(tmp_path, given)
    assert settings.demo is demo
    assert bool(settings.notes) == (buffer is not None and wish != "0")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"PORT": "http"}, "PORT is a number"),
        ({"PORT": "0"}, "PORT is a number"),
        ({"PORT": "70000"}, "PORT is a number"),
        ({"DEMO": "yes"}, "DEMO is 0 or 1"),
        ({"DAGSTER_HOME": "home"}, "DAGSTER_HOME must be an absolute path"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, given: dict[str, str], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        load(tmp_path, given)


def test_a_broken_env_file_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "a name that needs quotes"
    root.mkdir()
    (root / ".env").write_text("SECRET='never closed\n")
    with pytest.raises(SetupError, match="mend the line before it"):
        load(root, {})
