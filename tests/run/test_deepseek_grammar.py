"""Calls that must come, in DeepSeek's markup: what the grammar lets through is what the parser reads."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from foveate.core.chat import Form, Tools
from foveate.core.plan import Draw
from foveate.core.values import Sampling
from foveate.prompt.dsml import CLOSE, OPEN, DsmlSplit
from foveate.prompt.elements import Arguments, CallStart
from foveate.prompt.schema import Frame, grammar_of
from foveate.prompt.tokens import Tokens
from foveate.run.grammar import Grammars
from tests.prompt.test_deepseek_tools import block, invoke, parameter
from tests.support.tiny_v4 import write_v4_tokenizer

EOS = 1
PICK: dict[str, Any] = {
    "name": "pick",
    "parameters": {
        "type": "object",
        "properties": {
            "side": {"type": "string", "enum": ["left", "right"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "note": {"type": "string"},
        },
        "required": ["side", "count"],
    },
}
NOW: dict[str, Any] = {"name": "now"}
LOOSE: dict[str, Any] = {"name": "loose", "parameters": {"anyOf": [{"type": "object"}]}}
FRAME = Frame(dsml=True)
SIDE, COUNT = parameter("side", "left"), parameter("count", "7", False)


class Pen:
    """A vocabulary and its grammars."""

    def __init__(self, folder: Path) -> None:
        write_v4_tokenizer(folder)
        self.tokens = Tokens.load(folder)
        self._grammars = Grammars.load(folder, frozenset([EOS]), self.tokens.vocab_size)

    def mask(self, grammar: str, output: list[int]) -> Any:
        mask = self._grammars.allowed(Draw(Sampling(grammar=grammar, seed=1), len(output), tuple(output), len(output)))
        assert mask is not None
        return mask

    def takes(self, grammar: str, text: str) -> bool:
        """Whether this is a whole answer."""
        ids = [*self.tokens.encode(text), EOS]
        return all(self.mask(grammar, ids[:at])[token] for at, token in enumerate(ids))

    def wander(self, grammar: str, seed: int) -> str:
        """A random answer."""
        rng, output = random.Random(seed), list[int]()
        while EOS not in output:
            output.append(rng.choice(self.mask(grammar, output).nonzero().flatten().tolist()))
            assert len(output) < 2000
        return self.tokens.text(output[:-1])


@pytest.fixture(scope="module")
def pen(tmp_path_factory: pytest.TempPathFactory) -> Pen:
    return Pen(tmp_path_factory.mktemp("pen"))


def required(*functions: dict[str, Any], **more: Any) -> str:
    return grammar_of(None, Tools(functions, "required", **more), FRAME)


def read(text: str) -> tuple[str, list[tuple[str, Any]]]:
    parser, words, calls = DsmlSplit({}), "", list[list[str]]()
    for part in parser.push(text) + parser.flush():
        if isinstance(part, CallStart):
            calls.append([part.name, ""])
        elif isinstance(part, Arguments):
            calls[-1][1] += part.text
        else:
            words += part.text
    return words, [(name, json.loads(arguments)) for name, arguments in calls]


def test_calls_as_the_model_writes_them_are_taken(pen: Pen) -> None:
    grammar = required(PICK, NOW)
    for text in (
        block(invoke("pick", SIDE, COUNT)),
        "\n\n" + block(invoke("pick", SIDE, COUNT, parameter("note", 'a "b"\n<é>')), invoke("now")),
        block(invoke("now")),
    ):
        assert pen.takes(grammar, text), text


@pytest.mark.parametrize(
    "text",
    [
        "words", OPEN + "\n" + CLOSE, block(invoke("pick", SIDE)), block(invoke("pick", COUNT, SIDE)),
        block(invoke("other")), block(invoke("now")) + " and words", block(invoke("now")).replace("tool", "function"),
        block(invoke("pick", parameter("side", "up"), COUNT)), block(invoke("pick", SIDE, parameter("count", "7"))),
        block(invoke("pick", SIDE, parameter("count", "x", False))),
    ],
)  # fmt: skip
def test_other_answers_are_not(pen: Pen, text: str) -> None:
    assert not pen.takes(required(PICK, NOW), text)


def test_one_call_where_no_more_are_allowed(pen: Pen) -> None:
    two = block(invoke("now"), invoke("now"))
    assert pen.takes(required(NOW), two) and not pen.takes(required(NOW, parallel=False), two)
    only = required(PICK, NOW, only="now")
    assert pen.takes(only, block(invoke("now"))) and not pen.takes(only, block(invoke("pick", SIDE, COUNT)))
    assert not pen.takes(only, two)


def test_words_may_come_first_where_calls_are_only_strict(pen: Pen) -> None:
    grammar = grammar_of(None, Tools((PICK | {"strict": True},)), FRAME)
    call = block(invoke("pick", SIDE, COUNT))
    assert pen.takes(grammar, "Just words.") and pen.takes(grammar, "Well.\n\n" + call) and pen.takes(grammar, call)
    assert not pen.takes(grammar, "Well.\n\n" + block(invoke("pick", COUNT)))


def test_a_form_may_stand_beside_calls(pen: Pen) -> None:
    grammar = grammar_of(Form("choice", ["yes", "no"]), Tools((NOW,)), FRAME)
    assert pen.takes(grammar, "yes") and pen.takes(grammar, block(invoke("now"))) and not pen.takes(grammar, "well")


def test_a_thought_stays_free(pen: Pen) -> None:
    grammar = grammar_of(None, Tools((NOW,), "required"), Frame(opened=True, dsml=True))
    assert pen.takes(grammar, f"I {OPEN} think</think>\n\n{block(invoke('now'))}")
    assert not pen.takes(grammar, "I think</think>words")


def test_parameters_that_are_no_list_may_be_any(pen: Pen) -> None:
    grammar = required(LOOSE)
    free = block(invoke("loose", parameter("a", "x y"), parameter("b", '{"c": [1]}', False)))
    assert pen.takes(grammar, free) and read(free) == ("", [("loose", {"a": "x y", "b": {"c": [1]}})])
    assert not pen.takes(grammar, block(invoke("loose", parameter("b", "{c", False))))


def test_whatever_the_grammar_allows_reads_as_calls_that_validate(pen: Pen) -> None:
    schema = PICK["parameters"] | {
        "properties": {k: v for k, v in PICK["parameters"]["properties"].items() if k != "note"}
    }
    grammar = required({"name": "pick", "parameters": schema}, NOW)
    for seed in range(12):
        words, calls = read(pen.wander(grammar, seed))
        assert not words and calls
        for name, arguments in calls:
            jsonschema.validate(arguments, schema if name == "pick" else {"maxProperties": 0})


def test_a_mark_that_is_a_token_of_its_own_is_used(pen: Pen) -> None:
    ids = pen.tokens.encode(OPEN)
    assert pen.tokens.id_of("｜DSML｜") in ids and pen.mask(required(NOW), ids[:1])[ids[1]]
