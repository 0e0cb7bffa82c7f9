"""Tools, thoughts and open ends in chat completions, through the whole server, with a model that plays a script."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.server.scripted import ARGUMENTS, LOOK, WRITTEN, Stage
from tests.support.engines import data_url, png

ASK: list[dict[str, Any]] = [{"role": "user", "content": "look at a"}]
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": LOOK}},
    {"type": "function", "function": {"name": "now"}},
]
PIXELS = data_url(png(3))
HERMES = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def whole(stage: Stage, **fields: Any) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Message, finish reason and usage."""
    with stage.openai() as client:
        done = client.chat.completions.create(model=stage.name, messages=ASK, **fields)  # type: ignore[call-overload]
    message = done.choices[0].message.model_dump(exclude_none=True, exclude={"role"})
    for number, call in enumerate(message.get("tool_calls", ())):
        call["id"] = number
    return message, done.choices[0].finish_reason, done.usage.model_dump()


def streamed(stage: Stage, **fields: Any) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """The same, put together from a stream by its own rules."""
    text, thought, calls, reason, usage = "", "", list[dict[str, Any]](), "", {}
    with stage.openai() as client:
        for chunk in client.chat.completions.create(  # type: ignore[call-overload]
            model=stage.name, messages=ASK, stream=True, stream_options={"include_usage": True}, **fields
        ):
            usage = chunk.usage.model_dump() if chunk.usage else usage
            for choice in chunk.choices:
                reason = choice.finish_reason or reason
                text += choice.delta.content or ""
                thought += getattr(choice.delta, "reasoning_content", None) or ""
                for call in choice.delta.tool_calls or ():
                    if call.id:
                        assert call.index == len(calls) and call.type == "function"
                        calls.append(
                            {
                                "id": call.index,
                                "type": "function",
                                "function": {"name": call.function.name, "arguments": ""},
                            }
                        )
                    calls[call.index]["function"]["arguments"] += call.function.arguments
    message: dict[str, Any] = {"content": text} if text or not calls else {}
    message |= {"reasoning_content": thought} if thought else {}
    return message | ({"tool_calls": calls} if calls else {}), reason, usage


def both(stage: Stage, text: str, **fields: Any) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """What a script becomes: the same whole and streamed, in whatever tokens it comes."""
    got = []
    for bytewise in (False, True):
        stage.script.say(text, bytewise=bytewise)
        got.append(whole(stage, **fields))
        assert streamed(stage, **fields) == got[-1]
    assert got[0][:2] == got[1][:2]
    assert got[1][2]["completion_tokens"] == len(text.encode()) + 1 or fields.get("parallel_tool_calls") is False
    return got[0]


def test_two_calls_in_both_formats_behind_words(stage: Stage) -> None:
    message, reason, _ = both(stage, f"Let me see.\n\n{WRITTEN}\n{HERMES}", tools=TOOLS)
    assert message["content"] == "Let me see." and reason == "tool_calls"
    called = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert called == [("look", ARGUMENTS), ("now", "{}")]


def test_one_call_ends_the_answer_where_calls_are_not_parallel(stage: Stage) -> None:
    message, reason, usage = both(stage, WRITTEN + "\n" + HERMES, tools=TOOLS, parallel_tool_calls=False)
    assert len(message["tool_calls"]) == 1 and "content" not in message and reason == "tool_calls"
    assert usage["completion_tokens"] < len(stage.tokens.encode(WRITTEN))


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}])
def test_without_tools_markup_is_text(stage: Stage, fields: dict[str, Any]) -> None:
    message, reason, _ = both(stage, "é " + HERMES, **fields)
    assert message == {"content": "é " + HERMES} and reason == "stop"


def test_what_is_no_call_is_shown(stage: Stage) -> None:
    broken = "<tool_call>\n{nothing}</tool_call> é"
    assert both(stage, broken, tools=TOOLS)[:2] == ({"content": broken}, "stop")


def test_a_call_that_is_cut_off_says_so(stage: Stage) -> None:
    stage.script.say(WRITTEN)
    for get in (whole, streamed):
        message, reason, usage = get(stage, tools=TOOLS, max_tokens=30)
        assert reason == "length" and usage["completion_tokens"] == 30
        assert ARGUMENTS.startswith(message["tool_calls"][0]["function"]["arguments"])


def test_thoughts_are_told_apart_and_counted(stage: Stage) -> None:
    think = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    message, reason, usage = both(stage, f"é hm\n</think>\n\nSo.\n{WRITTEN}", tools=TOOLS, **think)
    assert (message["reasoning_content"], message["content"], reason) == ("é hm", "So.", "tool_calls")
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
    message, _, usage = both(stage, "Yes.")
    assert message == {"content": "Yes."} and usage["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.parametrize("stop", ["<parameter=zoom", "look>", "\n3", 'a "b"\nc'])
def test_stop_strings_act_on_what_the_model_writes(stage: Stage, stop: str) -> None:
    stage.script.say(WRITTEN, bytewise=True)
    got = whole(stage, tools=TOOLS, stop=[stop])
    assert got == streamed(stage, tools=TOOLS, stop=[stop]) and got[2]["completion_tokens"] < len(WRITTEN)
    arguments = [call["function"]["arguments"] for call in got[0].get("tool_calls", ())]
    assert all(ARGUMENTS.startswith(text) for text in arguments)


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("minimal", True), ("high", True)])
def test_effort_switches_thoughts(stage: Stage, effort: str, thinks: bool) -> None:
    message, _, _ = both(stage, "hm</think>So.", reasoning_effort=effort)
    assert message == ({"reasoning_content": "hm", "content": "So."} if thinks else {"content": "hm</think>So."})


