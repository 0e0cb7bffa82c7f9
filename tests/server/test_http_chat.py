"""Answers as clients see them: the shapes of whole and streamed completions, through the real client and raw."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foveate.core.chat import ChoiceEnd, Progress, TextDelta
from foveate.core.errors import StepFailed
from foveate.core.values import Timings
from tests.server.fake_service import Gate, token, words
from tests.server.live import HELLO, PIXEL, Live

TWO_PICTURES = [
    {"role": "system", "content": "be brief"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "A:"},
            {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
            {"type": "text", "text": "B:"},
            {"type": "image_url", "image_url": {"url": PIXEL + "B", "detail": None}},
        ],
    },
    {"role": "assistant", "content": "so?"},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "image_url", "image_url": {"url": PIXEL + "C"}}]},
]


def test_whole_answer_through_the_real_client(live: Live) -> None:
    with live.openai() as client:
        done = client.chat.completions.create(model="demo", messages=HELLO)  # type: ignore[arg-type]
    assert done.choices[0].message.content == "Hello" and done.choices[0].finish_reason == "stop"
    assert done.choices[0].message.role == "assistant" and done.choices[0].logprobs is None
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (200, 2, 202)
    assert done.model == "demo" and done.id.startswith("chatcmpl-") and done.system_fingerprint


def test_timings_and_usage_tell_what_images_cost(live: Live) -> None:
    done = live.chat(messages=TWO_PICTURES).json()
    assert done["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "image_tokens": 160, "images": 3}
    timings = done["timings"]
    assert timings["hidden_s"] == 0.3 and timings["preemptions"] == 1
    assert timings["tokens_per_second"] == (2 - 1) / 0.25
    assert [image["rows"] for image in timings["images"]] == [96, 64]
    assert timings["images"][1]["decode_start_s"] is None and "key" not in timings["images"][0]


def test_image_parts_keep_their_place_in_every_role(live: Live) -> None:
    assert live.chat(messages=TWO_PICTURES).status_code == 200
    seen = live.service.requests[0]
    assert [image.url for image in seen.images] == [PIXEL, PIXEL + "B", PIXEL + "C"]
    assert seen.images[1].param == "messages[1].content[3].image_url.url"
    assert seen.messages[1]["content"] == [
        {"type": "text", "text": "A:"},
        {"type": "image", "image": 0},
        {"type": "text", "text": "B:"},
        {"type": "image", "image": 1},
    ]
    assert seen.messages[3] == {"role": "tool", "tool_call_id": "c1", "content": [{"type": "image", "image": 2}]}


def test_earlier_turns_reach_the_template(live: Live) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 3}'}}
    turns = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm", "refusal": None},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]
    assert live.chat(messages=turns, chat_template_kwargs={"enable_thinking": False}).status_code == 200
    seen = live.service.requests[0]
    assert seen.messages[0] == {"role": "system", "content": "rules"}
    assert seen.messages[1] == {"role": "user", "content": "hi", "name": "ann"}
    assert seen.messages[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": 3}}
    assert seen.messages[2]["reasoning_content"] == "hm" and seen.messages[2]["content"] == ""
    assert seen.template == {"enable_thinking": False}


def test_every_sampling_wish_arrives(live: Live) -> None:
    asked: dict[str, Any] = {
        "temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "frequency_penalty": -1, "presence_penalty": 1.5,
        "repetition_penalty": 1.1, "seed": -3, "stop": ["a", "b"], "stop_token_ids": [5], "ignore_eos": True,
        "min_tokens": 2, "max_completion_tokens": 9, "logit_bias": {"12": 1.5, "3": -100}, "n": 1,
        "logprobs": True, "top_logprobs": 4,
    }  # fmt: skip
    assert live.chat(**asked).status_code == 200
    wishes = live.service.requests[0].wishes
    for name in asked.keys() - {
        "stop",
        "stop_token_ids",
        "max_completion_tokens",
        "logit_bias",
        "logprobs",
        "top_logprobs",
    }:
        assert getattr(wishes, name) == asked[name], name
    assert wishes.stop == ("a", "b") and wishes.stop_token_ids == (5,) and wishes.max_tokens == 9
    assert wishes.logit_bias == ((3, -100.0), (12, 1.5)) and wishes.logprobs == 4


@pytest.mark.parametrize(
    "field", ["max_tokens", "temperature", "top_p", "seed", "stop", "n", "stream", "logprobs", "model"]
)
def test_null_means_the_default(live: Live, field: str) -> None:
    assert live.chat().status_code == 200
    assert live.chat(**{field: None}).status_code == 200
    assert live.service.requests[0] == live.service.requests[1]


def test_top_k_minus_one_is_off_and_absent_is_the_model_s(live: Live) -> None:
    live.chat(top_k=-1)
    live.chat()
    assert [request.wishes.top_k for request in live.service.requests] == [0, None]


def test_b46_stream_has_one_usage_chunk_when_asked(live: Live) -> None:
    chunks = live.chunks(stream_options={"include_usage": True}, messages=TWO_PICTURES)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 200
    assert chunks[-1]["usage"]["prompt_tokens_details"]["image_tokens"] == 160
    assert chunks[-1]["timings"] == chunks[-2]["timings"]
    assert chunks[-2]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_b46_stream_has_no_usage_otherwise(live: Live, options: Any) -> None:
    chunks = live.chunks(stream_options=options)
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_stream_equals_whole_through_the_real_client(live: Live) -> None:
    with live.openai() as client:
        done = client.chat.completions.create(model="demo", messages=HELLO)  # type: ignore[arg-type]
        pieces = list(
            client.chat.completions.create(  # type: ignore[call-overload]
                model="demo", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
        )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == done.choices[0].message.content
    assert pieces[-1].usage == done.usage


def test_two_choices_interleave_and_end_each(live: Live) -> None:
    first, second = words("a", "b"), words("x", "y", "z", choice=1, reason="length")
    mixed = [part for pair in zip(first, second, strict=False) for part in pair] + second[3:]
    live.play(*mixed)
    chunks = live.chunks(n=2, stream_options={"include_usage": True})
    roles = [
        chunk["choices"][0]["index"] for chunk in chunks if chunk["choices"] and "role" in chunk["choices"][0]["delta"]
    ]
    assert roles == [0, 1]
    texts, reasons = {0: "", 1: ""}, {}
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"]:
            assert "timings" in chunk
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == {0: "ab", 1: "xyz"} and reasons == {0: "stop", 1: "length"}
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    done = live.chat(n=2).json()
    assert [choice["message"]["content"] for choice in done["choices"]] == ["ab", "xyz"]
    assert [choice["finish_reason"] for choice in done["choices"]] == ["stop", "length"]
    assert done["usage"] == chunks[-1]["usage"]


def test_logprobs_have_openai_s_shape_in_both_modes(live: Live) -> None:
    live.play(
        TextDelta(0, "", 1, (token("Hé"),)),  # a held-back token: no text yet, but its logprob
        TextDelta(0, "Hél", 1, (token("l", -1.5),)),
        TextDelta(0, "", 0),
        ChoiceEnd(0, "stop", 2, Timings()),
    )
    with live.openai() as client:
        done = client.chat.completions.create(model="demo", messages=HELLO, logprobs=True, top_logprobs=2)  # type: ignore[arg-type]
    assert done.choices[0].logprobs is not None and done.choices[0].logprobs.content is not None
    first = done.choices[0].logprobs.content[0]
    assert (first.token, first.logprob, first.bytes) == ("Hé", -0.5, list("Hé".encode()))
    assert [(top.token, top.logprob) for top in first.top_logprobs] == [("Hé", -0.5), ("zz", -9999.0)]
    chunks = live.chunks(logprobs=True, top_logprobs=2)
    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == [json.loads(entry.model_dump_json()) for entry in done.choices[0].logprobs.content]
    assert len(chunks) == 4, "a delta without text and logprobs is not worth a chunk"
    assert done.model_extra is not None and done.model_extra["timings"]["tokens_per_second"] is None


def test_progress_and_silence_become_comments(live: Live) -> None:
    gate = Gate()
    live.play(Progress(0, 2), gate, Progress(1, 2), *words("ok"))
    seen = []
    with live.http.stream("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}) as response:
        for line in response.iter_lines():
            seen.append(line)
            if line == ": keep-alive":
                gate.open()
    comments = [line for line in seen if line.startswith(":")]
    assert comments[0] == ": encoded image 1 of 2" and ": encoded image 2 of 2" in comments
    assert ": keep-alive" in comments and seen[-2] == "data: [DONE]"


def test_progress_leaves_a_whole_answer_alone(live: Live) -> None:
    live.play(Progress(0, 1), *words("ok"))
    assert live.chat().json()["choices"][0]["message"]["content"] == "ok"


def test_line_breaks_and_odd_characters_survive_framing(live: Live) -> None:
    text = "a\r\nb\n\ndata: [DONE]\u2028é\x00\U0001f600"
    live.play(*words(text))
    chunks = live.chunks()
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text


@pytest.mark.parametrize(
    ("raised", "code"),
    [(StepFailed("a model step failed"), "engine_step_failed"), (KeyError("secret"), "internal_error")],
)
def test_failure_in_mid_stream_is_the_last_event(live: Live, raised: Exception, code: str) -> None:
    live.play(TextDelta(0, "a", 1), raised)
    lines = live.events()
    assert lines[-1].startswith('data: {"error":') and "secret" not in lines[-1]
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == code
    assert live.service.close_seen.wait(10) and live.service.closed == 1
    live.service.close_seen.clear()
    live.play(TextDelta(0, "a", 1), raised)
    response = live.chat()
    assert response.status_code == 500 and response.json()["error"]["code"] == code
    assert live.service.close_seen.wait(10) and live.service.closed == 2


def test_an_answer_that_stops_short_is_an_error_and_not_a_success(live: Live) -> None:
    live.play(TextDelta(0, "a", 1))
    assert json.loads(live.events()[-1].removeprefix("data: "))["error"]["type"] == "server_error"
    assert live.chat().status_code == 500


def test_models_and_health(live: Live) -> None:
    with live.openai() as client:
        assert [model.id for model in client.models.list()] == ["demo"]
        assert client.models.retrieve("demo").id == "demo"
    card = live.http.get("/v1/models").json()["data"][0]
    assert card["max_model_len"] == 4096 and card["architecture"]["input_modalities"] == ["text", "image"]
    assert live.http.get("/v1/models/a/b").json()["error"]["code"] == "model_not_found"
    assert live.http.get("/health").status_code == 200
    live.service.status = "encoder is dead"
    assert live.http.get("/health").status_code == 503


def test_cross_origin_requests_are_answered(live: Live) -> None:
    asked = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization,content-type,x-stainless-os"
    assert live.http.options("/v1/chat/completions", headers=asked).status_code == 200
    for response in (live.http.get("/health", headers=asked), live.http.get("/nope", headers=asked)):
        assert response.headers["access-control-allow-origin"] == "*"


def test_openapi_describes_the_request(live: Live) -> None:
    document = live.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["ChatCompletionRequest"]["properties"]["functions"]["x-refused-unless"] == [[]]
    references = set(json.dumps(document).split('"#/components/schemas/')[1:])
    assert {reference.partition('"')[0] for reference in references} <= schemas.keys()
