"""Whatever is thrown at the server, no answer is a 500: data URLs, bodies of any shape, and what its own OpenAPI
description says may be sent. Bounded by numbers of examples, with fixed seeds, so that a run is the same each time."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.cases.oracle import CHAT, House, open_house, part, refused, url, user
from tests.cases.test_picture_cases import encoded, gradient
from tests.support.harness import tiny


def bounded(examples: int) -> Any:
    """So many examples, the same ones each time."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


SEEDS = [encoded(gradient(40, 30), kind) for kind in ("PNG", "JPEG", "WebP", "GIF", "TIFF", "BMP", "AVIF")]
SEEDS += [encoded(gradient(40, 30).convert(mode)) for mode in ("P", "LA", "1", "RGBA", "I;16")]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with open_house(tiny("dense")[2], allow_http=False, max_ctx=512, kv_tokens=1024) as house:
        yield house
        house.check()


def sound(house: House, response: Any) -> None:
    """Not a server's fault; an error in its one shape."""
    assert response.status_code < 500, response.text[:1000]
    if response.status_code >= 400:
        refused(response, response.status_code)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A real picture with a few bytes changed, cut out or put in."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 2))
        if kind == 0:
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == 1:
            del data[at : at + draw(st.integers(1, 200))]
        else:
            data[at:at] = draw(st.binary(max_size=20))
    return bytes(data)


@st.composite
def odd_urls(draw: st.DrawFn) -> str:
    """URLs that are data URLs more or less."""
    text = base64.b64encode(draw(st.sampled_from(SEEDS))).decode()
    at = draw(st.integers(0, len(text)))
    head = draw(st.sampled_from(["data:image/png;base64,", "data:;base64,", "data:,", "DATA:x;BASE64,", "data:"]))
    return head + text[:at] + draw(st.text(max_size=6)) + text[at:]


@bounded(250)
@given(damaged())
def test_damaged_pictures(house: House, data: bytes) -> None:
    sound(house, house.post(user(data, "x"), max_tokens=1))


def in_messages(where: str) -> list[dict[str, Any]]:
    """A picture in Anthropic's words, as a URL and, if it is data, as such."""
    head, _, data = where.partition(",")
    sources = [{"type": "url", "url": where}, {"type": "base64", "media_type": "image/png", "data": data or head}]
    blocks = [{"type": "image", "source": source} for source in sources]
    return [{"messages": [{"role": "user", "content": [block]}], "max_tokens": 1} for block in blocks]


def in_responses(where: str) -> list[dict[str, Any]]:
    """A picture in the Responses API's words, in a message and in what a tool gave."""
    part = {"type": "input_image", "image_url": where}
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    given_back = {"type": "function_call_output", "call_id": "a", "output": [part]}
    items = [[{"role": "user", "content": [part]}], [call, given_back]]
    return [{"input": item, "max_output_tokens": 1} for item in items]


@bounded(60)
@given(damaged().map(url) | odd_urls() | st.text(min_size=1, max_size=40))
def test_damaged_pictures_and_odd_urls_in_the_other_apis(house: House, where: str) -> None:
    for path, bodies in (("/v1/messages", in_messages(where)), ("/v1/responses", in_responses(where))):
        for body in bodies:
            sound_in_any_shape(house.http.post(path, json=body))
    counted = {"messages": in_messages(where)[0]["messages"]}
    sound_in_any_shape(house.http.post("/v1/messages/count_tokens", json=counted))
    sound_in_any_shape(house.http.post("/tokenize", json={"messages": user(part(where))}))


@bounded(200)
@given(odd_urls() | st.text(min_size=1, max_size=80))
def test_odd_urls(house: House, where: str) -> None:
    sound(house, house.http.post(CHAT, json={"messages": user(part(where), "x"), "max_tokens": 1}))


