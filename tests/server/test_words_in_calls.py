"""Words that a model writes inside a tool call are text behind it: the same call in every API, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.oracle import CHAT, open_house, user
from tests.server.scripted import Stage, on_stage
from tests.support.engines import png
from tests.support.harness import tiny

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}, "zoom": {"type": "integer"}}}
BARE = {"name": "look", "parameters": PARAMETERS}
PATH, ZOOM = "<parameter=path>\na\n</parameter>\n", "<parameter=zoom>\n3\n</parameter>\n"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with on_stage(tmp_path_factory.mktemp("words") / "c") as found:
        yield found


@pytest.mark.parametrize("inner", [f"I look.\n{PATH}{ZOOM}", f"{PATH}I look.\n{ZOOM}", f"{PATH}{ZOOM}I look.\n"])
def test_words_inside_a_call(stage: Stage, inner: str) -> None:
    stage.script.say(f"<tool_call>\n<function=look>\n{inner}</function>\n</tool_call>")
    want, arguments = {"path": "a", "zoom": 3}, '{"path":"a","zoom":3}'
    chat = stage.http.post(CHAT, json={"messages": user("x"), "tools": [{"type": "function", "function": BARE}]}).json()
    said = chat["choices"][0]["message"]
    assert said["content"] == "I look.\n" and said["tool_calls"][0]["function"]["arguments"] == arguments
    tools = [{"type": "function", **BARE}]
    with stage.openai() as client:
        whole = client.responses.create(model=stage.name, input="x", tools=tools)  # type: ignore[call-overload]
        with client.responses.stream(model=stage.name, input="x", tools=tools) as stream:  # type: ignore[arg-type]
            streamed = stream.get_final_response()
    for response in (whole, streamed):
        call, message = response.output
        assert (call.type, call.arguments, call.status) == ("function_call", arguments, "completed")
        assert message.content[0].text == "I look.\n"
    known = [{"name": "look", "input_schema": PARAMETERS}]
    asked = {"model": stage.name, "max_tokens": 300, "messages": user("x"), "tools": known}
    with stage.anthropic() as sdk:
        message = sdk.messages.create(**asked)  # type: ignore[call-overload]
        with sdk.messages.stream(**asked) as blocks:  # type: ignore[arg-type]
            final = blocks.get_final_message()
    for answer in (message, final):
        assert [block.type for block in answer.content] == ["tool_use", "text"] and answer.stop_reason == "tool_use"
        assert answer.content[0].input == want and answer.content[1].text == "I look.\n"


def test_choices_of_one_request_fit_any_idle_queue() -> None:
    """They share their pictures and nobody waits before them, however tight the queue is."""
    with open_house(tiny("dense")[2], max_concurrency=1, queue_image_rows=4, queue_requests=2) as house:
        for n in (1, 2, 5):
            response = house.post(user(png(n, 160, 120), "x"), n=n)
            assert response.status_code == 200 and len(response.json()["choices"]) == n, response.text[:300]
        house.check()


def test_a_budget_that_ends_within_a_character_fails_nothing(tmp_path: Path) -> None:
    with on_stage(tmp_path / "c") as stage:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["red", "blue"]}}}
        fields = {"response_format": form, "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 40}
        for seed in range(24):
            sampled = {"temperature": 1.5, "top_k": 0, "top_p": 1, "seed": seed, "thinking_token_budget": 3}
            response = stage.http.post(CHAT, json={"messages": user("hello there"), **fields, **sampled})
            assert response.status_code == 200, (seed, response.text)
            if response.json()["choices"][0]["finish_reason"] == "stop":
                assert json.loads(response.json()["choices"][0]["message"]["content"]) in ("red", "blue")
