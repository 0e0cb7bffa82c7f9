"""A thought with a budget is ended where the budget is spent, and the answer follows: both APIs, streamed and whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cases.oracle import open_house
from tests.server.live import Live
from tests.server.scripted import Stage, write_folder
from tests.support.engines import data_url, png

CLOSED = 1  # the mark that ends a thought is one token more


def said(stage: Stage, **fields: Any) -> Any:
    """The model's own answer; a model of random weights hardly ever ends a thought by itself."""
    asked: dict[str, Any] = {
        "model": stage.name,
        "messages": [{"role": "user", "content": "think"}],
        "max_tokens": 60,
        "temperature": 1.0,
        "seed": 7,
        "reasoning_effort": "high",
    }
    with stage.openai() as client:
        found = client.chat.completions.create(**asked | fields)
        return list(found) if fields.get("stream") else found


def thought(completion: Any) -> int:
    return completion.usage.completion_tokens_details.reasoning_tokens


@pytest.mark.parametrize("budget", [1, 7, 30])
def test_a_thought_ends_where_its_budget_is_spent(stage: Stage, budget: int) -> None:
    free = said(stage)
    assert thought(free) > 30 + CLOSED and not free.choices[0].message.content, "so that the bound shows something"
    bound = said(stage, extra_body={"thinking_token_budget": budget})
    assert 0 < thought(bound) <= budget + CLOSED
    message = bound.choices[0].message
    assert message.content and "think>" not in message.reasoning_content
    kept = message.reasoning_content.rstrip("\ufffd")  # the end may have cut a character in two
    assert free.choices[0].message.reasoning_content.startswith(kept), "until then, the thought is the free one"
    assert bound.usage.completion_tokens <= 60


def test_a_streamed_thought_ends_there_too(stage: Stage) -> None:
    extra = {"extra_body": {"thinking_token_budget": 9}}
    whole = said(stage, **extra)
    chunks = [chunk.choices[0].delta for chunk in said(stage, stream=True, **extra) if chunk.choices]
    message = whole.choices[0].message
    assert "".join(delta.content or "" for delta in chunks) == message.content
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in chunks) == message.reasoning_content


def test_it_holds_beside_tools_forms_and_pictures(stage: Stage) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"enum": ["yes", "no"]}}}
    url = {"type": "image_url", "image_url": {"url": data_url(png(1))}}
    asked = [{"role": "user", "content": [url, {"type": "text", "text": "well?"}]}]
    found = said(stage, messages=asked, response_format=form, extra_body={"thinking_token_budget": 12})
    assert found.choices[0].message.content in ('"yes"', '"no"') and thought(found) <= 12 + CLOSED
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    for choice in ("auto", "required"):
        found = said(stage, tools=tools, tool_choice=choice, extra_body={"thinking_token_budget": 12})
        assert thought(found) <= 12 + CLOSED
        assert choice == "auto" or found.choices[0].message.tool_calls[0].function.name == "f"


def test_a_budget_beyond_the_answer_changes_nothing(stage: Stage) -> None:
    free, roomy = said(stage), said(stage, extra_body={"thinking_token_budget": 60})
    assert roomy.choices[0].message == free.choices[0].message
    said(stage, extra_body={"thinking_token_budget": 60, "ignore_eos": True})


def test_anthropics_budget_is_the_same_one(live: Live) -> None:
    """Theirs begins at 1,024 tokens, which a model of random weights does not reach."""
    body = {"messages": [{"role": "user", "content": "think"}], "max_tokens": 2000}
    for thinking, bound in (
        ({"type": "enabled", "budget_tokens": 1024}, 1024),
        ({"type": "adaptive"}, None),
        ({"type": "enabled"}, None),
        (None, None),
    ):
        assert live.http.post("/v1/messages", json=body | {"thinking": thinking}).status_code == 200
        assert live.service.requests[-1].thought_len == bound
    for budget in (1023, 0, "many"):
        thinking = {"type": "enabled", "budget_tokens": budget}
        found = live.http.post("/v1/messages", json=body | {"thinking": thinking})
        assert found.status_code == 400 and "budget_tokens" in found.json()["error"]["message"]


@pytest.mark.parametrize("budget", [0, -1, 1.5, "many", 2**40])
def test_what_is_no_budget_is_refused(stage: Stage, budget: Any) -> None:
    body = {"messages": [{"role": "user", "content": "think"}], "thinking_token_budget": budget}
    found = stage.http.post("/v1/chat/completions", json=body)
    assert found.status_code == 400 and found.json()["error"]["param"] == "thinking_token_budget"


def test_guessing_changes_no_bounded_thought(tmp_path: Path) -> None:
    """A rejected guess may have gone over the end of the budget: the bound is the same all the same."""
    folder, texts = write_folder(tmp_path / "model"), []
    asked = {"temperature": 1.0, "max_tokens": 50, "reasoning_effort": "high", "ignore_eos": False, "logprobs": False}
    for draft in ("none", "mtp"):
        with open_house(folder, draft=draft, draft_adaptive=False) as house:
            bodies = [
                house.post([{"role": "user", "content": f"think {n}"}], seed=n, thinking_token_budget=8, **asked).json()
                for n in range(6)
            ]
            texts.append([body["choices"][0]["message"] for body in bodies])
            assert all(body["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 9 for body in bodies)
            assert (draft == "mtp") == any(body["timings"]["drafted"] for body in bodies)
    assert texts[0] == texts[1]
