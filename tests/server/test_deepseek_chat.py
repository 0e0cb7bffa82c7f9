"""DeepSeek V4 through the whole server: its markup becomes what clients expect, whole and streamed alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.scripted import LOOK, Stage, on_stage
from tests.server.test_tools_chat import ASK, PIXELS, TOOLS, streamed, whole
from tests.support.engines import data_url, png
from tests.support.tiny_v4 import make_tiny_v4

D = "｜DSML｜"
LOOKED = (
    f'<{D}invoke name="look">\n<{D}parameter name="path" string="true">a "b"\nc</{D}parameter>\n'
    f'<{D}parameter name="zoom" string="false">3</{D}parameter>\n</{D}invoke>\n'
)
NOW = f'<{D}invoke name="now">\n\n</{D}invoke>\n'
ARGUMENTS = '{"path":"a \\"b\\"\\nc","zoom":3}'
THINK = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}


def block(*invokes: str) -> str:
    return f"<{D}tool_calls>\n{''.join(invokes)}</{D}tool_calls>"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    def write(folder: Path) -> Path:
        return make_tiny_v4(folder, "v4_vision")

    with on_stage(Path(tmp_path_factory.mktemp("v4")) / "model", write) as stage:
        yield stage


@pytest.fixture
def stage(shared: Stage) -> Stage:
    shared.script.say(None)
    return shared


def alike(stage: Stage, text: str | None, **fields: Any) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """What a script becomes: the same whole and streamed."""
    stage.script.say(text)
    got = whole(stage, **fields)
    assert streamed(stage, **fields) == got
    return got


def called(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]


def test_two_calls_behind_words(stage: Stage) -> None:
    text = f"Let me see.\n\n{block(LOOKED, NOW)}"
    message, reason, _ = alike(stage, text, tools=TOOLS)
    stage.script.say(text, bytewise=True)
    assert streamed(stage, tools=TOOLS)[:2] == (message, reason), "tokens of one byte, half characters among them"
    assert message["content"] == "Let me see." and reason == "tool_calls"
    assert called(message) == [("look", ARGUMENTS), ("now", "{}")]


def test_one_call_ends_the_answer_where_calls_are_not_parallel(stage: Stage) -> None:
    message, reason, _ = alike(stage, block(LOOKED, NOW), tools=TOOLS, parallel_tool_calls=False)
    assert called(message) == [("look", ARGUMENTS)] and "content" not in message and reason == "tool_calls"


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_markup_is_text(stage: Stage, fields: dict[str, Any]) -> None:
    message, reason, _ = alike(stage, "é " + block(NOW), **fields)
    assert message == {"content": "é " + block(NOW)} and reason == "stop"


@pytest.mark.parametrize("broken", [f"<{D}tool_calls>\nnothing é", "<tool_call>\n<function=now>\n</function>", D])
def test_what_is_no_call_is_shown(stage: Stage, broken: str) -> None:
    assert alike(stage, broken, tools=TOOLS)[:2] == ({"content": broken}, "stop")


def test_a_call_that_is_cut_off_says_so(stage: Stage) -> None:
    stage.script.say(block(LOOKED))
    for get in (whole, streamed):
        message, reason, usage = get(stage, tools=TOOLS, max_tokens=60)
        assert reason == "length" and usage["completion_tokens"] == 60
        assert ARGUMENTS.startswith(called(message)[0][1])


def test_thoughts_are_told_apart_and_counted(stage: Stage) -> None:
    message, reason, usage = alike(stage, f"é hm</think>So.\n\n{block(NOW)}", tools=TOOLS, **THINK)
    assert (message["reasoning_content"], message["content"], reason) == ("é hm", "So.", "tool_calls")
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
    message, _, usage = alike(stage, "Yes.")
    assert message == {"content": "Yes."} and usage["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("low", True), ("max", True)])
def test_effort_switches_thoughts(stage: Stage, effort: str, thinks: bool) -> None:
    message, _, _ = alike(stage, "hm</think>So.", reasoning_effort=effort)
    assert message == ({"reasoning_content": "hm", "content": "So."} if thinks else {"content": "hm</think>So."})


def test_pictures_of_every_turn_are_shown_and_counted(stage: Stage) -> None:
    picture = {"type": "image_url", "image_url": {"url": PIXELS}}
    other = {"type": "image_url", "image_url": {"url": data_url(png(9, 40, 90))}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path": "x"}'}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, other, picture]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "here:"}, picture]},
    ]
    stage.script.say("I see.")
    with stage.openai() as client:
        done = client.chat.completions.create(model=stage.name, messages=turns, tools=TOOLS)  # type: ignore[arg-type]
    assert done.choices[0].message.content == "I see." and done.usage is not None
    shown = stage.http.post("/tokenize", json={"messages": turns, "tools": TOOLS}).json()
    assert shown["count"] == done.usage.prompt_tokens
    assert 0 < done.usage.prompt_tokens_details.image_tokens < shown["count"]  # type: ignore[union-attr]
    beyond = [token for token in shown["tokens"] if token >= 320]
    assert beyond.count(320) == beyond.count(324) == 3, "a START and an END each, as ids beyond the vocabulary"
    refused = stage.http.post("/detokenize", json={"tokens": beyond})
    assert refused.status_code == 400 and "there is no such token" in refused.json()["error"]["message"]
    sent = stage.http.post("/v1/completions", json={"model": stage.name, "prompt": beyond[:3], "max_tokens": 1})
    assert sent.status_code == 400, "no client can write an image's tokens itself"


def test_the_last_message_is_continued(stage: Stage) -> None:
    body = {
        "messages": [*ASK, {"role": "assistant", "content": "It is"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    stage.script.say(" red.")
    done = stage.http.post("/v1/chat/completions", json=body).json()
    assert done["choices"][0]["message"]["content"] == " red."
    text = stage.tokens.text(stage.http.post("/tokenize", json=body).json()["tokens"])
    assert text.endswith("<｜User｜>look at a<｜Assistant｜></think>It is")


def test_messages_of_anthropic_s_kind(stage: Stage) -> None:
    stage.script.say(f"See.\n\n{block(LOOKED)}")
    tools = [{"name": "look", "input_schema": LOOK}]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXELS.split(",")[1]}}
    turns: list[Any] = [{"role": "user", "content": [image, {"type": "text", "text": "look"}]}]
    with stage.anthropic() as client:
        done = client.messages.create(model=stage.name, max_tokens=400, messages=turns, tools=tools)  # type: ignore[arg-type]
        count = client.messages.count_tokens(model=stage.name, messages=turns, tools=tools)  # type: ignore[arg-type]
        with client.messages.stream(model=stage.name, max_tokens=400, messages=turns, tools=tools) as stream:  # type: ignore[arg-type]
            final = stream.get_final_message()
    assert [part.type for part in done.content] == ["text", "tool_use"] and done.stop_reason == "tool_use"
    assert done.content[1].input == {"path": 'a "b"\nc', "zoom": 3}  # type: ignore[union-attr]
    assert [part.model_dump(exclude={"id"}) for part in final.content] == [
        part.model_dump(exclude={"id"}) for part in done.content
    ]
    assert count.input_tokens == done.usage.input_tokens == final.usage.input_tokens


def test_what_is_served_is_told(stage: Stage) -> None:
    images = stage.http.get("/props").json()["images"]
    assert (images["pixels_per_row_side"], images["min_pixels"], images["max_tokens"]) == (42, 1764, 45)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_a_call_that_must_come_comes_from_any_model(stage: Stage, choice: Any) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("now", "then")]
    wishes = {"tools": tools, "tool_choice": choice, "seed": 1, "temperature": 1.0, "max_tokens": 200}
    message, reason, _ = alike(stage, None, parallel_tool_calls=False, **wishes)
    ((name, arguments),) = called(message)
    assert name in ("now", "then")[: 2 if choice == "required" else 1] and arguments == "{}" and reason == "tool_calls"
    assert "content" not in message