WORDS = """
messages role content type text image_url url detail model stream n stop seed temperature max_tokens logit_bias
tools tool_calls function name arguments top_p logprobs stream_options response_format json_schema
input instructions previous_response_id max_output_tokens input_image output_text function_call_output call_id output
system source base64 media_type data tool_use tool_result thinking budget_tokens prompt echo tokens suffix
"""
NAMES = st.sampled_from(WORDS.split())
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=8), inner, max_size=5),
    max_leaves=25,
)
GOOD: dict[str, Any] = {"messages": user(SEEDS[0], "x"), "max_tokens": 1, "temperature": 0}
GOOD_AT: dict[str, dict[str, Any]] = {
    CHAT: GOOD,
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/responses": in_responses(url(SEEDS[0]))[0],
    "/v1/messages": in_messages(url(SEEDS[0]))[0],
    "/v1/messages/count_tokens": {"messages": in_messages(url(SEEDS[0]))[0]["messages"]},
    "/tokenize": {"messages": GOOD["messages"]},
    "/detokenize": {"tokens": [1, 2, 3]},
}


@bounded(100)
@given(st.dictionaries(NAMES, JSON, max_size=4), st.booleans())
def test_bodies_of_any_shape(house: House, fields: dict[str, Any], replaced: bool) -> None:
    for path, good in GOOD_AT.items():
        sound_in_any_shape(house.http.post(path, json=fields if replaced else good | fields))


@bounded(60)
@given(st.data())
def test_good_bodies_with_something_else_deep_inside(house: House, data: st.DataObject) -> None:
    """One value of a good request, at any depth, is replaced, doubled or taken out."""
    for path, good in GOOD_AT.items():
        body = json.loads(json.dumps(good))
        holder, at = data.draw(st.sampled_from(places(body)))
        kind = data.draw(st.sampled_from(["replace", "drop", "double"]))
        if kind == "replace":
            holder[at] = data.draw(JSON)
        elif kind == "double" and isinstance(holder, list):
            holder.insert(at, holder[at])
        else:
            del holder[at]
        sound_in_any_shape(house.http.post(path, json=body))


def places(value: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of every value inside."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *places(value[key])]]


def test_the_good_bodies_are_good(house: House) -> None:
    """So that what is changed in them is what is tried."""
    for path, good in GOOD_AT.items():
        assert house.http.post(path, json=good).status_code == 200, path


@bounded(100)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_bodies_that_may_not_be_json(house: House, body: bytes) -> None:
    sound(house, house.http.post(CHAT, content=body))
    for path, good in GOOD_AT.items():
        whole = json.dumps(good).encode()
        at = len(body) % len(whole)
        sound_in_any_shape(house.http.post(path, content=whole[:at] + body + whole[at + 1 :]))


def sound_in_any_shape(response: Any) -> None:
    assert response.status_code < 500, response.text[:1000]
    if response.status_code >= 400:
        assert "error" in response.json() and len(response.content) < 4096


def test_a_url_is_told_from_its_bytes() -> None:
    assert url(SEEDS[0]).startswith("data:image/png;base64,iVBOR")


QUICK = {CHAT: {"max_tokens": 1}, "/v1/completions": {"max_tokens": 1}, "/v1/messages": {"max_tokens": 1}}
QUICK |= {"/v1/responses": {"max_output_tokens": 1}}


def test_the_served_description_holds(house: House) -> None:
    """Every operation of /openapi.json with generated requests: no 500, no status or shape that it does not name."""
    schema = schemathesis.openapi.from_url(house.address + "/openapi.json")
    checks = [not_a_server_error, status_code_conformance, response_schema_conformance]
    seen: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        seen[operation.label] = set()
        if operation.path == "/status/events":
            continue  # a stream without an end

        @bounded(40)
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            if isinstance(case.body, dict) and case.path in QUICK:  # of what is valid, only what is quickly answered
                case.body |= QUICK[case.path]
            seen[case.operation.label].add(case.call_and_validate(checks=checks, timeout=60).status_code)

        check()
    assert {f"POST {path}" for path in GOOD_AT} | {"GET /health", "GET /v1/models"} <= seen.keys()
    answered = {label for label, statuses in seen.items() if 200 in statuses}
    assert {"POST /v1/completions", "POST /detokenize", "GET /status"} <= answered, seen


def test_the_description_says_where_it_ends(tmp_path: Path, house: House) -> None:
    document = house.http.get("/openapi.json").json()
    paths = {route.path for route in house.server.config.app.routes if hasattr(route, "methods")}  # type: ignore[union-attr]
    public = {path.replace(":path", "") for path in paths} - {"/openapi.json"}
    assert set(document["paths"]) <= public
