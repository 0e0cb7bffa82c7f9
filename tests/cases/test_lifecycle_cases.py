"""Cases B36 to B44: clients that leave, encoders that fail, work that must not stand in others' way, full queues.

The matrix of stages and modes with a hundred rounds each is in tests/life; B45 is in tests/life/test_process.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from foveate.core.plan import StepPlan
from foveate.prompt.chat import ChatTemplate
from foveate.prompt.pixels import Picture
from foveate.service import prepare
from tests.cases.oracle import House, eventually, open_house, part, refused, user
from tests.life.gates import Gate, gated
from tests.support.engines import png
from tests.support.web import PictureHost

PICTURES = [png(400 + i) for i in range(8)]


@pytest.fixture(scope="module")
def narrow(folder: Path) -> Iterator[House]:
    """One request at a time."""
    with open_house(folder, max_concurrency=1) as house:
        yield house
        house.check()


@pytest.mark.parametrize("n", [1, 2])
def test_B36_closing_between_events_frees_everything(house: House, n: int) -> None:
    for _ in range(10):
        with house.open_request(user(PICTURES[0], "go on"), stream=True, n=n, max_tokens=1000) as sock:
            seen = b""
            while seen.count(b'"content":"') < 3:
                seen += sock.recv(4096)
        house.settle()
    assert house.service.stats().finished["abort"] >= 10 * n


def test_B38_those_who_left_the_queue_are_not_generated(narrow: House) -> None:
    with ThreadPoolExecutor(2) as pool, gated(narrow) as (encode, _):
        encode.close(lambda pixels: True)
        holder = pool.submit(narrow.ask, PICTURES[0], "holds the slot")
        assert encode.reached.wait(60)
        before = narrow.service.stats().totals.output_tokens
        leaving = [narrow.open_request(user(f"leaver {i}"), stream=i % 2 == 0, max_tokens=50) for i in range(19)]
        eventually(lambda: narrow.engine.loop.stats().waiting == 19)
        stays = pool.submit(narrow.ask, "stays")
        eventually(lambda: narrow.engine.loop.stats().waiting == 20)
        for sock in leaving:
            sock.close()
        eventually(lambda: narrow.engine.loop.stats().waiting == 1)
        encode.open()
        assert stays.result().reason == holder.result().reason == "length"
        assert narrow.service.stats().totals.output_tokens - before == 16, "nothing for those who had left"


def test_B39_a_failing_encode_fails_one_request_of_eight(house: House) -> None:
    want = [house.ask(picture, "what?") for picture in PICTURES]
    tower = house.engine.loop._encoder.worker._tower
    plain, first = tower.encode, {}

    def failing(pixels: list[Any]) -> Any:
        if pixels[0][0, 0].tobytes() == first[3]:
            raise RuntimeError("planted")
        rows = plain(pixels)
        return [rows[0][:-1]] if pixels[0][0, 0].tobytes() == first[5] else rows  # fewer rows than placeholders

    measured = house.service._preparer._measure
    sources = [type("S", (), {"param": "p"})()] * 8
    for i, picture in enumerate(measured(PICTURES, sources)):
        first[i] = picture.pixels()[0, 0].tobytes()
    assert len(set(first.values())) == 8
    tower.encode = failing
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda picture: house.post(user(picture, "what?")), PICTURES))
        for i, answer in enumerate(answers):
            if i in (3, 5):
                refused(answer, 500, "image_encode_failed")
            else:
                assert answer.json()["choices"][0]["message"]["content"] == want[i].text[: len(want[i].text)]
        for _ in range(20):
            refused(house.post(user(PICTURES[3], "what?")), 500, "image_encode_failed")
            refused(house.post(user(PICTURES[3][:200], "what?")), 400, "invalid_image")
        assert house.http.get("/health").status_code == 200
    finally:
        tower.encode = plain


@pytest.mark.parametrize("n", [1, 2])
def test_B40_leaving_after_the_encode_and_before_prefill_gives_rows_back(house: House, n: int) -> None:
    def has_image(plan: StepPlan) -> bool:
        return any(piece.spans for piece in plan.slices)

    with gated(house) as (_, step):
        for round_ in range(50):
            step.close(has_image)
            sock = house.open_request(user(PICTURES[0], PICTURES[1], "x"), stream=round_ % 2 == 0, n=n, max_tokens=500)
            assert step.reached.wait(60)
            assert len(house.engine.loop._executor.rows) >= 1
            sock.close()
            eventually(lambda: not house.server._in_flight._endings)
            step.open()
            house.settle()


@pytest.mark.parametrize("work", ["decode", "measure", "render", "lay out"])
def test_B41_nothing_of_a_picture_or_prompt_runs_on_the_event_loop(
    house: House, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever takes long may take for ever: /health and other requests are answered meanwhile."""
    where, name = {
        "decode": (Picture, "pixels"),
        "measure": (prepare, "measure"),
        "render": (ChatTemplate, "render"),
        "lay out": (prepare.Preparer, "_lay_out"),
    }[work]
    plain, gate = getattr(where, name), Gate()
    once = threading.Semaphore(1)

    def slow(*words: Any, **more: Any) -> Any:
        gate.pass_through(words)
        return plain(*words, **more)

    monkeypatch.setattr(where, name, slow)
    with ThreadPoolExecutor(1) as pool:
        gate.close(lambda call: once.acquire(blocking=False))
        late = pool.submit(house.ask, PICTURES[2], "late")
        assert gate.reached.wait(60)
        assert house.http.get("/health").status_code == 200
        house.ask("meanwhile")
        assert not late.done()
        gate.open()
        assert late.result().reason == "length"


