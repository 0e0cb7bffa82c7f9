"""Cases B46 to B54: counts, stops, odd values and unknown models behave alike with and without pictures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cases.oracle import CHAT, House, refused, user
from tests.support.engines import png

A = png(60)
CONTENTS = pytest.mark.parametrize("content", [("tell me",), (A, "tell me")], ids=["text", "image"])


@pytest.mark.parametrize("include", [True, False, None])
def test_B46_usage_comes_once_at_the_end_and_only_when_asked(house: House, include: bool | None) -> None:
    whole = house.ask(A, "count", n=2)
    options = {} if include is None else {"stream_options": {"include_usage": include}}
    chunks = house.stream(user(A, "count"), n=2, **options)
    if include:
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole.usage
        assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert all(chunk["choices"] and chunk.get("usage") is None for chunk in chunks)
    assert whole.usage["prompt_tokens_details"]["image_tokens"] > 0
    assert whole.usage["completion_tokens"] == 16


@CONTENTS
@pytest.mark.parametrize("place", [(2, 5), (5, 6), (0, 3), (9, 14)])
def test_B48_nothing_of_a_stop_string_leaks(house: House, content: tuple[Any, ...], place: tuple[int, int]) -> None:
    full = house.ask(*content, max_tokens=16)
    stop = full.text[slice(*place)]
    kept = full.text[: full.text.index(stop)]
    got = house.ask(*content, max_tokens=16, stop=["never there", stop])
    assert (got.text, got.reason) == (kept, "stop")
    assert got.usage["completion_tokens"] == len(got.logprobs) < 16
    assert got.logprobs == pytest.approx(full.logprobs[: len(got.logprobs)], abs=1e-3)
    chunks = house.stream(user(*content), max_tokens=16, stop=[stop], logprobs=True)
    deltas = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in deltas) == kept
    assert deltas[-1]["finish_reason"] == "stop"
    streamed = [t["logprob"] for c in deltas if c["logprobs"] for t in c["logprobs"]["content"]]
    assert streamed == pytest.approx(got.logprobs, abs=1e-3)


@CONTENTS
def test_B49_odd_values(house: House, content: tuple[Any, ...]) -> None:
    bad: dict[str, list[Any]] = {
        "max_tokens": [0, -1, 10**12, "5", 1.5, True],
        "temperature": [-0.1, 1e9, "0"],
        "top_p": [0, 1.1, -1],
        "n": [0, 129, -1],
        "logit_bias": [{"999999": 1}, {"x": 1}, {"1": 1000}],
        "top_k": [-2],
        "seed": [2**63],
        "stop": [""],
    }
    for name, values in bad.items():
        for value in values:
            message = refused(house.post(user(*content), **{name: value}), 400)
            error = house.post(user(*content), **{name: value}).json()["error"]
            assert error["param"].startswith(name) or error["code"] == "context_length_exceeded", (message, error)
    for text in ("NaN", "Infinity", "1e999"):
        body = json.dumps({"messages": user(*content)})[:-1] + f', "temperature": {text}}}'
        refused(house.http.post(CHAT, content=body, headers={"content-type": "application/json"}), 400)
    for name in bad:
        assert house.post(user(*content), **{name: None, "max_tokens": 2}).status_code == 200
    want = house.ask(*content)
    assert house.ask(*content, temperature=1e-4).text == want.text
    assert house.ask(*content, max_tokens=1).usage["completion_tokens"] == 1


@pytest.mark.parametrize("model", ["no-such", "../x", "", "/etc/passwd", "demo\n"])
def test_B50_another_model_is_not_found_and_nothing_is_loaded(house: House, model: str) -> None:
    for content in (("x",), (A, "x")):
        message = refused(house.post(user(*content), model=model), 404, "model_not_found", "model")
        assert "passwd" not in message
    refused(house.http.get("/v1/models/no-such"), 404, "model_not_found", "model")
    for fields in ({}, {"model": None}, {"model": house.service.name}):
        assert house.post(user("x"), **fields).status_code == 200


@CONTENTS
def test_B52_sampling_options_act_alike_with_and_without_a_picture(house: House, content: tuple[Any, ...]) -> None:
    drawn = [house.ask(*content, temperature=1.0, seed=seed, max_tokens=12).text for seed in range(3)]
    assert len(set(drawn)) == 3
    assert drawn == [house.ask(*content, temperature=1.0, seed=seed, max_tokens=12).text for seed in range(3)]
    greedy = house.ask(*content)
    assert house.ask(*content, temperature=1.0, top_k=1, seed=5).text == greedy.text
    assert house.ask(*content, temperature=1.0, top_p=1e-6, seed=5).text == greedy.text
    pushed = house.ask(*content, logit_bias={"65": 100}).text
    assert set(pushed) == {pushed[0]} and pushed != greedy.text
    assert house.ask(*content, logit_bias={"65": 100}, repetition_penalty=10.0).text == pushed
    biased = house.ask(*content, logit_bias={"65": 9}, max_tokens=12).text
    assert house.ask(*content, logit_bias={"65": 9}, frequency_penalty=2.0, max_tokens=12).text != biased
    assert house.ask(*content, max_tokens=3).usage["completion_tokens"] == 3


def test_B54_what_is_too_long_is_refused_with_the_right_numbers(house: House) -> None:
    before, encoded = house.service.stats().totals, house.service.max_ctx
    message = refused(house.post(user("a " * 3000)), 400, "context_length_exceeded")
    assert f"{encoded}" in message
    large = png(61, 256, 256)  # 64 rows
    fits = house.ask(*[large] * 16, "x").usage
    assert fits["prompt_tokens_details"]["image_tokens"] == 16 * 64
    filler = "\x01" * (house.service.max_ctx - fits["prompt_tokens"] - 4)
    assert house.post(user(*[large] * 15, "x" + filler), max_tokens=2).status_code == 200
    message = refused(house.post(user(*[large] * 16, "x" + filler), max_tokens=8), 400, "context_length_exceeded")
    assert str(16 * 64) in message and str(house.service.max_ctx) in message
    message = refused(house.post(user("x"), max_tokens=2048), 400, "context_length_exceeded", "max_tokens")
    assert "2048" in message
    house.settle()
    assert house.service.stats().totals.images - before.images == 31, "nothing of the refused ones was encoded"


def test_a_prompt_that_never_fits_is_refused_by_the_name_that_it_has(house: House) -> None:
    longest = house.service.max_ctx
    text = {"prompt": [7] * longest, "max_tokens": 1}
    refused(house.http.post("/v1/completions", json=text), 400, "context_length_exceeded", "prompt")
    refused(house.post(user("x " * longest), max_tokens=1), 400, "context_length_exceeded", "messages")
    exact = house.http.post("/v1/completions", json=text | {"prompt": [7] * (longest - 1)})
    assert exact.status_code == 200 and exact.json()["usage"]["total_tokens"] == longest
