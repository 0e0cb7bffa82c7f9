"""A browser and pages in it. Skipped where there is no Chromium; where there is one, whatever a page logs as an error
or asks of another host fails its test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from foveate.core.config import MIB
from foveate.server.contract import Limits
from tests.server.live import Live, running

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HARMLESS = ("Failed to load resource",)  # what Chromium says of each status that a test provokes
LIMITS = Limits(body_bytes=8 * MIB, held_bytes=16 * MIB, keep_alive_s=0.2)


# Not for the session: as long as it runs, Playwright keeps an event loop running in this thread, which tests elsewhere
# cannot have beside their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the test extra has it)")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed; Debian: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        # The sandbox needs rights that containers lack; only this repository's own page is opened.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shared_live() -> Iterator[Live]:
    with running(LIMITS) as live:
        yield live


@pytest.fixture
def live(shared_live: Live) -> Live:
    shared_live.reset()
    return shared_live


@contextmanager
def watched_page(browser: Any, url: str, harmless: tuple[str, ...] = (), **context: Any) -> Iterator[Any]:
    """The opened page; afterwards nothing but the `harmless` has gone wrong and nothing was asked of another host."""
    faults: list[str] = []
    with browser.new_context(**({"viewport": {"width": 1200, "height": 800}} | context)) as visit:
        page = visit.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: line.type == "error" and faults.append(line.text))
        page.on(
            "request", lambda request: request.url.startswith((url, "blob:", "data:")) or faults.append(request.url)
        )
        # Asked for only with the key that opens it, the interception of a file chooser may come after the chooser.
        page.on("filechooser", lambda chooser: None)
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        yield page
    faults = [fault for fault in faults if not fault.startswith(HARMLESS + harmless)]
    assert not faults, faults


@pytest.fixture
def page(browser: Any, live: Live) -> Iterator[Any]:
    with watched_page(browser, live.url) as page:
        yield page