def test_B41_slow_fetches_run_side_by_side_and_delay_nobody(house: House, web: PictureHost) -> None:
    gate, arrived = Gate(), threading.Semaphore(0)

    def slow(page: Any) -> None:
        arrived.release()
        gate.pass_through(page)
        page.send_response(200)
        page.send_header("Content-Length", str(len(PICTURES[3])))
        page.end_headers()
        page.wfile.write(PICTURES[3])

    web.pages |= {"/slow": slow, "/quick": PICTURES[4]}
    with ThreadPoolExecutor(20) as pool:
        gate.close(lambda page: True)
        late = [pool.submit(house.ask, part(web.url("/slow")), "late") for _ in range(20)]
        assert all(arrived.acquire(timeout=30) for _ in late), "all twenty are being fetched at once"
        want = house.ask(PICTURES[4], "meanwhile")
        assert house.ask(part(web.url("/quick")), "meanwhile").same(want)
        assert house.http.get("/health").status_code == 200 and not any(one.done() for one in late)
        gate.open()
        assert len({one.result().text for one in late}) == 1


def test_B42_a_text_stream_goes_on_while_an_image_is_encoded(house: House) -> None:
    """The encode takes as long as it likes: here until the text request is through. (Rates: bench/, docs.)"""
    with ThreadPoolExecutor(4) as pool, gated(house) as (encode, _):
        encode.close(lambda pixels: True)
        images = [pool.submit(house.ask, picture, "wait") for picture in PICTURES[:3]]
        assert encode.reached.wait(60)
        assert len(house.stream(user("text goes on"), max_tokens=64)) >= 32
        assert not any(one.done() for one in images)
        encode.open()
        assert all(one.result().reason == "length" for one in images)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_B44_a_full_queue_is_503_before_anything_is_sent(folder: Path, stream: bool, n: int) -> None:
    slots, queue, extra = 2, 4, 5
    with open_house(folder, max_concurrency=slots, queue_requests=queue) as house, gated(house) as (encode, _):
        encode.close(lambda pixels: True)
        with ThreadPoolExecutor((slots + queue) // n + extra) as pool:
            fields = {"n": n, "stream": stream, "max_tokens": 4}
            sent = [pool.submit(house.post, user(PICTURES[0], "x"), **fields) for _ in range((slots + queue) // n)]
            eventually(lambda: house.engine.loop.stats().waiting == queue)
            for _ in range(extra):
                response = house.post(user(PICTURES[1], "x"), **fields)
                refused(response, 503, "server_busy")
                assert int(response.headers["retry-after"]) >= 1
            encode.open()
            assert [one.result().status_code for one in sent] == [200] * len(sent)
        house.check()


def test_B44_queues_are_limited_in_image_tokens_and_bytes_too(folder: Path) -> None:
    for limits in ({"queue_image_rows": 8}, {"queue_mib": 1}):
        with open_house(folder, max_concurrency=1, **limits) as house, gated(house) as (encode, _):
            encode.close(lambda pixels: True)
            padding = bytes(800_000)
            with ThreadPoolExecutor(2) as pool:
                sent = []
                for waiting in range(2):
                    sent.append(pool.submit(house.post, user(PICTURES[waiting] + padding, "x")))
                    eventually(lambda w=waiting: house.engine.loop.stats().waiting == w)
                    eventually(lambda: house.engine.loop.stats().running == 1)
                refused(house.post(user(PICTURES[2] + padding, "x")), 503, "server_busy")
                text = pool.submit(house.post, user("text waits as well"))
                encode.open()
                assert [one.result().status_code for one in (*sent, text)] == [200] * 3
            house.check()
