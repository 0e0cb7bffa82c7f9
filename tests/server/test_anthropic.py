"""Anthropic's messages through the real client: blocks in, blocks out, events that tell the same, its errors."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest

from foveate.core.chat import TextDelta
from foveate.core.config import Settings
from foveate.core.errors import Busy, EncodeFailed
from foveate.server.app import create_app
from tests.server.fake_service import FakeService
from tests.server.live import Live
from tests.server.scripted import ARGUMENTS, LOOK, WRITTEN, Stage
from tests.support.engines import data_url, png

ASK: list[Any] = [{"role": "user", "content": "look at a"}]
TOOL = {"name": "look", "description": "Looks.", "input_schema": LOOK}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
THINK = {"type": "enabled", "budget_tokens": 1024}
MESSAGES = "/v1/messages"


def bare(message: Any) -> dict[str, Any]:
    """Without what is different in each answer."""
    out = message.model_dump(exclude={"id", "timings"})
    for block in out["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return out


def both(stage: Stage, text: str | None, **fields: Any) -> Any:
    """The message that a script becomes, the same whole and as the client puts its stream together."""
    stage.script.say(text, bytewise=True)
    asked = {"model": stage.name, "messages": ASK, "max_tokens": 400} | fields
    with stage.anthropic() as client:
        done = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_message()
    assert bare(streamed) == bare(done)
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    return done


def test_text_in_text_out(stage: Stage) -> None:
    done = both(stage, "Héllo \U0001f600.", system="be brief")
    assert [block.text for block in done.content] == ["Héllo \U0001f600."]
    assert (done.stop_reason, done.role, done.type, done.model) == ("end_turn", "assistant", "message", stage.name)
    assert done.usage.output_tokens == len("Héllo \U0001f600.".encode()) + 1
    blocks = both(stage, "", system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}])
    assert blocks.content == [] and blocks.usage.input_tokens == done.usage.input_tokens


def test_thoughts_words_and_calls_are_blocks_in_their_order(stage: Stage) -> None:
    done = both(stage, f"hm\n</think>\n\nSo.\n{WRITTEN}\n{WRITTEN}", tools=[TOOL, NOW], thinking=THINK)
    assert [block.type for block in done.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert done.content[0].thinking == "hm" and done.content[1].text == "So."
    assert (done.content[2].name, done.content[2].input) == ("look", json.loads(ARGUMENTS))
    assert done.stop_reason == "tool_use" and done.usage.output_tokens_details.thinking_tokens > 0
    single = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(both(stage, WRITTEN + WRITTEN, tools=[TOOL], tool_choice=single).content) == 1
    hidden = both(stage, "hm</think>So.", thinking=THINK | {"display": "omitted"})
    assert [block.type for block in hidden.content] == ["thinking", "text"] and hidden.content[0].thinking == ""


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, False), ({"thinking": {"type": "disabled"}}, False), ({"thinking": {"type": "adaptive"}}, True),
        ({"output_config": {"effort": "low"}}, False),
    ],
)  # fmt: skip
def test_thinking_is_off_unless_asked_for(stage: Stage, fields: dict[str, Any], thinks: bool) -> None:
    done = both(stage, "hm</think>So.", **fields)
    assert [block.type for block in done.content] == (["thinking", "text"] if thinks else ["text"])


def test_why_it_stopped(stage: Stage) -> None:
    done = both(stage, "one two three", stop_sequences=["never", " two"])
    assert (done.stop_reason, done.stop_sequence, done.content[0].text) == ("stop_sequence", " two", "one")
    done = both(stage, "abcdef", max_tokens=3)
    assert (done.stop_reason, done.stop_sequence, done.content[0].text) == ("max_tokens", None, "abc")
    done = both(stage, WRITTEN, tools=[TOOL], tool_choice={"type": "none"})
    assert done.content[0].text == WRITTEN and done.stop_reason == "end_turn"


def image(seed: int, url: bool = False) -> dict[str, Any]:
    whole = data_url(png(seed))
    if url:
        return {"type": "image", "source": {"type": "url", "url": whole}}
    data = whole.partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def test_B23_pictures_count_wherever_they_stand(stage: Stage) -> None:
    stage.script.say("ok")
    turns = [
        {"role": "user", "content": [image(1), {"type": "text", "text": "look"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {"path": "x"}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [image(2), {"type": "text", "text": "here"}]},
                {"type": "text", "text": "well?"},
                image(3, url=True),
            ],
        },
    ]
    with stage.anthropic() as client:
        counts = [
            client.messages.count_tokens(model=stage.name, messages=turns[:n], tools=[TOOL]).input_tokens  # type: ignore[arg-type]
            for n in (1, 2, 3)
        ]
        done = client.messages.create(model=stage.name, max_tokens=5, messages=turns, tools=[TOOL])  # type: ignore[arg-type]
    assert done.usage.input_tokens == counts[2]
    rows = stage.house.service.engine.card.image_rules
    assert rows is not None and counts[2] - counts[1] > 2 * 6  # two pictures of 96 x 64 pixels are 6 rows each
    refused = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
    with stage.anthropic() as client, pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=stage.name, max_tokens=5, messages=[{"role": "user", "content": [refused]}])  # type: ignore[list-item,typeddict-item]


def test_turns_become_messages(live: Live) -> None:
    turns = [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1", "is_error": True},
                                     {"type": "tool_result", "tool_use_id": "b"}, {"type": "text", "text": "so?"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                          {"type": "text", "text": "x"},
                                          {"type": "tool_use", "id": "c", "name": "f", "input": {"y": [1]}}]},
        {"role": "user", "content": "ok"},
    ]  # fmt: skip
    body = {"messages": turns, "max_tokens": 9, "top_k": 3, "stop_sequences": ["z"], "temperature": 0.5, "top_p": 0.5}
    body |= {"tools": [NOW], "tool_choice": {"type": "tool", "name": "now"}, "metadata": {"user_id": "u"}}
    body |= {"output_config": {"format": {"type": "json_schema", "schema": LOOK}}}
    head = {"anthropic-version": "2023-06-01", "anthropic-beta": "x", "x-api-key": "k"}
    assert live.http.post(MESSAGES, json=body, headers=head).status_code == 200
    (seen,) = live.service.requests
    assert [message["role"] for message in seen.messages] == ["tool", "tool", "user", "assistant", "user"]
    assert seen.messages[1]["content"] == "" and seen.messages[3]["reasoning_content"] == "hm"
    assert seen.messages[3]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"y": [1]}}
    assert (seen.wishes.max_tokens, seen.wishes.top_k, seen.wishes.stop) == (9, 3, ("z",))
    assert seen.tools is not None and seen.tools.only == "now" and seen.form is not None and not seen.open_end


def test_an_answer_can_be_begun_for_the_model(stage: Stage) -> None:
    done = both(stage, " red.", messages=[*ASK, {"role": "assistant", "content": "It is"}])
    assert done.content[0].text == " red."


USE = {"type": "tool_use", "id": "x", "name": "n", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "x"}


def turn(role: str, *blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": None}, "max_tokens"), ({"messages": []}, "messages"), ({"container": "c"}, "container"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"), ({"nonsense": 1}, "nonsense"),
        (turn("user", {"type": "document"}), "document"),
        (turn("user", USE), "tool_use"),
        (turn("assistant", RESULT), "tool_result"),
        (turn("user"), "content"), ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"), ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
    ],
)  # fmt: skip
def test_refusals_name_their_field_in_anthropic_s_shape(live: Live, fields: dict[str, Any], word: str) -> None:
    body = {"messages": ASK, "max_tokens": 5} | fields
    response = live.http.post(MESSAGES, json={key: value for key, value in body.items() if value is not None})
    error = response.json()
    assert response.status_code == 400 and error.keys() == {"type", "error"} and error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error" and word in error["error"]["message"]
    assert live.service.requests == []


def test_the_real_client_sees_typed_errors(live: Live) -> None:
    with anthropic.Anthropic(base_url=live.url, api_key="k", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="no-such", max_tokens=5, messages=ASK)
        live.play(admission=[Busy("full", 3)])
        with pytest.raises(anthropic.APIStatusError) as busy:
            client.messages.create(model="demo", max_tokens=5, messages=ASK)
        assert busy.value.status_code == 503 and busy.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]
        live.play(TextDelta(0, "a", 1), EncodeFailed("the encoder failed"))
        with pytest.raises(anthropic.APIStatusError, match="the encoder failed"):
            list(client.messages.create(model="demo", max_tokens=5, messages=ASK, stream=True))
    assert live.http.get(MESSAGES).json()["error"]["type"] == "invalid_request_error"
    assert live.http.post(MESSAGES, content="{").json()["type"] == "error"
    assert live.http.post(MESSAGES, content=b"{" + b" " * 5_000_000).json()["error"]["type"] == "request_too_large"
    live.play(admission=[RuntimeError("/secret")])
    failed = live.http.post(MESSAGES, json={"messages": ASK, "max_tokens": 5})
    assert failed.json()["error"]["type"] == "api_error" and "secret" not in failed.text


async def test_a_missing_key_is_told_in_anthropic_s_shape() -> None:
    app = create_app(FakeService(), Settings(), keys=["k"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
        refused = await http.post(MESSAGES, json={})
        assert refused.status_code == 401 and refused.json()["error"]["type"] == "authentication_error"
        fine = await http.post(MESSAGES, json={"messages": ASK, "max_tokens": 5}, headers={"x-api-key": "k"})
        assert fine.status_code == 200 and fine.json()["content"] == [{"type": "text", "text": "Hello"}]


def test_a_system_message_may_stand_among_the_others(live: Live) -> None:
    turns = [
        {"role": "user", "content": "hello"},
        {"role": "system", "content": [{"type": "text", "text": "be brief"}, {"type": "text", "text": "be kind"}]},
        {"role": "system", "content": "be clear"},
        {"role": "user", "content": "well?"},
    ]
    assert live.http.post(MESSAGES, json={"messages": turns, "max_tokens": 4}).status_code == 200
    seen = live.service.requests[-1].messages
    assert [message["role"] for message in seen] == ["user", "system", "system", "user"]
    assert [message["content"] for message in seen[1:3]] == ["be brief\nbe kind", "be clear"]
    turns[1]["content"] = [image(1)]
    found = live.http.post(MESSAGES, json={"messages": turns, "max_tokens": 4})
    assert found.status_code == 400 and "messages[1].content" in found.json()["error"]["message"]
