"""The page on the real server with the bundled model: two charts, their lanes from the engine, a slot given back."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import foveate
from tests.page.acts import PASTE, answer_text, facts, lanes, until, write_and_send
from tests.page.conftest import watched_page

pytestmark = pytest.mark.model
DEMO = Path(foveate.__file__).parent / "demo"


@pytest.fixture(scope="module")
def url(browser: Any) -> Iterator[str]:
    if not list(DEMO.glob("*.safetensors")):
        pytest.skip("the bundled model's weights are not here")
    command = [sys.executable, "-m", "foveate.cli", "serve", "demo", "--port", "0", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert " at http://" in line, line
        yield line.split()[-1]
        server.terminate()
        assert server.wait(30) == 0


def test_two_charts_on_the_real_server(browser: Any, url: str) -> None:
    charts = ["recipe-bar.png", "vega-crops.png"]
    coded = [(name, base64.b64encode((DEMO / "pictures" / name).read_bytes()).decode()) for name in charts]
    with watched_page(browser, url) as page:
        page.evaluate(PASTE, coded)
        until(page, "document.querySelectorAll('.tray li').length === 2")
        write_and_send(page, "What are the titles of the charts?")
        page.wait_for_selector(".answer .tl-bar:not([hidden])")
        assert answer_text(page) != ""
        assert [len(lanes(page, kind)) for kind in ("decode", "encode", "prefill", "generate")] == [2, 2, 2, 1]
        # Stage after stage, image after image.
        (first, _), (second, _) = lanes(page, "encode")
        assert first < second and [at for at, _ in lanes(page, "prefill")] > [first, second]
        assert {"first token", "hidden", "waited", "speed"} <= set(facts(page))
        # The same request among those that have just finished.
        page.keyboard.press("Alt+s")
        page.wait_for_selector("dialog section h4:has-text('finished · 2 pictures')")
        page.keyboard.press("Escape")
        write_and_send(page, "Describe the first chart.")
        page.click("button.stop")
        page.wait_for_selector(".answer:last-of-type:has-text('Stopped.')")
        until(page, f"async () => (await (await fetch('{url}/status')).json()).slots.used === 0")
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
