"""foveate in one's own process: answers, streams and batches, and nothing left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import foveate
from foveate import Ask, Model, Wishes
from foveate.core.errors import ConfigError, FoveateError, InvalidRequest, RequestFailed
from tests.support.engines import DEFAULTS, png
from tests.support.harness import tiny

GREEDY = {"temperature": 0.0, "max_tokens": 12}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    before = set(threading.enumerate())
    with Model(str(tiny("dense")[2]), **DEFAULTS, queue_requests=3) as model:
        yield model
    model.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("foveate")]


def test_text_and_pictures_in_any_order(model: Model, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    by_path = model.chat(["A:", tmp_path / "a.png", "B:", png(2), "which?"], **GREEDY)
    by_bytes = model.chat(["A:", png(1), "B:", png(2), "which?"], **GREEDY)
    assert by_path.text == by_bytes.text and by_path.output_tokens <= 12 and by_path.reason in ("stop", "length")
    assert len(by_path.timings.images) == 2 and by_path.prompt_tokens == by_bytes.prompt_tokens
    swapped = model.chat(["A:", png(2), "B:", png(1), "which?"], **GREEDY)
    assert swapped.text != by_path.text
    assert model.chat(png(1), **GREEDY).timings.images


def test_a_stream_says_the_same_and_may_be_left(model: Model) -> None:
    whole = model.chat(["hello", png(1)], **GREEDY)
    pieces = list(model.stream(["hello", png(1)], **GREEDY))
    assert "".join(pieces) == whole.text and len(pieces) > 1
    for _ in model.stream("hello", max_tokens=1500, ignore_eos=True):
        break
    assert model.chat(["hello", png(1)], **GREEDY).text == whole.text


def test_a_batch_longer_than_the_queue_keeps_its_order(model: Model) -> None:
    asks = [Ask([str(number), png(number % 3)], wishes=Wishes(**GREEDY)) for number in range(12)]
    together = [reply.text for reply in model.batch(asks)]
    assert together == [model.chat(ask.content, **GREEDY).text for ask in asks]
    with pytest.raises(InvalidRequest):
        model.batch(["fine", Ask(b"no picture")])


def test_history_and_schema(model: Model) -> None:
    first = model.chat("hello", **GREEDY)
    history = [("user", "hello"), ("assistant", first.text)]
    assert model.chat("and?", history=history, **GREEDY).prompt_tokens > first.prompt_tokens
    assert model.chat("?", schema={"enum": ["yes", "no"]}, temperature=1.0).text in ('"yes"', '"no"')


def test_mistakes_are_told(model: Model, tmp_path: Path) -> None:
    for wrong in (lambda: model.chat("x", nonsense=1), lambda: model.chat(tmp_path / "none.png")):
        with pytest.raises(InvalidRequest):
            wrong()
    wishes = ({"max_tokens": 0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"seed": "1"}, {"stop": ("",)})
    for wish in (*wishes, {"max_tokens": "9"}, {"stop": "word"}, {"repetition_penalty": 0}, {"top_k": 2.5}):
        with pytest.raises(InvalidRequest) as told:
            model.chat("x", **wish)
        assert told.value.param in wish
    for content in (None, 3, [3], ["x", None]):
        with pytest.raises(InvalidRequest, match="content is a text"):
            model.chat(content, **GREEDY)
    with pytest.raises(InvalidRequest, match="one answer"):
        model.batch([Ask("x", wishes=Wishes(n=2, max_tokens=1))])
    with pytest.raises(FoveateError):
        list(model.stream("x", max_tokens=10**6))
    with pytest.raises(ConfigError, match="nonsense"):
        Model("demo", nonsense=1)
    with pytest.raises(AttributeError):
        foveate.nothing  # noqa: B018


def test_a_closed_model_says_so() -> None:
    model = Model(str(tiny("dense")[2]), **DEFAULTS)
    model.close()
    with pytest.raises(RequestFailed, match="the model is closed"):
        model.chat("x")
