"""The live state: its document, its stream of changes, and that watchers hold nothing up."""

from __future__ import annotations

import json
from typing import Any

import httpx

from foveate.core.observe import Gauges, RequestView
from tests.server.fake_service import TIMINGS
from tests.server.live import Live, running

RUNNING = RequestView("r1", "encode", 200, 3, 1.5, 0.25, TIMINGS)
ENDED = RequestView("r0", "stop", 20, 7, 0.5)


def show(live: Live) -> None:
    live.service.gauges = Gauges(2, 3, 640, 128, 16, 8, 2, 4096, 160, 1)
    live.service.views = ((RUNNING,), (ENDED,))


def test_the_document_tells_slots_memory_queue_and_requests(live: Live) -> None:
    show(live)
    shown = live.http.get("/status").json()
    assert shown["model"] == "demo" and shown["status"] == "ok" and shown["uptime_s"] >= 0
    assert shown["slots"] == {"total": 8, "used": 2} and shown["kv"] == {"pages": 128, "used": 16}
    assert shown["image_rows"] == {"total": 4096, "used": 160, "kept": 0} and shown["encoder"] == {"images": 1}
    assert shown["queue"] == {"waiting": 3, "image_rows": 640}
    (request,), (ended,) = shown["requests"], shown["recent"]
    assert (request["id"], request["state"], request["prompt_tokens"], request["output_tokens"]) == (
        "r1",
        "encode",
        200,
        3,
    )
    assert (request["elapsed_s"], request["prepare_s"]) == (1.5, 0.25)
    assert [image["rows"] for image in request["images"]] == [96, 64]
    assert request["images"][0]["encode_end_s"] == 0.2 and "key" not in request["images"][0]
    assert request["timings"]["hidden_s"] == 0.3 and "images" not in request["timings"]
    assert ended["state"] == "stop" and ended["images"] == []


def events(live: Live, wanted: int, path: str = "/status/events", **headers: str) -> list[dict[str, Any]]:
    """The first so many events; the state changes after each."""
    seen: list[dict[str, Any]] = []
    with live.http.stream("GET", path, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                if len(seen) == wanted:
                    break
                live.service.views = ((), (RequestView(f"r{len(seen)}", "stop", 1, 1, 1.0),))
    return seen


def test_the_stream_sends_what_changed(live: Live) -> None:
    show(live)
    first, second, third = events(live, 3)
    assert [request["id"] for request in first["requests"]] == ["r1"]
    assert [[request["id"] for request in each["recent"]] for each in (second, third)] == [["r1"], ["r2"]]
    assert events(live, 1, "/status", accept="text/event-stream")[0].keys() == first.keys()


def test_silence_is_filled_with_comments(live: Live) -> None:
    with live.http.stream("GET", "/status/events") as response:
        assert next(line for line in response.iter_lines() if line.startswith(":")) == ": keep-alive"


def test_a_watcher_does_not_hold_up_the_end_of_the_server() -> None:
    with running() as live, httpx.stream("GET", live.url + "/status/events", timeout=20) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: status"
        live.service.draining = True
        assert not [line for line in lines if line.startswith("event")]


def test_the_version_is_told(live: Live) -> None:
    assert live.http.get("/version").json() == {"version": live.http.get("/status").json()["version"]}
