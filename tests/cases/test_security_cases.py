"""Cases B55 to B60: where pictures may not come from, who may ask, and bodies that are huge, deep or a lie."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from foveate.core.config import MIB
from foveate.prompt.fetch import fetch
from foveate.service import prepare
from tests.cases.oracle import CHAT, House, eventually, open_house, part, refused, url, user
from tests.support.engines import png
from tests.support.web import PictureHost

KEY = "sk-right-key-of-a-test"


@pytest.fixture(scope="module")
def guarded(folder: Path, web: PictureHost) -> Iterator[House]:
    """As it comes, but that the test's port is a usual one: only global addresses may be fetched from."""
    with open_house(folder, allowed_media_ports=f"80,443,{web.port}") as house:
        yield house
        house.check()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Names and the addresses that a stub of the resolver gives for them; a name that was asked is noted."""
    known: dict[str, list[str]] = {}

    async def resolve(host: str, port: int) -> list[str]:
        known.setdefault(f"asked {host}", []).append(str(port))
        return known[host]

    monkeypatch.setattr(prepare, "fetch", partial(fetch, resolve=resolve))
    return known


INSIDE = ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "0177.0.0.1", "localhost", "localhost."]
INSIDE += ["127.1", "0", "[::]", "169.254.169.254", "10.0.0.1", "192.168.1.1", "[fe80::1]", "[fd00::1]", "100.64.0.1"]
INSIDE += ["[64:ff9b::7f00:1]", "[2002:7f00:1::]", "127.0.0.1.", "user@127.0.0.1", "127.0.0.1#@example.org"]


@pytest.mark.parametrize("host", INSIDE)
def test_B55_places_inside_are_refused_and_never_dialled(guarded: House, web: PictureHost, host: str) -> None:
    web.pages["/secret"] = png(1)
    web.asked.clear()
    for scheme in ("http", "https"):
        where = f"{scheme}://{host}:{web.port}/secret"
        refused(guarded.post(user(part(where), "what?")), 400, param="messages[0].content[0].image_url.url")
    assert web.asked == []


def test_B55_names_that_lead_inside(guarded: House, web: PictureHost, names: dict[str, list[str]]) -> None:
    web.asked.clear()
    names |= {"inside.example": ["127.0.0.1"], "mixed.example": ["93.184.215.14", "127.0.0.1"]}
    for host in ("inside.example", "mixed.example"):
        message = refused(guarded.post(user(part(f"http://{host}:{web.port}/secret"), "what?")), 400)
        assert "does not fetch from" in message and names[f"asked {host}"]
    assert web.asked == []


def test_B55_every_hop_is_checked(house: House, web: PictureHost, names: dict[str, list[str]]) -> None:
    def leads(where: str) -> Any:
        def page(handler: Any) -> None:
            handler.send_response(302)
            handler.send_header("Location", where)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        return page

    web.pages |= {"/good": png(2), "/inner": leads("/good"), "/loop": leads("/loop")}
    assert house.ask(part(web.url("/inner")), "what?").same(house.ask(png(2), "what?"))
    targets = [
        "http://169.254.169.254/x",
        "http://10.0.0.1/x",
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
        "ftp://x/",
    ]
    targets += ["http://two.example/x", "gopher://127.0.0.1/", "data:image/png;base64,AA==", "//169.254.169.254/x"]
    names["two.example"] = ["10.1.2.3"]
    for n, target in enumerate(targets):
        web.pages[f"/hop{n}"] = leads(target)
        refused(house.post(user(part(web.url(f"/hop{n}")), "what?")), 400)
    assert "redirects" in refused(house.post(user(part(web.url("/loop")), "what?")), 400)


def test_B55_the_checked_address_is_dialled(house: House, web: PictureHost, names: dict[str, list[str]]) -> None:
    """A name that answers differently the second time is not asked a second time."""
    names["once.example"] = ["127.0.0.1"]
    web.pages["/named"] = png(3)
    house.ask(part(web.url("/named", "once.example")), "what?")
    assert len(names["asked once.example"]) == 1


def test_B55_fetching_can_be_switched_off_or_limited_to_hosts(folder: Path, web: PictureHost) -> None:
    web.pages["/listed"] = png(4)
    with open_house(folder, allow_http=False) as house:
        assert "data: URL" in refused(house.post(user(part(web.url("/listed")), "x")), 400)
        house.check()
    nets = {"allowed_media_networks": "127.0.0.0/8", "allowed_media_ports": str(web.port)}
    with open_house(folder, allowed_media_hosts="pictures.example,.of.example", **nets) as house:
        refused(house.post(user(part(web.url("/listed")), "x")), 400)
        house.check()


@pytest.fixture(scope="module")
def shelf(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[House, Path]]:
    root = tmp_path_factory.mktemp("media")
    (root / "pictures").mkdir()
    (root / "pictures" / "a b.png").write_bytes(png(5))
    (root / "outside.png").write_bytes(png(6))
    with open_house(folder, media_path=str(root / "pictures")) as house:
        yield house, root
        house.check()


def test_B57_files_below_the_media_folder_and_no_others(shelf: tuple[House, Path]) -> None:
    house, root = shelf
    inside = root / "pictures"
    want = house.ask(png(5), "what?")
    for good in (f"file://{inside}/a%20b.png", f"file://localhost{inside}/a%20b.png", f"file:{inside}/a b.png"):
        assert house.ask(part(good), "what?").same(want)
    (inside / "way-out.png").symlink_to(root / "outside.png")
    os.mkfifo(inside / "pipe.png")
    bad = ["/etc/passwd", "/dev/zero", "/no/such/file", f"{inside}/../outside.png", f"{inside}/%2e%2e/outside.png"]
    bad += [f"{inside}/way-out.png", f"{inside}/pipe.png", f"{inside}", f"{inside}/none.png", f"{inside}/a%00b.png"]
    bad += [f"{inside}/%2e%2e%2foutside.png", f"{inside}/" + "x/" * 3000]
    messages = {refused(house.post(user(part("file://" + path), "what?")), 400) for path in bad}
    messages.add(refused(house.post(user(part("file://otherhost/etc/passwd"), "what?")), 400))
    assert len(messages) == 1, "what is refused must not tell whether it exists"
    for path in ("/etc/passwd", f"{inside}/a b.png", "../x.png"):
        refused(house.post(user(part(path), "what?")), 400)


def test_B57_without_a_media_folder_there_are_no_files(house: House) -> None:
    messages = {refused(house.post(user(part(f"file://{path}"), "x")), 400) for path in ("/etc/passwd", "/no/such")}
    assert len(messages) == 1


@pytest.fixture(scope="module")
def locked(folder: Path) -> Iterator[House]:
    with open_house(folder, keys=(KEY, "sk-another")) as house:
        yield house
        house.check()
        assert not [line for line in house.log.lines if "sk-" in line]


def test_B58_every_route_asks_for_the_key_but_health(locked: House) -> None:
    """Walks the table of the running app, so that a new route is closed until it is opened on purpose."""
    paths = {route.path for route in locked.server.config.app.routes}  # type: ignore[union-attr]
    assert {"/health", CHAT, "/v1/models", "/metrics", "/openapi.json"} <= paths
    heads = [{}, {"Authorization": "Bearer"}, {"Authorization": f"Bearer {KEY}x"}]
    heads += [{"Authorization": f"Bearer {KEY.upper()}"}, {"Authorization": KEY}, {"x-api-key": "wrong"}]
    heads += [{"Authorization": f"Basic {KEY}"}, {"x-api-key": ""}]
    odd = [
        "/page/",
        "/page/a/b",
        "//v1/models",
        "/V1/models",
        "/v1/../v1/models",
        "/health/",
        "/healthz",
        "/health/../v1/models",
    ]
    odd += ["/%68ealth/x", "/nothing", "/health;/v1/models", "/docs"]
    page = {"/", "/page/{name}", "/examples/{name}"}  # static files that ask for a key themselves
    for path in sorted(paths - {"/health"} - page) + odd:
        for method in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
            for head in heads:
                head = {"Authorization": "", **head}
                response = locked.http.request(method, path.replace("{model_id:path}", "x"), headers=head)
                assert response.status_code == 401, (method, path, head, response.status_code)
    assert locked.http.get("/health", headers={"Authorization": ""}).status_code == 200


def test_B58_right_keys_open_and_are_told_to_nobody(locked: House) -> None:
    for head in ({"Authorization": f"Bearer {KEY}"}, {"Authorization": "bearer sk-another"}, {"x-api-key": KEY}):
        response = locked.http.get("/v1/models", headers=head)
        assert response.status_code == 200 and "sk-" not in response.text
    refusal = locked.http.get("/v1/models", headers={"Authorization": "Bearer sk-guess"})
    assert "sk-" not in refusal.text and refusal.headers["www-authenticate"] == "Bearer"


def test_B59_twelve_thousand_wrong_parts_make_one_short_error(house: House) -> None:
    refused(house.post([{"role": "user", "content": [{"type": "nonsense"}] * 12_000}]), 400)
    refused(house.post([7] * 12_000), 400)
    data = url(bytes(10 * MIB))
    for fields in ({"model": data}, {"user": [data]}, {"stop": [[data]]}, {data: 1}, {"tools": data}):
        response = house.post(user("x"), **fields)
        assert response.status_code in (400, 404) and len(response.content) < 4096
        assert "A" * 65 not in response.text  # of a field's name, made up by the client, a piece is shown
    refused(house.post([{"role": "user", "content": data[:1000], data[:1000]: 1}]), 400)
    assert not [line for line in house.log.lines if "AAAAAAAA" in line]


def raw(house: House, head: str, body: bytes = b"") -> socket.socket:
    host, _, port = house.address.removeprefix("http://").rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + body)
    return sock


def status_of(sock: socket.socket) -> int:
    with sock:
        return int(sock.recv(4096).split()[1])


def test_B60_bodies_that_are_too_large_deep_or_many(folder: Path) -> None:
    with open_house(folder, max_body_mib=8, read_stall_s=0.5) as house:
        before = psutil.Process().memory_info().rss
        refused(house.http.post(CHAT, content=b"[" * 100_000), 400, "invalid_json")
        refused(house.http.post(CHAT, content=b'{"a":' * 100_000), 400, "invalid_json")
        refused(house.http.post(CHAT, content=b" " * 9 * MIB), 413, "request_too_large")
        chunked = (b" " * MIB for _ in range(64))
        assert house.http.post(CHAT, content=chunked).status_code == 413
        refused(house.post(user(*[part("data:,x")] * 10_000, "many")), 400, param="messages")
        assert status_of(raw(house, "Content-Length: 68719476736\r\n")) == 413
        assert status_of(raw(house, "Content-Length: 1000\r\n", b'{"mess')) == 400
        assert status_of(raw(house, "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n")) == 400
        assert status_of(raw(house, "Content-Length: 5\r\nContent-Length: 6\r\n", b"{}")) == 400
        assert status_of(raw(house, "Content-Length: -5\r\n", b"{}")) == 400
        assert psutil.Process().memory_info().rss - before < 256 * MIB
        house.reconnect()
        house.check()


def test_B60_silent_bodies_hold_nobody_up(folder: Path) -> None:
    with open_house(folder, read_stall_s=1.0) as house:
        silent = [raw(house, "Content-Length: 1000000\r\n", b'{"messages"') for _ in range(50)]
        want = house.ask(png(9), "meanwhile")
        answered = threading.Event()

        def ask() -> None:
            assert house.ask(png(9), "meanwhile").same(want)
            answered.set()

        threading.Thread(target=ask).start()
        assert answered.wait(30) and house.http.get("/health").status_code == 200
        assert [status_of(sock) for sock in silent] == [400] * 50
        house.reconnect()
        eventually(lambda: len(house.server.server_state.connections) <= 1)
        house.check()


def test_B60_depth_is_a_setting(folder: Path) -> None:
    def deep(levels: int) -> bytes:
        body = {"messages": user("x"), "metadata": 0, "max_tokens": 1, "temperature": 0}
        return json.dumps(body).replace('"metadata": 0', '"user": ' + "[" * levels + "]" * levels).encode()

    with open_house(folder, max_json_depth=8) as house:
        assert "nested" in refused(house.http.post(CHAT, content=deep(10)), 400, "invalid_json")
        assert "user" in refused(house.http.post(CHAT, content=deep(6)), 400)
        house.check()
