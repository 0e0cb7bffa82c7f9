"""Clients that leave, at every stage and in every API and mode, many times each: at most the step or image under way is
spent on them, and everything is back where it was."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from foveate.core.plan import StepPlan
from foveate.prompt.pixels import Picture
from tests.cases.oracle import CHAT, House, eventually, open_house, part, user
from tests.life.gates import Gate, gated
from tests.support.engines import png
from tests.support.web import PictureHost

ROUNDS = {"chat": 100}  # of the other APIs, which share all but their words, fewer


def modes(*apis: str) -> Any:
    """Each API, streamed and whole."""
    pairs = [(api, stream) for api in apis for stream in (False, True)]
    names = [f"{api}-{'stream' if stream else 'whole'}" for api, stream in pairs]
    return pytest.mark.parametrize(("api", "stream"), pairs, ids=names)


MODES = modes("chat", "messages", "responses")
TEXT_MODES = modes("chat", "completions", "messages", "responses")
PICTURES = [png(200 + i) for i in range(3)]


@pytest.fixture(scope="module")
def house(folder: Path, web: PictureHost) -> Iterator[House]:
    nets = {"allowed_media_networks": "127.0.0.0/8", "allowed_media_ports": str(web.port)}
    with open_house(folder, max_concurrency=1, step_tokens=16, mixed_tokens=16, **nets) as house:
        yield house
        house.check()


def send(house: House, api: str, content: list[Any], choices: int, **fields: Any) -> socket.socket:
    """The same question in the words of an API; where there are several choices, `choices` of them."""
    shown = user(*content)[0]["content"]
    urls = [part["image_url"]["url"] if part["type"] == "image_url" else None for part in shown]
    if api == "chat":
        return house.open_request(user(*content), n=choices, max_tokens=300, **fields)
    if api == "completions":
        asked = {"prompt": " ".join(part.get("text", "") for part in shown) * 4, "n": choices, "max_tokens": 300}
        return house.open_body("/v1/completions", {**asked, "temperature": 0, "ignore_eos": True, **fields})
    if api == "messages":
        blocks = [{"type": "image", "source": {"type": "url", "url": url}} if url else part
                  for part, url in zip(shown, urls, strict=True)]  # fmt: skip
        asked = {"messages": [{"role": "user", "content": blocks}], "max_tokens": 300}
        return house.open_body("/v1/messages", {**asked, "temperature": 0, **fields})
    items = [{"type": "input_image", "image_url": url} if url else {"type": "input_text", "text": part["text"]}
             for part, url in zip(shown, urls, strict=True)]  # fmt: skip
    asked = {"input": [{"role": "user", "content": items}], "max_output_tokens": 300}
    return house.open_body("/v1/responses", {**asked, "temperature": 0, **fields})


def vitals() -> tuple[int, int, int]:
    """Open files, threads and child processes of this process."""
    me = psutil.Process()
    return me.num_fds(), me.num_threads(), len(me.children(recursive=True))


def gone(house: House) -> bool:
    """Whether no answer is under way or being prepared, and every connection but the tests' own is closed."""
    state = house.server.server_state
    return not (house.server._in_flight._endings or house.service._preparing) and len(state.connections) <= 1


def idle_but_for(gate: Gate, house: House) -> Callable[[], bool]:
    """Whether the engine has done all it can and heard all there is; in a step that the gate holds it cannot."""
    loop = house.engine.loop
    return lambda: gate is loop._executor.gate or (loop._resting and loop._mailbox.empty())


def noticed(gate: Gate, house: House) -> bool:
    """Whether server and engine know that the client has left."""
    return gone(house) and idle_but_for(gate, house)()


def rounds(
    house: House, mode: tuple[str, bool], content: list[Any], reach: Callable[[], Gate], spent: Callable[[], int]
) -> None:
    """Many times: send, reach the stage, leave, wait until the server has noticed, open; nothing more is spent."""
    before = None
    for round_ in range(ROUNDS.get(mode[0], 30)):
        gate = reach()
        sock = send(house, mode[0], content, 1 + 2 * (round_ % 2), stream=mode[1])
        assert gate.reached.wait(60), "the stage was not reached"
        eventually(idle_but_for(gate, house))
        at = spent()
        sock.close()
        eventually(partial(noticed, gate, house))
        gate.open()
        house.settle()
        eventually(lambda: house.engine.loop._encoder.worker.silent_since_s is None)
        assert spent() == at, "something was spent on a client that had left"
        if round_ == 10:
            before = vitals()
    eventually(lambda: all(now <= then for now, then in zip(vitals(), before, strict=True)), lambda: (vitals(), before))


def waits(house: House, requests: int) -> bool:
    """Whether so many requests wait for a slot."""
    return house.engine.loop.stats().waiting == requests


@TEXT_MODES
def test_leaving_while_queued(house: House, api: str, stream: bool) -> None:
    with ThreadPoolExecutor(1) as pool, gated(house) as (encode, _):
        for round_ in range(ROUNDS.get(api, 30)):
            encode.close(lambda pixels: True)
            holder = pool.submit(house.ask, PICTURES[0], "holds the slot")
            assert encode.reached.wait(60)
            choices = 1 + 2 * (round_ % 2) if api in ("chat", "completions") else 1
            sock = send(house, api, [PICTURES[1], "queued"], choices, stream=stream)
            eventually(partial(waits, house, choices))
            at = encode.passed
            sock.close()
            eventually(partial(waits, house, 0))
            encode.open()
            assert holder.result().usage["completion_tokens"] == 8
            house.settle()
            assert encode.passed == at, "its picture was encoded all the same"


