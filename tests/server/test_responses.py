"""The Responses API through the real client: items in, items out, events that tell the same, and what is stored."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from foveate.core.chat import CallDelta, ChoiceEnd, TextDelta
from foveate.core.errors import EncodeFailed
from tests.server.fake_service import token, words
from tests.server.live import PIXEL, Live
from tests.server.scripted import ARGUMENTS, LOOK, WRITTEN, Stage
from tests.support.engines import data_url, png

TOOL = {"type": "function", "name": "look", "parameters": LOOK}
THINK = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
VOLATILE = {"created_at", "completed_at", "id", "call_id", "item_id", "timings", "store"}


class Near(float):
    """A log-probability: equal requests give it up to the order in which a CPU sums."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and abs(self - other) < 1e-4

    __hash__ = float.__hash__


def bare(value: Any) -> Any:
    """Without what is different in each response."""
    if isinstance(value, dict):
        kept = {key: inner for key, inner in value.items() if key not in VOLATILE}
        return {key: Near(inner) if key == "logprob" else bare(inner) for key, inner in kept.items()}
    return [bare(inner) for inner in value] if isinstance(value, list) else value


def follow(events: list[Any]) -> list[dict[str, Any]]:
    """The output as a reader of the events puts it together, checking their order and numbers."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    for event in events[2:-1]:
        kind = event.type.removeprefix("response.")
        if kind == "output_item.added":
            assert event.output_index == len(items)
            items.append(event.item.model_dump())
            assert not items[-1].get("content")
            continue
        assert event.output_index == len(items) - 1 and (kind == "output_item.done" or event.item_id == items[-1]["id"])
        item = items[-1]
        if kind == "content_part.added":
            item["content"] = [event.part.model_dump() if hasattr(event.part, "model_dump") else event.part]
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            item["content"][0]["text"] += event.delta
            item["content"][0].get("logprobs", []).extend(
                logprob.model_dump() for logprob in getattr(event, "logprobs", ())
            )
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event.delta
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event.text == item["content"][0]["text"]
        elif kind == "function_call_arguments.done":
            assert event.arguments == item["arguments"]
        elif kind == "content_part.done":
            assert event.part.text == item["content"][0]["text"]
        else:
            assert kind == "output_item.done"
            item["status"] = event.item.status
            assert bare(item) == bare(event.item.model_dump())
    return items


def both(stage: Stage, text: str | None, **fields: Any) -> Any:
    """The response to a script, the same whole and streamed."""
    stage.script.say(text, bytewise=True)
    with stage.openai() as client:
        done = client.responses.create(model=stage.name, **fields)
        events = list(client.responses.create(model=stage.name, stream=True, **fields))
    assert bare(events[-1].response.model_dump()) == bare(done.model_dump())
    assert events[-1].type == f"response.{done.status}"
    assert bare(follow(events)) == bare([item.model_dump() for item in done.output])
    return done


def test_text_in_text_out(stage: Stage) -> None:
    done = both(stage, "Héllo \U0001f600.", input="hi", instructions="be brief", metadata={"a": "b"})
    assert done.output_text == "Héllo \U0001f600." and done.status == "completed" and done.metadata == {"a": "b"}
    assert done.usage.output_tokens == len("Héllo \U0001f600.".encode()) + 1
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    assert done.instructions == "be brief" and done.model_extra["timings"]["prefill_s"] > 0
    assert both(stage, "", input="hi").output_text == ""


def test_thoughts_words_and_calls_are_items_in_their_order(stage: Stage) -> None:
    done = both(stage, f"hm\n</think>\n\nSo.\n{WRITTEN}", input="look", tools=[TOOL], reasoning={"effort": "high"})
    assert [item.type for item in done.output] == ["reasoning", "message", "function_call"]
    assert done.output[0].content[0].text == "hm" and done.output_text == "So."
    assert (done.output[2].name, done.output[2].arguments) == ("look", ARGUMENTS)
    assert done.usage.output_tokens_details.reasoning_tokens > 0
    none = both(stage, "So.", input="look", reasoning={"effort": "none"})
    assert [item.type for item in none.output] == ["message"]


def test_what_is_cut_off_is_incomplete(stage: Stage) -> None:
    done = both(stage, "abcdef", input="hi", max_output_tokens=3)
    assert (done.status, done.incomplete_details.reason, done.output_text) == ("incomplete", "max_output_tokens", "abc")
    assert done.output[0].status == "incomplete"


@pytest.mark.parametrize("detail", [{}, {"detail": None}, {"detail": "auto"}, {"detail": "low"}, {"detail": "high"}])
def test_B24_pictures_with_any_detail_and_in_outputs(stage: Stage, detail: dict[str, Any]) -> None:
    picture = {"type": "input_image", "image_url": data_url(png(5)), **detail}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_text", "text": "see"}, picture],
    }
    asked = {"role": "user", "content": [picture, {"type": "input_text", "text": "and?"}]}
    stage.script.say("ok")
    with stage.openai() as client:
        one = client.responses.create(model=stage.name, input=[asked])  # type: ignore[list-item]
        two = client.responses.create(model=stage.name, input=[asked, call, result], tools=[TOOL])  # type: ignore[list-item]
    rows = one.usage.input_tokens_details.image_tokens  # type: ignore[union-attr]
    assert rows > 0 and two.usage.input_tokens_details.image_tokens == 2 * rows  # type: ignore[union-attr]


def test_B24_another_detail_is_refused(live: Live) -> None:
    parts = [{"type": "input_image", "image_url": PIXEL, "detail": "foo"}]
    error = live.http.post("/v1/responses", json={"input": [{"role": "user", "content": parts}]}).json()["error"]
    assert error["param"] == "input[0].content[0].detail"


def test_a_response_is_gone_on_from(stage: Stage) -> None:
    stage.script.say(f"hm</think>Look: {WRITTEN}")
    with stage.openai() as client:
        first = client.responses.create(
            model=stage.name,
            input="look at a",
            instructions="first only",
            tools=[TOOL],
            reasoning={"effort": "low"},  # type: ignore[list-item]
        )
        stage.script.say("I see.")
        result = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "a pie"}  # type: ignore[union-attr]
        second = client.responses.create(
            model=stage.name,
            previous_response_id=first.id,
            input=[result],
            tools=[TOOL],  # type: ignore[list-item]
        )
        assert second.previous_response_id == first.id and second.output_text == "I see."
        assert client.responses.retrieve(second.id).output == second.output
        assert [item.type for item in client.responses.input_items.list(second.id)] == ["function_call_output"]
        third = client.responses.create(
            model=stage.name, previous_response_id=second.id, input="why?", tools=[TOOL], store=False
        )  # type: ignore[list-item]
        assert third.usage.input_tokens > second.usage.input_tokens  # type: ignore[union-attr]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(third.id)
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError) as gone:
            client.responses.create(model=stage.name, previous_response_id=first.id, input="x")
        assert gone.value.code == "response_not_found" and gone.value.param == "previous_response_id"


def test_earlier_turns_are_one_message_of_the_assistant(live: Live) -> None:
    items = [
        {"role": "developer", "content": "rules"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "message", "role": "assistant", "content": "one"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "two"}]},
    ]
    assert live.http.post("/v1/responses", json={"input": items, "instructions": "be"}).status_code == 200
    got = live.service.requests[0].messages
    assert [message["role"] for message in got] == [
        "system", "system", "user", "assistant", "tool", "assistant", "assistant",
    ]  # fmt: skip
    assert (got[3]["content"], got[3]["reasoning_content"]) == ("so", "hm")
    assert [call["function"]["arguments"] for call in got[3]["tool_calls"]] == [{"x": 1}, {}]
    assert got[4] == {"role": "tool", "tool_call_id": "c1", "content": "1"}


FILE = {"role": "user", "content": [{"type": "input_file"}]}
BROKEN = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": []}, "invalid_value", "input"),
        ({"input": "x", "background": True}, "unsupported_parameter", "background"),
        ({"input": "x", "conversation": "c"}, "unsupported_parameter", "conversation"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0]"),
        ({"input": "x", "tool_choice": {"type": "mcp"}}, "unsupported_parameter", "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_parameter", "input[0]"),
        ({"input": [FILE]}, "unsupported_parameter", "input[0].content[0]"),
        ({"input": "x", "truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"input": "x", "nonsense": 1}, "unknown_parameter", "nonsense"),
        ({}, "missing_required_parameter", "input"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "invalid_value", "text.format.schema"),
        ({"input": "x", "stream_options": {"include_obfuscation": False}}, "invalid_value", "stream_options"),
        ({"input": [BROKEN]}, "invalid_value", "input[0].arguments"),
    ],
)  # fmt: skip
def test_refusals_name_their_field(live: Live, fields: dict[str, Any], code: str, param: str) -> None:
    error = live.http.post("/v1/responses", json=fields).json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert live.service.requests == []


def test_wishes_arrive(live: Live) -> None:
    body = {"input": "x", "temperature": 0.5, "top_p": 0.25, "max_output_tokens": 7, "top_logprobs": 3, "seed": 4}
    body |= {"parallel_tool_calls": False, "tools": [TOOL], "tool_choice": {"type": "function", "name": "look"}}
    body |= {"text": {"format": {"type": "json_schema", "name": "n", "schema": LOOK}}}
    assert live.http.post("/v1/responses", json=body).status_code == 200
    (seen,) = live.service.requests
    wishes = seen.wishes
    assert (wishes.temperature, wishes.top_p, wishes.max_tokens, wishes.logprobs, wishes.seed) == (0.5, 0.25, 7, 3, 4)
    assert seen.tools is not None and (seen.tools.only, seen.tools.parallel) == ("look", False)
    assert seen.form is not None and seen.form.value == LOOK


def test_logprobs_travel_with_the_text(stage: Stage) -> None:
    done = both(stage, "abc", input="x", top_logprobs=2, temperature=0)
    logprobs = done.output[0].content[0].logprobs
    assert len(logprobs) == 4 and all(len(entry.top_logprobs) == 2 for entry in logprobs)


def test_a_failure_in_mid_stream_is_a_failed_response(live: Live) -> None:
    live.play(TextDelta(0, "a", 1), EncodeFailed("the encoder failed"))
    with live.openai() as client:
        *_, last = client.responses.create(model="demo", input="x", stream=True)
    assert last.type == "response.failed" and last.response.error is not None
    assert last.response.error.message == "the encoder failed"
    live.play(*words("ok"))
    assert live.http.post("/v1/responses", json={"input": "x"}).json()["output"][0]["content"][0]["text"] == "ok"


CALL = "<tool_call>\n<function=look>\n<parameter=path>\n"


@pytest.mark.parametrize("script", [f"So.{CALL}abcdef\n</parameter>\n</function>\n</tool_call>", f"{CALL}abc"])
@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({"max_output_tokens": len(f"So.{CALL}ab")}, '{"path":"ab'),
        ({"max_output_tokens": len("So.<tool_call>\n<function=look>\n")}, ""),
        ({"extra_body": {"stop": "b"}}, '{"path":"a'),
        ({"extra_body": {"stop": "path>"}}, ""),
        ({"extra_body": {"stop": "def"}}, '{"path":"abc'),
    ],
    ids=["length in the arguments", "length before them", "stop in them", "stop before them", "stop behind abc"],
)
def test_a_call_that_was_cut_is_incomplete_and_no_part_of_later_turns(
    stage: Stage, script: str, fields: dict[str, Any], arguments: str
) -> None:
    said = script.partition("<")[0]
    if limit := fields.get("max_output_tokens"):
        fields = {"max_output_tokens": limit - 3 + len(said)}
    done = both(stage, script, input="x", tools=[TOOL], **fields)
    call = done.output[-1]
    assert (call.type, call.status, call.arguments) == ("function_call", "incomplete", arguments)
    assert done.status == "incomplete"
    assert done.incomplete_details.reason == ("max_output_tokens" if limit else None)
    stage.script.say("ok")
    with stage.openai() as client:
        ask = {"model": stage.name, "tools": [TOOL]}
        later = client.responses.create(previous_response_id=done.id, input="y", **ask)
        user = [{"role": "user", "content": [{"type": "input_text", "text": text}]} for text in "xy"]
        messages = [item.model_dump(exclude_none=True) for item in done.output[:-1]]
        by_hand = client.responses.create(input=[user[0], *messages, user[1]], **ask)
        assert later.output_text == "ok" and later.usage.input_tokens == by_hand.usage.input_tokens
        # Its result is taken as that of any call that is not in the conversation.
        results = [{"type": "function_call_output", "call_id": each, "output": "1"} for each in (call.call_id, "other")]
        one, other = (client.responses.create(previous_response_id=done.id, input=[each], **ask) for each in results)
        assert one.usage.input_tokens == other.usage.input_tokens


def test_a_call_that_ends_early_is_incomplete(stage: Stage) -> None:
    done = both(stage, f"{CALL}abc", input="x", tools=[TOOL])
    assert (done.status, done.output[0].status, done.output[0].arguments) == (
        "incomplete", "incomplete", '{"path":"abc',
    )  # fmt: skip
    assert both(stage, "ok", previous_response_id=done.id, input="y").output_text == "ok"


def test_a_call_with_whole_arguments_is_complete_wherever_the_cut_falls(stage: Stage) -> None:
    whole = WRITTEN.removesuffix("\n</tool_call>")
    done = both(stage, WRITTEN, input="x", tools=[TOOL], max_output_tokens=len(whole))
    assert (done.status, done.output[0].status, done.output[0].arguments) == ("incomplete", "completed", ARGUMENTS)
    assert both(stage, "ok", previous_response_id=done.id, input="y", tools=[TOOL]).output_text == "ok"


@pytest.mark.parametrize(
    "script", [WRITTEN, f"hi {WRITTEN}", f"{WRITTEN} bye", f"{WRITTEN}\n{WRITTEN}", f"{CALL}abc", "hello", ""]
)
def test_logprobs_change_no_items(stage: Stage, script: str) -> None:
    items = []
    for fields in ({}, {"top_logprobs": 0, "temperature": 0}):
        done = both(stage, script, input="x", tools=[TOOL], **fields)
        items.append(bare([item.model_dump() for item in done.output]))
        for item in items[-1]:
            assert bool(item.get("content") and item["content"][0].pop("logprobs")) == bool(
                fields and item["type"] == "message"
            )
    assert items[0] == items[1]


def test_logprobs_of_held_text_wait_for_it(live: Live) -> None:
    call = [CallDelta(0, 0, "f"), CallDelta(0, 0, None, "{}")]
    held, text = (TextDelta(0, said, 1, (token(of),)) for said, of in (("", "mark"), ("a", "a")))
    end = ChoiceEnd(0, "stop", 1)
    for parts, kinds, counts in (
        ([held, text, end], ["message"], [2]),
        ([held, end], ["message"], [1]),
        ([held, *call, end], ["function_call"], []),
        ([*call, held, text, end], ["function_call", "message"], [2]),
    ):
        live.play(*parts)
        output = live.http.post("/v1/responses", json={"input": "x", "top_logprobs": 0}).json()["output"]
        assert [item["type"] for item in output] == kinds
        assert [len(item["content"][0]["logprobs"]) for item in output if "content" in item] == counts
