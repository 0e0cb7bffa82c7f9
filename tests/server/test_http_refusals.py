"""What is refused, with which status, code and param, and that nothing of the client's input comes back."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import httpx
import pytest

from foveate.core.errors import (
    Busy,
    CheckpointError,
    ContextLengthExceeded,
    EncodeFailed,
    FoveateError,
    InvalidImage,
    InvalidRequest,
)
from foveate.server.openai import translate
from foveate.server.openai_request import ChatCompletionRequest, parse_request
from foveate.server.wire import HARMLESS, REFUSED, marked_fields
from tests.server.fake_service import FakeService, Gate, Script, words
from tests.server.live import CHAT, HELLO, PIXEL, Live


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object, after checking everything that holds for every error."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert len(response.content) < 4096
    body = response.json()
    assert body.keys() == {"error"} and body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["type"] == {500: "server_error", 503: "service_unavailable_error"}.get(
        status, "invalid_request_error"
    )
    return dict(body["error"])


# One request per field that a client may send and that changes the request to the service.
SUPPORTED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "other"}],
    "max_tokens": 3, "max_completion_tokens": 3, "min_tokens": 3, "temperature": 0.5, "top_p": 0.5, "top_k": 5,
    "min_p": 0.5, "frequency_penalty": 1, "presence_penalty": 1, "repetition_penalty": 1.5, "seed": 5, "stop": "x",
    "stop_token_ids": [5], "ignore_eos": True, "logit_bias": {"5": 1}, "logprobs": True, "n": 2,
    "chat_template_kwargs": {"a": 1}, "tools": [{"type": "function", "function": {"name": "f"}}],
    "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a+"}, "reasoning_effort": "low",
    "add_generation_prompt": False, "thinking_token_budget": 50,
}  # fmt: skip
# Each has its own tests.
ELSEWHERE = {"model", "stream", "stream_options", "top_logprobs", "tool_choice", "parallel_tool_calls"}
ELSEWHERE |= {"continue_final_message"}


def test_every_field_of_the_model_is_supported_or_harmless_or_refused() -> None:
    refused, harmless = (marked_fields(ChatCompletionRequest, mark) for mark in (REFUSED, HARMLESS))
    assert not refused.keys() & harmless.keys()
    rest = ChatCompletionRequest.model_fields.keys() - refused.keys() - harmless.keys()
    assert rest == SUPPORTED.keys() | ELSEWHERE
    service = FakeService()
    plain = translate(parse_request({"messages": HELLO}), service)
    for name, value in SUPPORTED.items():
        asked = translate(parse_request({"messages": HELLO, name: value}), service)
        assert asked != plain, f"{name} is accepted and ignored"
    for name, allowed in refused.items():
        for value in ({"some": "thing"}, ["thing"], "thing", 17):
            with pytest.raises(InvalidRequest) as caught:
                parse_request({"messages": HELLO, name: value})
            assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)
            assert name in caught.value.message
        for value in (None, *allowed):
            assert translate(parse_request({"messages": HELLO, name: value}), service) == plain


def test_every_field_of_openai_s_own_request_is_known() -> None:
    from openai.types.chat import completion_create_params as params

    theirs = params.CompletionCreateParamsNonStreaming.__annotations__.keys()
    assert len(theirs) > 25
    assert theirs - ChatCompletionRequest.model_fields.keys() == set()


def test_every_part_type_of_openai_s_request_is_supported_or_refused_by_name(live: Live) -> None:
    from openai.types.chat import ChatCompletionContentPartParam as Theirs

    names = {name for part in get_args(Theirs) for name in get_args(get_type_hints(part)["type"])}
    assert {"text", "image_url", "input_audio"} <= names
    for name in names - {"text", "image_url", "input_text", "input_image"}:
        messages = [{"role": "user", "content": [{"type": name}]}]
        error = error_of(live.chat(messages=messages), 400)
        assert error["code"] == "unsupported_parameter" and name in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("modalities", ["text", "audio"]), ("functions", [{"name": "f"}]),
        ("audio", {"voice": "x"}), ("web_search_options", {}), ("prediction", {}),
        ("store", True), ("chat_template", "{{ x }}"), ("guided_json", {}), ("service_tier", "flex"),
    ],
)  # fmt: skip
def test_unsupported_options_are_refused_by_name(live: Live, name: str, value: Any) -> None:
    error = error_of(live.chat(**{name: value}), 400)
    assert (error["code"], error["param"]) == ("unsupported_parameter", name) and name in error["message"]
    assert live.service.requests == []


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_tokens", [0, -1, 10**12, 1e12, "5", True, 1.5]),
        ("max_completion_tokens", [0, "5"]),
        ("temperature", [-0.1, 1e9, "1", True, [1]]),
        ("top_p", [0, 1.1, -1]),
        ("top_k", [-2, 1.5, True]),
        ("min_p", [-0.1, 1.1]),
        ("frequency_penalty", [2.1]),
        ("presence_penalty", [-2.1]),
        ("repetition_penalty", [0, -1, 11]),
        ("n", [0, 17, 129, "2"]),
        ("seed", [2**63, -(2**63) - 1, 1.5]),
        ("stop", ["", 5, ["x"] * 17]),
        ("stop_token_ids", ["x", [1] * 65]),
        ("logprobs", [1, "true"]),
        ("top_logprobs", [-1, 21, 3]),
        ("logit_bias", [[], {"x": 1}, {"-1": 1}, {"1.5": 1}, {"٣": 1}]),
        ("stream", [1, "yes"]),
        ("stream_options", [5, {"include_usage": True}]),
        ("min_tokens", [-1]),
        ("metadata", [5]),
        ("model", [5, ["demo"]]),
        ("chat_template_kwargs", [{"a": [1]}, {"a": "x" * 300}]),
        ("messages", [[], "x", None, {}, 5]),
        ("tools", [{}, [{"type": "function", "function": {"name": "f"}}] * 2]),
        ("tool_choice", ["maybe", {"type": "allowed"}, "required", {"type": "function", "function": {"name": "f"}}]),
        ("reasoning_effort", ["much", 5]),
        ("continue_final_message", [True, "yes"]),
        ("response_format", ["json", []]),
        ("structured_outputs", [{"regex": "a", "choice": ["b"]}, "x"]),
    ],
)
def test_b49_values_out_of_range_name_their_param(live: Live, name: str, values: list[Any]) -> None:
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]
    for value in values:
        error = error_of(live.http.post(CHAT, json={"messages": picture, name: value}), 400)
        assert error["param"] == name, value
    assert live.service.requests == []
    assert live.chat(temperature=1e-4).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs.messages"),
        ({"nonsense": 1}, "nonsense"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"json_object": True}},
            "structured_outputs",
        ),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
    ],
)
def test_paths_inside_a_field_are_named(live: Live, fields: dict[str, Any], param: str) -> None:
    assert error_of(live.chat(**fields), 400)["param"] == param


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_that_are_none_are_refused(live: Live, number: str) -> None:
    for field in ("temperature", "nonsense"):
        body = f'{{"messages": [{{"role": "user", "content": "x"}}], "{field}": {number}}}'
        error_of(live.http.post(CHAT, content=body), 400)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": PIXEL}]}, "messages[0].content[0].image_url"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL, "detail": "foo"}}]},
            "messages[0].content[0].image_url.detail",
        ),
        ({"role": "user", "content": "x", "extra": 1}, "messages[0].extra"),
        ({"role": "assistant"}, "messages[0].content"),
        ({"role": "assistant", "content": "x", "function_call": {}}, "messages[0].function_call"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "boss", "content": "x"}, "messages[0]"),
        ({"role": ["user"], "content": "x"}, "messages[0]"),
        (5, "messages[0]"),
    ],
)
def test_bad_messages_are_refused_with_their_path(live: Live, message: Any, param: str) -> None:
    assert error_of(live.chat(messages=[message]), 400)["param"] == param


@pytest.mark.parametrize("arguments", ["[1]", "{", "[" * 100_000])
def test_tool_arguments_must_be_an_object(live: Live, arguments: str) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    error = error_of(live.chat(messages=[{"role": "assistant", "tool_calls": [call]}]), 400)
    assert error["param"] == "messages[0].tool_calls[0]"


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", '"x"', '{"messages": "\\ud800"}', b"\xff\xfe", b"\x1f\x8b\x08"]
)
def test_bodies_that_are_not_a_json_object(live: Live, body: Any) -> None:
    error_of(live.http.post(CHAT, content=body), 400)
    assert live.service.requests == []


@pytest.mark.parametrize("model", ["no-such", "../x", "DEMO", ""])
def test_b50_another_model_is_not_found(live: Live, model: str) -> None:
    error = error_of(live.chat(model=model), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert live.service.requests == []


def test_b59_many_wrong_parts_make_one_short_error(live: Live) -> None:
    secret = "S3CRET" * 1000
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": [{"type": "text", "txt": "S3CRET"}] * 12_000}]},
        {"messages": [{"role": "S3CRET"}] * 12_000},
        {"messages": HELLO, "temperature": "A" * 2_000_000},
        {"messages": HELLO, secret: 1},
        {"messages": HELLO, "model": secret * 300},
        {"messages": HELLO, "logit_bias": {secret: 1}},
        {"messages": HELLO, "metadata": {secret: 1}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5, "detail": secret}}]}]},
    ]
    for body in bodies:
        response = live.http.post(CHAT, json=body)
        error_of(response, 404 if "model" in body else 400)
        # An unknown name is told, cut to 64 characters, in message and param; a value never.
        assert response.text.count("S3CRET") <= 2 * 64 // 6 and "AAAA" not in response.text


def test_b60_too_many_image_parts(live: Live) -> None:
    parts = [{"type": "image_url", "image_url": {"url": PIXEL}}]
    error = error_of(live.chat(messages=[{"role": "user", "content": parts * 10_000}]), 400)
    assert "16 images" in error["message"] and error["param"] == "messages"
    assert live.chat(messages=[{"role": "user", "content": parts * 16}]).status_code == 200


def test_images_for_a_model_without_eyes(live: Live) -> None:
    live.service.has_vision = False
    content = [{"type": "image_url", "image_url": {"url": PIXEL}}]
    error = error_of(live.chat(messages=[{"role": "user", "content": content}]), 400)
    assert error["param"] == "messages[0].content[0].image_url.url"
    assert live.http.get("/v1/models").json()["data"][0]["architecture"]["input_modalities"] == ["text"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("raised", "status", "code", "param"),
    [
        (InvalidImage("the image is truncated", "messages[0].content[0].image_url.url"), 400, "invalid_image", ...),
        (ContextLengthExceeded("the prompt has 9000 tokens", "messages"), 400, "context_length_exceeded", "messages"),
        (EncodeFailed("the encoder failed on image 1"), 500, "image_encode_failed", None),
        (CheckpointError("bad"), 500, "checkpoint_error", None),
        (RuntimeError("/secret/path"), 500, "internal_error", None),
    ],
)
def test_b15_failures_before_the_answer_are_errors_and_not_answers(
    live: Live, stream: bool, raised: Exception, status: int, code: str, param: Any
) -> None:
    live.play(admission=[raised])
    response = live.chat(stream=stream)
    error = error_of(response, status)
    assert error["code"] == code and error["param"] == (raised.param if param is ... else param)  # type: ignore[attr-defined]
    assert "secret" not in response.text and "usage" not in response.text
    assert live.service.closed == 0


@pytest.mark.parametrize("stream", [False, True])
def test_b44_a_full_queue_is_503_with_retry_after_before_any_event(live: Live, stream: bool) -> None:
    live.service.queue = 1
    response = live.chat(stream=stream, n=2)
    error = error_of(response, 503)
    assert response.headers["retry-after"] == "7" and error["code"] == "server_busy"
    assert live.chat(stream=stream).status_code == 200


def test_b44_nothing_is_sent_before_admission(live: Live) -> None:
    gate = Gate()
    live.service.script = Script(words("ok"), admission=[gate, Busy("the queue is full")])
    with live.connect() as sock:
        live.send_chat(sock, stream=True)
        assert gate.reached.wait(10)
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        gate.open()
        sock.setblocking(True)
        assert sock.recv(100).startswith(b"HTTP/1.1 503")


def test_unknown_routes_and_methods_have_openai_s_shape(live: Live) -> None:
    assert error_of(live.http.get("/v2/none"), 404)["code"] == "not_found"
    assert error_of(live.http.get(CHAT), 405)["code"] == "method_not_allowed"
    assert error_of(live.http.delete("/health"), 405)["code"] == "method_not_allowed"


def test_real_client_sees_typed_errors(live: Live) -> None:
    import openai

    with live.openai() as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="no-such", messages=HELLO)  # type: ignore[arg-type]
        assert missing.value.code == "model_not_found" and missing.value.param == "model"
        live.play(admission=[Busy("full", 3)])
        with pytest.raises(openai.InternalServerError) as busy:
            client.chat.completions.create(model="demo", messages=HELLO)  # type: ignore[arg-type]
        assert busy.value.status_code == 503 and busy.value.response.headers["retry-after"] == "3"
        live.play(*words("a")[:1], EncodeFailed("the encoder failed"))
        with pytest.raises(openai.APIError, match="the encoder failed"):
            list(client.chat.completions.create(model="demo", messages=HELLO, stream=True))  # type: ignore[arg-type]


def test_every_class_of_the_error_tree_has_a_status() -> None:
    from foveate.server.errors import openai_error, status_of

    def tree(kind: type[FoveateError]) -> list[type[FoveateError]]:
        return [kind, *(inner for below in kind.__subclasses__() for inner in tree(below))]

    assert len(tree(FoveateError)) >= 12
    for kind in tree(FoveateError):
        assert status_of(kind("why")) in (400, 404, 413, 500, 503)
        assert len(json.dumps(openai_error(kind("x" * 100_000)))) < 4096
