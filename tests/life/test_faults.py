"""Faults inside the server, injected by its own switch: who is hit is told so, all others never notice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foveate.core.errors import ConfigError
from foveate.engine import loop
from tests.cases.oracle import House, eventually, open_house, refused, user
from tests.life.gates import gated
from tests.support.engines import png

PLACES = {
    "same": {"mmproj_device": "same", "encoder_worker": "auto"},
    "thread": {},
    "process": {"encoder_worker": "process"},
}


def known_good(house: House) -> None:
    """What was answered before is answered again, and /health says so."""
    house.check()
    assert house.http.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize(
    ("place", "fault"), [*((place, "encode-raise") for place in PLACES), ("same", "encode-memory")]
)
def test_an_image_that_fails_in_the_encoder(folder: Path, place: str, fault: str) -> None:
    with open_house(folder, inject_fault=f"{fault}:2", **PLACES[place]) as house, ThreadPoolExecutor(2) as pool:
        text = pool.submit(house.stream, user("a text beside it"), max_tokens=40)
        message = refused(house.post(user(png(1), "x")), 500, "image_encode_failed")
        assert "planted" not in message
        assert len(text.result()) > 20
        assert house.ask(png(1), "x").reason == "length", "the same picture, once the fault is gone"
        known_good(house)


@pytest.mark.parametrize("fault", ["encode-die", "encode-hang"])
def test_an_encoder_process_that_dies_or_hangs(folder: Path, fault: str) -> None:
    settings = {"encoder_worker": "process", "encode_timeout_s": 2.0, "inject_fault": f"{fault}:3"}
    with open_house(folder, **settings) as house, ThreadPoolExecutor(2) as pool:
        want = house.ask(png(1), "x")
        text = pool.submit(house.stream, user("a text beside it"), max_tokens=40)
        refused(house.post(user(png(2), "x")), 500, "image_encode_failed")
        assert len(text.result()) > 20
        assert house.ask(png(1), "x").same(want), "by another process"
        known_good(house)


def test_a_hung_encoder_on_a_thread_is_told_by_health(folder: Path) -> None:
    """A thread cannot be ended; whoever watches /health can end the server."""
    with (
        open_house(folder, encode_timeout_s=0.2) as house,
        ThreadPoolExecutor(1) as pool,
        gated(house) as (encode, _),
    ):
        encode.close(lambda pixels: True)
        late = pool.submit(house.ask, png(1), "x")
        assert encode.reached.wait(60)
        eventually(lambda: house.http.get("/health").status_code == 503)
        assert house.http.get("/health").json()["status"] == "encoder hung"
        house.ask("text goes on")
        encode.open()
        assert late.result().reason == "length"
        known_good(house)


def test_closing_does_not_wait_for_ever_for_a_step_that_hangs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CLOSE_S", 0.2)
    with open_house(folder) as house, ThreadPoolExecutor(1) as pool, gated(house) as (_, step):
        step.close(lambda plan: True)
        stuck = pool.submit(house.post, user("x"))
        assert step.reached.wait(60)
        house.engine.close()
        assert house.engine.loop.alive and any("leaving its thread" in line for line in house.log.lines)
        step.open()
        refused(stuck.result(), 503, "server_busy")
        eventually(lambda: not house.engine.loop.alive)


@pytest.mark.parametrize("fault", ["step-raise", "step-memory"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_takes_its_cohort_and_nothing_else(folder: Path, fault: str, stream: bool) -> None:
    with open_house(folder, inject_fault=f"{fault}:40") as house:
        want = house.ask(png(1), "x")
        response = house.post(user(png(2), "doomed"), stream=stream, max_tokens=200, ignore_eos=True)
        if stream:  # it had begun, so the reason is the stream's last event
            assert response.status_code == 200 and '"code":"engine_step_failed"' in response.text
            assert "[DONE]" not in response.text and "planted" not in response.text
        else:
            assert "planted" not in refused(response, 500, "engine_step_failed")
        assert house.ask(png(1), "x").same(want)
        known_good(house)


def test_the_switch_is_off_by_default_checked_and_out_of_reach(folder: Path) -> None:
    for wish in ("encode-raise", "encode-raise:0", "nonsense:1", "step-raise:x"):
        with pytest.raises(ConfigError, match="KIND:N"), open_house(folder, inject_fault=wish):
            pass
    with open_house(folder) as house:
        for fields in ({"inject_fault": "step-raise:1"}, {"fault": "step-raise:1"}):
            refused(house.post(user("x"), **fields), 400, "unknown_parameter")
        known_good(house)
