"""Answers of a wished form: whatever the model draws, they are valid, with and without pictures, drafts and company."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from foveate.core.chat import ChatRequest, Form
from foveate.core.errors import InvalidRequest
from foveate.service.service import Service
from tests.support.engines import answer_of, png, request, serving
from tests.support.harness import tiny


def make_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema whose every document is short."""
    kinds = ["integer", "boolean", "null", "string", "enum", "number", "const"]
    kind = rng.choice(kinds + (["object", "array", "anyOf", "object"] if depth else []))
    if kind == "object":
        names = rng.sample(["a", "b", "é x", 'q"t', "long_name", "n0"], rng.randint(0, 3))
        required = [name for name in names if rng.random() < 0.7]
        properties = {name: make_schema(rng, depth - 1) for name in names}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": make_schema(rng, depth - 1), "minItems": rng.randint(0, 1), "maxItems": 2}
    if kind == "anyOf":
        return {"anyOf": [make_schema(rng, depth - 1) for _ in range(2)]}
    low = rng.randint(-500, 500)
    return {
        "integer": {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 999)},
        "number": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
        "boolean": {"type": "boolean"},
        "null": {"type": "null"},
        "string": rng.choice([{"type": "string", "maxLength": 6}, {"type": "string", "pattern": "^[a-c]{1,3}-\\d$"}]),
        "enum": {"enum": rng.sample(["x", 5, None, True, "é", ["l"]], 2)},
        "const": {"const": {"k": [1, "two"]}},
    }[kind]


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with serving(tiny("dense")[2], max_concurrency=8) as service:
        yield service


def asked(form: Form | None, *pictures: bytes, **wishes: Any) -> ChatRequest:
    wishes = {"temperature": 1.0, "max_tokens": 600, "ignore_eos": False} | wishes
    return replace(request("tell me", *pictures, **wishes), form=form)


async def test_200_random_schemas_validate_also_after_images(service: Service) -> None:
    rng = random.Random(5)
    schemas = [make_schema(rng, depth=2 + number % 2) for number in range(200)]
    assert len({json.dumps(schema) for schema in schemas}) > 100
    pictures = [(), (png(1),), (png(2), png(3))]
    turns = asyncio.Semaphore(16)

    async def check(number: int, schema: dict[str, Any]) -> None:
        async with turns:
            text, end = await answer_of(service, asked(Form("schema", schema), *pictures[number % 3], seed=number))
        assert end.reason == "stop", (schema, text)
        jsonschema.validate(json.loads(text), schema)

    await asyncio.gather(*(check(number, schema) for number, schema in enumerate(schemas)))


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        (Form("json"), None),
        (Form("regex", r"(red|blue)/[0-9]{2}"), r"(red|blue)/[0-9]{2}"),
        (Form("choice", ["yes", 'no "é"\n', "maybe"]), 'yes|no "é"\n|maybe'),
        (Form("grammar", 'root ::= "a"+ ("b" | "c")'), "a+[bc]"),
        (Form("grammar", 'start: "x" /[0-9]/ "y"?'), "x[0-9]y?"),
    ],
)
async def test_other_forms(service: Service, form: Form, pattern: str | None) -> None:
    for seed in range(3):
        text, end = await answer_of(service, asked(form, seed=seed, max_tokens=300))
        if end.reason == "length":
            assert form.kind == "json"
        elif pattern is None:
            assert isinstance(json.loads(text), dict)
        else:
            assert re.fullmatch(pattern, text), text


async def test_a_form_does_not_depend_on_company_or_preemption(service: Service) -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 8, "maxItems": 8}
    wanted = asked(Form("schema", schema), png(4), temperature=0.0, logprobs=1, max_tokens=180)
    alone = await answer_of(service, wanted)
    company = [answer_of(service, asked(None, temperature=0.0, max_tokens=30)) for _ in range(3)]
    together = await asyncio.gather(answer_of(service, wanted), answer_of(service, wanted), *company)
    assert together[0][0] == together[1][0] == alone[0]
    async with serving(tiny("dense")[2], max_concurrency=3, kv_tokens=256, max_ctx=240, page_len=16) as tight:
        pressed = await asyncio.gather(*(answer_of(tight, wanted) for _ in range(3)))
        assert {text for text, _ in pressed} == {alone[0]}
        assert sum(end.timings.preemptions for _, end in pressed) > 0, "nothing was preempted"


@pytest.mark.parametrize(
    "form",
    [
        Form("schema", {"type": "nonsense"}), Form("schema", {"$ref": "#/nowhere"}), Form("schema", {"not": {}}),
        Form("schema", {"type": "string", "pattern": "("}), Form("regex", "("), Form("grammar", "start: nothing"),
        Form("grammar", "root ::= nothing"), Form("choice", ["x" * 300_000]), Form("schema", 5),
    ],
)  # fmt: skip
async def test_what_is_no_form_is_refused(service: Service, form: Form) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await service.chat(asked(form))
    assert len(caught.value.message) < 500


async def test_wishes_against_the_form_are_refused(service: Service) -> None:
    for wish in ({"ignore_eos": True}, {"min_tokens": 3}):
        with pytest.raises(InvalidRequest):
            await service.chat(asked(Form("json"), **wish))
