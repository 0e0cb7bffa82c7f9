"""B58: with API keys set, every route but /health asks for one, whatever routes there are."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message

from foveate.core.config import Settings
from foveate.core.errors import ConfigError
from foveate.server.app import create_app
from tests.server.fake_service import FakeService
from tests.server.live import CHAT, HELLO

KEYS = ("first-key", "second-key")


def ask(app: FastAPI, method: str, path: str, headers: Any = None, json: Any = None) -> httpx.Response:
    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.request(method, path, headers=headers, json=json)

    return asyncio.run(once())


@pytest.fixture
def closed() -> FastAPI:
    return create_app(FakeService(), Settings(), keys=KEYS)


def test_b58_every_route_of_the_table_is_closed(closed: FastAPI) -> None:
    paths = {route.path for route in closed.routes}  # type: ignore[attr-defined]
    assert {CHAT, "/v1/models", "/metrics", "/health", "/openapi.json"} <= paths
    more = {
        "//v1/models",
        "/V1/models",
        "/v1/models/",
        "/health/",
        "/health/../metrics",
        "/nope",
        "/HEALTH",
        "/page/",
        "/page/a/b",
    }
    page = {"/", "/page/{name}", "/examples/{name}"}
    for path in (paths | more) - {"/health"} - page:
        for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT"):
            response = ask(closed, method, path)
            assert response.status_code == 401, (method, path)
            assert response.headers["www-authenticate"] == "Bearer"
    assert ask(closed, "GET", "/v1/models").json()["error"]["code"] == "invalid_api_key"
    for path in ("/health", "/", "/page/app.js"):
        assert ask(closed, "GET", path).status_code != 401, path


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}, {"Authorization": "Bearer FIRST-KEY"},
        {"Authorization": "Bearer first-ke"}, {"Authorization": "Bearer first-key2"}, {"x-api-key": "other"},
        {"Authorization": "Basic first-key"}, {"Authorization": "first-key"}, {"x-api-key": ""},
    ],
)  # fmt: skip
def test_b58_a_wrong_key_is_no_key(closed: FastAPI, headers: Any) -> None:
    response = ask(closed, "POST", CHAT, headers, {"messages": HELLO})
    assert response.status_code == 401 and "first-key" not in response.text


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": "Bearer first-key"}, {"authorization": "bearer first-key"}, {"x-api-key": "second-key"}],
)
def test_a_right_key_opens(closed: FastAPI, headers: dict[str, str]) -> None:
    assert ask(closed, "POST", CHAT, headers, {"messages": HELLO}).status_code == 200
    assert ask(closed, "GET", "/nope", headers).status_code == 404


def test_preflights_need_no_key_and_refusals_can_be_read_by_pages(closed: FastAPI) -> None:
    headers = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    assert ask(closed, "OPTIONS", CHAT, headers).status_code == 200
    assert ask(closed, "GET", "/v1/models", headers).headers["access-control-allow-origin"] == "*"


def test_websockets_are_closed(closed: FastAPI) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(closed({"type": "websocket", "path": "/v1/models", "headers": [], "query_string": b""}, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_without_keys_everything_is_open_and_an_empty_key_is_refused() -> None:
    assert ask(create_app(FakeService(), Settings()), "GET", "/v1/models").status_code == 200
    with pytest.raises(ConfigError):
        create_app(FakeService(), Settings(), keys=("",))