def test_logprobs_cover_every_token(stage: Stage) -> None:
    stage.script.say(None)
    with stage.openai() as client:
        done = client.chat.completions.create(
            model=stage.name,
            messages=ASK,
            tools=TOOLS,
            logprobs=True,
            max_tokens=12,
            extra_body={"ignore_eos": True},  # type: ignore[arg-type]
        )
    assert done.choices[0].logprobs is not None and len(done.choices[0].logprobs.content or ()) == 12


def test_calls_and_results_of_earlier_turns_are_shown(stage: Stage) -> None:
    picture = {"type": "image_url", "image_url": {"url": PIXELS}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path": "x"}'}}
    turns = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "here:"}, picture]},
    ]
    stage.script.say("I see.")
    with stage.openai() as client:
        done = client.chat.completions.create(model=stage.name, messages=turns, tools=TOOLS)  # type: ignore[arg-type]
    assert done.choices[0].message.content == "I see."
    assert done.usage is not None and done.usage.prompt_tokens_details.image_tokens > 0  # type: ignore[union-attr]


def test_the_last_message_is_continued(stage: Stage) -> None:
    turns = [*ASK, {"role": "assistant", "content": "It is"}]
    stage.script.say(" red.")
    body = {"messages": turns, "continue_final_message": True, "add_generation_prompt": False}
    done = stage.http.post("/v1/chat/completions", json=body).json()
    assert done["choices"][0]["message"]["content"] == " red."
    shown = stage.http.post("/tokenize", json=body).json()
    text = stage.tokens.text(shown["tokens"])
    assert text.endswith("<|im_start|>assistant\nIt is") and shown["count"] == done["usage"]["prompt_tokens"]
    thought = [*ASK, {"role": "assistant", "content": "<think>\nwell"}]
    stage.script.say(" hm</think>\n\nSo.")
    done = stage.http.post("/v1/chat/completions", json=body | {"messages": thought}).json()
    assert done["choices"][0]["message"]["reasoning_content"] == " hm"
    closed = {"messages": turns, "add_generation_prompt": False}
    assert stage.tokens.text(stage.http.post("/tokenize", json=closed).json()["tokens"]).endswith("It is<|im_end|>\n")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_call_that_must_come_comes_from_any_model(stage: Stage, choice: Any) -> None:
    stage.script.say(None)
    for seed in range(2):
        wishes = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "temperature": 1.0, "max_tokens": 200}
        message, reason, _ = whole(stage, **wishes)
        assert streamed(stage, **wishes)[:2] == (message, reason)
        if reason == "length":
            continue
        assert reason == "tool_calls" and "content" not in message
        names = {call["function"]["name"] for call in message["tool_calls"]}
        assert names <= ({"look", "now"} if choice == "required" else {"look"})


def test_tools_need_a_template_that_shows_them(live_plain: Any) -> None:
    error = live_plain.post(ASK, tools=TOOLS).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "tools")


def test_the_real_client_sees_refusals_by_name(stage: Stage) -> None:
    with stage.openai() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=stage.name, messages=ASK, tool_choice="required")  # type: ignore[arg-type]
    assert caught.value.param == "tool_choice"


BAD = {"type": "object", "properties": {"a": {"type": "nonsense"}}}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": BAD}}},
            "response_format.json_schema.schema",
        ),
        ("/v1/chat/completions", {"structured_outputs": {"regex": "("}}, "structured_outputs"),
        (
            "/v1/chat/completions",
            {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": BAD}}]},
            "tools",
        ),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "schema": BAD}}}, "text.format.schema"),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": BAD}}}, None),
        ("/v1/completions", {"structured_outputs": {"grammar": "start: x"}}, "structured_outputs"),
    ],
)
def test_what_is_no_grammar_is_a_400_everywhere(stage: Stage, path: str, fields: dict[str, Any], param: str) -> None:
    asked = {
        "messages": {"messages": ASK, "max_tokens": 5},
        "responses": {"input": "x"},
        "completions": {"prompt": "x"},
    }
    asked["chat/completions"] = {"messages": ASK}
    response = stage.http.post(path, json=asked[path.removeprefix("/v1/")] | fields)
    assert response.status_code == 400 and response.json()["error"].get("param") == param, response.text


def test_forms_and_strict_tools_through_every_api(stage: Stage) -> None:
    schema = {"enum": ["yes", "no"]}
    with stage.openai() as client, stage.anthropic() as other:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        chat = client.chat.completions.create(model=stage.name, messages=ASK, response_format=form)  # type: ignore[call-overload]
        text = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
        response = client.responses.create(model=stage.name, input="x", text=text)  # type: ignore[call-overload]
        config = {"format": {"type": "json_schema", "schema": schema}}
        message = other.messages.create(model=stage.name, max_tokens=9, messages=ASK, output_config=config)  # type: ignore[arg-type]
        body = {"structured_outputs": {"choice": ["yes", "no"]}}
        legacy = client.completions.create(model=stage.name, prompt="x", extra_body=body)
    said = {chat.choices[0].message.content, response.output_text, message.content[0].text}  # type: ignore[union-attr]
    assert said <= {'"yes"', '"no"'} and legacy.choices[0].text in ("yes", "no")
    narrow = {"type": "object", "properties": {"path": {"enum": ["a", "b"]}}, "required": ["path"]}
    strict = {"type": "function", "function": {"name": "look", "parameters": narrow, "strict": True}}
    found = whole(stage, tools=[strict], tool_choice="required", parallel_tool_calls=False, seed=3)
    assert found[0]["tool_calls"][0]["function"]["arguments"] in ('{"path":"a"}', '{"path":"b"}')
    assert found[1] == "tool_calls"
