"""The UI in Debian's Chromium: headless, and on loopback only."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

from tests.e2e.running import HOST, PATIENCE_SECONDS

SIZE = {"width": 1400, "height": 900}

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}",  # a page that wants the network does not get it
)


def chromium() -> str:
    """Where it is. Skips the test where there is none, or fails it if CI_REQUIRE_BROWSER says so."""
    found = shutil.which("chromium")
    if found is not None:
        return found
    why = "there is no Chromium: apt-get install chromium"
    if os.environ.get("CI_REQUIRE_BROWSER") == "1":
        pytest.fail(why)
    pytest.skip(why)


@contextmanager
def browser() -> Iterator[Browser]:
    path = chromium()
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        # It keeps crash reports and caches in a home, which shall not be the person's.
        places = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), home)
        own: dict[str, str | float | bool] = {**os.environ, **places}
        opened = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS), env=own)
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def page_at(browser: Browser, url: str, pictures: Path, name: str) -> Iterator[Page]:
    """A page for addresses below `url`. Leaves a picture of how it looked last, also when the test fails.

    Fails if the page asks for anything that is not on this machine.
    """
    elsewhere: list[str] = []

    def note(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.hostname != HOST and parts.scheme not in ("data", "blob"):
            elsewhere.append(request.url)

    context = browser.new_context(base_url=url, viewport=SIZE, timezone_id="UTC", locale="en-GB")  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_SECONDS / 5 * 1000)
    context.on("request", note)
    page = context.new_page()
    try:
        try:
            yield page
        finally:
            page.screenshot(path=pictures / f"{name}.png", animations="disabled")
    finally:
        context.close()
    assert elsewhere == []
