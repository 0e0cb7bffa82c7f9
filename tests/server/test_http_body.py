"""Bodies that are huge, deep, slow or lie (B17, B60): refused early, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from foveate.core.config import MIB
from foveate.core.errors import Busy, FoveateError, InvalidRequest, TooLarge
from foveate.server import body as body_module
from foveate.server.body import BodyReader, parse_json
from foveate.server.contract import Limits
from foveate.server.errors import ClientGone
from tests.server.live import CHAT, HELLO, PIXEL, Live


def request_of(*messages: Message, headers: dict[str, str] | None = None) -> Request:
    """A request whose body arrives as the given messages, and then never anything again."""
    waiting = list(messages)

    async def receive() -> Message:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return Request({"type": "http", "method": "POST", "headers": raw}, receive)


def piece(data: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


def load(limits: Limits, request: Request) -> Any:
    return asyncio.run(BodyReader(limits).load(request, lambda document: document))


def test_pieces_are_put_together() -> None:
    assert load(Limits(), request_of(piece(b'{"a"', True), piece(b":", True), piece(b"[1.5]}"))) == {"a": [1.5]}


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (lambda: request_of(headers={"content-length": "1001"}), TooLarge),
        (lambda: request_of(piece(b"x" * 600, True), piece(b"x" * 401, True)), TooLarge),
        (lambda: request_of(piece(b"{}"), headers={"content-encoding": "gzip"}), InvalidRequest),
        (lambda: request_of(piece(b"{", True)), InvalidRequest),
        (lambda: request_of(), InvalidRequest),
        (lambda: request_of(piece(b"{", True), {"type": "http.disconnect"}), ClientGone),
    ],
)
def test_what_cannot_be_read_is_refused(request_: Any, kind: type[Exception]) -> None:
    limits = Limits(body_bytes=1000, read_stall_s=0.01)
    reader = BodyReader(limits)
    with pytest.raises(kind):
        asyncio.run(reader.load(request_(), lambda document: document))
    assert asyncio.run(reader.load(request_of(piece(b"[]")), lambda document: document)) == []
    assert reader._held == 0


def test_a_trickle_that_never_stalls_has_a_deadline() -> None:
    async def receive() -> Message:
        await asyncio.sleep(0.001)
        return piece(b" ", True)

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(InvalidRequest, match="in time"):
        load(Limits(body_s=0.05), request)


def test_bodies_being_read_have_a_common_budget() -> None:
    async def check() -> None:
        reader = BodyReader(Limits(held_bytes=1000, read_stall_s=30))
        slow = asyncio.ensure_future(reader.load(request_of(piece(b"[" + b" " * 699, True)), lambda document: document))
        while reader._held == 0:
            await asyncio.sleep(0)
        with pytest.raises(Busy):
            await reader.load(request_of(piece(b" " * 400, True)), lambda document: document)
        assert reader._held == 700
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert reader._held == 0

    asyncio.run(check())


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_depth_is_counted_exactly(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    limits = Limits(json_depth=64)
    assert parse_json(opening * 64 + b"1" + closing * 64, limits)
    for depth in (65, 199, 100_000):
        with pytest.raises(InvalidRequest, match="64 levels"):
            parse_json(opening * depth + b"1" + closing * depth, limits)
    with pytest.raises(InvalidRequest):
        parse_json(opening * 100_000, limits)


def test_values_are_bounded_before_they_are_built() -> None:
    limits = Limits(json_values=1000)
    assert len(parse_json(b"[" + b"1," * 900 + b"1]", limits)) == 901
    for bomb in (b"[" + b"1," * 1000 + b"1]", b"[" + b"[]," * 600 + b"1]"):
        with pytest.raises(InvalidRequest, match="1000 JSON values"):
            parse_json(bomb, limits)


@pytest.mark.parametrize("junk", [b"{'a': S3CRET}", b'{"S3CRET": }', b'"S3CRET', b"\xffS3CRET", b'{"a": 1} S3CRET'])
def test_errors_of_syntax_quote_nothing(junk: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json(junk, Limits())
    assert "S3CRET" not in caught.value.message and caught.value.code == "invalid_json"


def test_large_bodies_are_parsed_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def build(document: Any) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        return str(document["a"])

    monkeypatch.setattr(body_module, "OFF_LOOP_BYTES", 100)
    for size in (50, 150):
        content = json.dumps({"a": "x" * size}).encode()
        assert asyncio.run(BodyReader(Limits()).load(request_of(piece(content)), build)) == "x" * size
    assert threads == [True, False]


def test_b17_a_large_picture_passes_and_a_larger_one_is_413(live: Live) -> None:
    def asked(size: int) -> dict[str, Any]:
        url = PIXEL + "A" * size
        return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}

    assert live.chat(**asked(3 * MIB)).status_code == 200
    assert len(live.service.requests[0].images[0].url) > 3 * MIB
    response = live.chat(**asked(5 * MIB))
    assert response.status_code == 413 and response.json()["error"]["code"] == "request_too_large"
    assert "4 MiB" in response.json()["error"]["message"] and len(response.content) < 4096
    assert len(live.service.requests) == 1


def read_answer(sock: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and JSON of an answer with a Content-Length, read from a raw connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(4096)
    head, _, rest = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(rest) < length:
        rest += sock.recv(4096)
    return int(head.split()[1]), json.loads(rest)


def test_b60_a_declared_giant_is_refused_before_it_arrives(live: Live) -> None:
    with live.connect() as sock:
        sock.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {64 * MIB}\r\n\r\n{{".encode())
        status, body = read_answer(sock)
        assert status == 413 and body["error"]["code"] == "request_too_large"
        sock.sendall(b" " * 8 * MIB)  # a client that is still sending is not cut off: it may not have read yet
    assert live.http.get("/health").status_code == 200


def test_b60_a_chunked_giant_is_cut_and_its_sender_still_reads_the_answer(live: Live) -> None:
    def giant() -> Any:
        for _ in range(64):
            yield b" " * MIB

    response = live.http.post(CHAT, content=giant())
    assert response.status_code == 413 and response.json()["error"]["code"] == "request_too_large"
    assert live.chat().status_code == 200


def test_b60_a_body_that_stops_arriving_is_refused(live: Live) -> None:
    with live.connect() as sock:
        sock.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode())
        status, body = read_answer(sock)
        assert status == 400 and "in time" in body["error"]["message"]


def test_b60_both_length_headers_never_reach_the_application(live: Live) -> None:
    content = json.dumps({"messages": HELLO}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with live.connect() as sock:
        sock.sendall(head.encode() + b"%x\r\n" % len(content) + content + b"\r\n0\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 400")
    assert live.service.requests == []


def test_b60_deep_bodies_over_http(live: Live) -> None:
    for content in (b"[" * 100_000, b'{"messages":' + b"[" * 100_000):
        response = live.http.post(CHAT, content=content)
        assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_json"


def test_a_client_that_leaves_in_its_body_is_nobody_s_error(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    sock = live.connect()
    sock.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode())
    sock.close()
    assert live.chat().status_code == 200
    assert len(live.service.requests) == 1 and not [record for record in caplog.records if record.levelname == "ERROR"]


def test_limits_hold_for_whatever_is_thrown_at_the_parser() -> None:
    from hypothesis import given, settings
    from hypothesis import strategies as st

    nested = st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner), max_leaves=20
    )

    @settings(max_examples=200, deadline=None, derandomize=True, database=None)
    @given(st.binary() | nested.map(lambda value: json.dumps(value).encode()))
    def check(data: bytes) -> None:
        try:
            parse_json(data, Limits(json_depth=5, json_values=50))
        except FoveateError as error:
            assert isinstance(error, InvalidRequest) and len(error.message) < 200

    check()
