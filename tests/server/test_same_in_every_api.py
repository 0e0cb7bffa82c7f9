"""One script through every API, streamed and whole: the same text, reason and counts, however tokens split characters
and stop strings; and one real answer, with a picture, at every temperature."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server import test_anthropic as messages
from tests.server import test_completions as completions
from tests.server import test_responses as responses
from tests.server import test_tools_chat as chat
from tests.server.scripted import Stage
from tests.support.engines import data_url, png

TEXTS = {
    "letters": "Grüße, žluťoučký kůň",
    "signs": "價格 は ３００円 です。",
    "pictures": "ok \U0001f469\u200d\U0001f680\U0001f1e6\U0001f1f9 e\u0301 done",
    "ends": "tail \U0001f600",
}
STOPS = {
    "letters": ["ůň", "ť", "nothing"],
    "signs": ["円 で", "は ３"],
    "pictures": ["\U0001f680", "\u0301 d", "\U0001f1e6\U0001f1f9"],
    "ends": ["\U0001f600", "l \U0001f601"],
}


def said_in_each(stage: Stage, stop: str | None) -> dict[str, tuple[str, bool, int]]:
    """API -> (text, whether a stop string ended it, tokens), having compared the stream of each with its whole."""
    fields: dict[str, Any] = {} if stop is None else {"stop": [stop]}
    message, reason, usage = got = chat.whole(stage, **fields)
    assert chat.streamed(stage, **fields) == got
    out = {"chat": (message.get("content", ""), reason == "stop", usage["completion_tokens"])}
    script, stage.script.say = stage.script.say, lambda *words, **more: None  # type: ignore[method-assign]
    try:
        done = messages.both(stage, None, **({} if stop is None else {"stop_sequences": [stop]}))
        text = "".join(block.text for block in done.content)
        assert (done.stop_reason == "stop_sequence") == (done.stop_sequence is not None)
        out["messages"] = (text, done.stop_reason in ("stop_sequence", "end_turn"), done.usage.output_tokens)
        body = {"extra_body": fields} if fields else {}
        done = responses.both(stage, None, input="hi", **body)
        out["responses"] = (done.output_text, done.status == "completed", done.usage.output_tokens)
        done = completions.both(stage, prompt="hi", max_tokens=400, **fields)
        (choice,) = done.choices
        out["completions"] = (choice.text, choice.finish_reason == "stop", done.usage.completion_tokens)
    finally:
        stage.script.say = script  # type: ignore[method-assign]
    return out


@pytest.mark.parametrize("bytewise", [True, False], ids=["bytes", "tokens"])
@pytest.mark.parametrize("name", TEXTS)
def test_every_api_says_the_same(stage: Stage, name: str, bytewise: bool) -> None:
    text = TEXTS[name]
    for stop in (None, *STOPS[name]):
        stage.script.say(text, bytewise=bytewise)
        kept = text if stop is None or stop not in text else text[: text.index(stop)]
        said = said_in_each(stage, stop)
        assert {one[:2] for one in said.values()} == {(kept, True)}, (stop, said)
        assert len({one[2] for one in said.values()}) == 1, "all count alike"
        if bytewise:
            end = len(text.encode()) + 1 if kept == text else len((kept + (stop or "")).encode())
            assert {one[2] for one in said.values()} == {end}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_real_answer_is_the_same_either_way(stage: Stage, temperature: float) -> None:
    """With its own draws: n choices in chat, a picture everywhere; the same seed, whole and streamed, several times."""
    url = data_url(png(11))
    part = {"type": "image_url", "image_url": {"url": url}}
    turn = [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}]
    for seed in range(4):
        asked = {"messages": turn, "temperature": temperature, "seed": seed, "max_tokens": 24, "n": 2}
        whole = stage.http.post("/v1/chat/completions", json=asked).json()
        with stage.openai() as client:
            texts, usage = {0: "", 1: ""}, None
            for chunk in client.chat.completions.create(
                model=stage.name,
                stream=True,
                stream_options={"include_usage": True},
                **asked,  # type: ignore[call-overload]
            ):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
        assert [choice["message"]["content"] for choice in whole["choices"]] == [texts[0], texts[1]]
        assert usage is not None and usage.completion_tokens == whole["usage"]["completion_tokens"]
        items = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "what?"}]
        wishes = {"temperature": temperature, "max_output_tokens": 24, "extra_body": {"seed": seed}}
        done = responses.both(stage, None, input=[{"role": "user", "content": items}], **wishes)
        assert done.output_text == whole["choices"][0]["message"]["content"]
    block = {"type": "image", "source": {"type": "url", "url": url}}
    turns = [{"role": "user", "content": [block, {"type": "text", "text": "what?"}]}]
    messages.both(stage, None, messages=turns, max_tokens=24, extra_body={"temperature": 0.0})