@MODES
def test_leaving_while_fetching(house: House, web: PictureHost, api: str, stream: bool) -> None:
    gate = Gate()

    def slow(page: Any) -> None:
        gate.pass_through(page)
        page.close_connection = True

    web.pages["/slow"] = slow

    def reach() -> Gate:
        gate.close(lambda page: True)
        return gate

    with gated(house) as (_, step):
        rounds(house, (api, stream), [part(web.url("/slow")), "look"], reach, lambda: step.passed)


@MODES
def test_leaving_while_decoding(house: House, api: str, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, plain = Gate(), Picture.pixels

    def pixels(self: Picture) -> Any:
        gate.pass_through(self)
        return plain(self)

    def reach() -> Gate:
        gate.close(lambda picture: True)
        return gate

    monkeypatch.setattr(Picture, "pixels", pixels)
    with gated(house) as (encode, step):
        rounds(house, (api, stream), [*PICTURES, "look"], reach, lambda: encode.passed + step.passed)


@MODES
@pytest.mark.parametrize("image", [1, 3])
def test_leaving_while_image_k_is_encoded(house: House, api: str, stream: bool, image: int) -> None:
    """Prefill waits for it."""
    with gated(house) as (encode, step):
        began = 0

        def reach() -> Gate:
            nonlocal began
            began = encode.passed
            encode.close(lambda pixels: encode.passed - began == image)
            return encode

        rounds(house, (api, stream), [*PICTURES, "look"], reach, lambda: encode.passed + step.passed)


@TEXT_MODES
def test_leaving_while_prefilling(house: House, api: str, stream: bool) -> None:
    def middle(plan: StepPlan) -> bool:
        return any(piece.draw is None and piece.start_at > 0 for piece in plan.slices)

    with gated(house) as (_, step):

        def reach() -> Gate:
            step.close(middle)
            return step

        rounds(house, (api, stream), [PICTURES[0], "a text that takes several steps"], reach, lambda: step.passed)


@TEXT_MODES
def test_leaving_while_decoding_tokens(house: House, api: str, stream: bool) -> None:
    def late(plan: StepPlan) -> bool:
        return any(piece.draw is not None and piece.draw.index == 5 for piece in plan.slices)

    with gated(house) as (_, step):

        def reach() -> Gate:
            step.close(late)
            return step

        rounds(house, (api, stream), [PICTURES[0], "look"], reach, lambda: step.passed)


def test_a_storm_of_two_hundred_leavers(folder: Path) -> None:
    """Most leave at random moments, an encoder in a process of its own between them; those who stay are answered."""
    rng = random.Random(7)
    with open_house(folder, encoder_worker="process", queue_requests=500) as house:
        want = [house.ask(PICTURES[k], f"stays {k}") for k in range(3)]

        def leave(number: int) -> None:
            own = png(300 + number)
            pictures = [PICTURES[rng.randrange(3)] if rng.random() < 0.5 else own for _ in range(number % 4)]
            sock = house.open_request(user(*pictures, f"goes {number}"), stream=number % 2 == 0, max_tokens=60)
            pause.wait(rng.random() * 0.2)
            if number % 3 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # reset, no farewell
            sock.close()

        pause = threading.Event()
        with ThreadPoolExecutor(24) as pool:
            before = vitals()
            staying = [pool.submit(house.ask, PICTURES[k % 3], f"stays {k % 3}") for k in range(6)]
            leaving = [pool.submit(leave, i) for i in range(200)]
            staying += [pool.submit(house.ask, PICTURES[k % 3], f"stays {k % 3}") for k in range(6)]
            assert all(one.result().same(want[k % 3]) for k, one in enumerate(staying))
            assert all(one.result() is None for one in leaving)
            house.check()
            house.reconnect()
            eventually(lambda: gone(house))
            files, threads, children = vitals()
            assert children == before[2] and files <= before[0] + 16
            assert threads <= before[1] + 24 + 8  # the pool's own and the event loop's helpers


def test_a_slow_reader_is_dropped_and_hurts_nobody(folder: Path) -> None:
    with open_house(folder, send_stall_s=0.5, max_concurrency=4) as house, socket.socket() as sock:
        want = house.ask(PICTURES[0], "quick")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(tuple(house.server.servers[0].sockets[0].getsockname()[:2]))
        body = house.http.build_request(
            "POST",
            CHAT,
            json={
                "messages": user(PICTURES[1], "long"),
                "stream": True,
                "n": 3,
                "logprobs": True,
                "top_logprobs": 20,
                "max_tokens": 1500,
                "ignore_eos": True,
            },
        )
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body.content)}\r\n\r\n"
        sock.sendall(head.encode() + body.content)
        for _ in range(10):
            assert house.ask(PICTURES[0], "quick").same(want)
        eventually(lambda: house.service.open_answers == 0)
        assert house.service.stats().finished["abort"] == 3, "it was served to its end"
        house.check()
