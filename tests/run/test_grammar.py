"""Masks depend on the grammar and the output alone, however the matcher got there."""

from __future__ import annotations

import json
import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foveate.core.chat import Form, Tools
from foveate.core.errors import CheckpointError, RequestFailed
from foveate.core.plan import Draw, Slice
from foveate.core.values import Sampling
from foveate.prompt.schema import Frame, grammar_of
from foveate.prompt.tokens import Tokens
from foveate.run.grammar import KEPT, Grammars
from foveate.run.verify import settle
from tests.support.harness import tiny

FOLDER = tiny("dense")[2]
TOKENS = Tokens.load(FOLDER)
END = TOKENS.id_of("<|im_end|>") or 0
SCHEMA = grammar_of(Form("schema", {"type": "object", "properties": {"a": {"type": "integer"}}}), None, Frame())


def load() -> Grammars:
    return Grammars.load(FOLDER, frozenset([END]), TOKENS.vocab_size + 3)


def draw(output: list[int], grammar: str = SCHEMA, seed: int = 1) -> Draw:
    return Draw(Sampling(grammar=grammar, seed=seed), len(output), (7, *output), len(output))


def test_a_draw_without_a_grammar_has_no_mask() -> None:
    assert load().masks([Draw(Sampling(), 0)]) == [None]


def test_masks_are_those_of_the_text_and_cover_every_logit() -> None:
    grammars = load()
    ids = TOKENS.encode('{"a": 12}')
    for at, token in enumerate(ids):
        mask = grammars.allowed(draw(ids[:at]))
        assert mask is not None and mask.shape == (TOKENS.vocab_size + 3,) and mask[token] and not mask[-3:].any()
        assert not mask[END]
    ended = grammars.allowed(draw(ids))
    assert ended is not None and ended.nonzero().tolist() == [[END]]


def test_a_matcher_goes_back_and_is_built_anew_when_it_must() -> None:
    rng = random.Random(3)
    walked, other, outputs = load(), load(), [TOKENS.encode(text) for text in ('{"a": 123}', '{"a": -5', '{ "a"', "{}")]
    for _ in range(60):
        output = rng.choice(outputs)
        output = output[: rng.randint(0, len(output))]
        mask, fresh = walked.allowed(draw(output)), other.allowed(draw(output, seed=rng.randrange(10**9)))
        assert mask is not None and fresh is not None and torch.equal(mask, fresh)


F = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
CALL = grammar_of(None, Tools((F,), "required"), Frame())
SHORT = grammar_of(Form("regex", "(red|blue)/[0-9]{2}"), None, Frame())


@pytest.mark.parametrize("grammar", [SCHEMA, SHORT, CALL], ids=["schema", "regex", "call"])
def test_a_matcher_that_took_the_end_goes_back_all_the_same(grammar: str) -> None:
    """As after a guess that went to the end and was wrong, and for a second request with the same form and seed."""
    rng, walked, other = random.Random(5), load(), load()
    ends = 0

    def check(output: list[int]) -> list[int]:
        mask, fresh = walked.allowed(draw(output, grammar)), other.allowed(draw(output, grammar, rng.randrange(10**9)))
        assert mask is not None and fresh is not None and torch.equal(mask, fresh), TOKENS.text(output)
        return [int(token) for token in mask.nonzero().flatten()]

    for _ in range(8):
        output: list[int] = []
        while END not in output and len(output) < 40:
            ahead = list(output)
            while END not in ahead and len(ahead) < len(output) + 6:
                ahead.append(rng.choice(check(ahead)))
            check(ahead)
            ends += END in ahead
            output.append(rng.choice(check(output)))
    assert ends > 3 or grammar == CALL


def test_the_bound_of_a_thought_is_a_function_of_the_output() -> None:
    grammars, words, end = load(), TOKENS.encode("well then"), TOKENS.encode("</think>")
    bound = Sampling(thought_len=len(words))
    for output, only in (
        (words[:-1], None), (words, end[0]), ([*words, *end], None), ([*words, *words], None),
        ([*end, *words], None), ([*end, *words][: len(words)], None),
    ):  # fmt: skip
        mask = grammars.allowed(Draw(bound, len(output), (*words, *output), len(output)))
        assert (None if mask is None else mask.nonzero().flatten().tolist()) == (None if only is None else [only])
    formed = Sampling(grammar=grammar_of(Form("choice", ["a", "b"]), None, Frame(opened=True)), thought_len=2)
    mask = grammars.allowed(Draw(formed, 2, tuple(words[:2]), 2))
    assert mask is not None and mask.nonzero().flatten().tolist() == [end[0]]
    after = grammars.allowed(Draw(formed, 2 + len(end), (*words[:2], *end), 2 + len(end)))
    assert after is not None and {TOKENS.text([int(token)]) for token in after.nonzero()} <= {"a", "b", "\n", "\n\n"}


def test_a_thought_does_not_end_within_a_character() -> None:
    grammars, end = load(), TOKENS.encode("</think>")
    face = TOKENS.encode("é")
    assert len(face) == 2, "a character of two tokens"
    words = TOKENS.encode("well")
    formed = Sampling(grammar=grammar_of(Form("choice", ["a"]), None, Frame(opened=True)), thought_len=len(words) + 1)
    for output, only in (
        ([*words, face[0]], None), ([*words, *face], end[0]), ([*words, *face, *end[:-1]], end[-1]),
    ):  # fmt: skip
        mask = grammars.allowed(Draw(formed, len(output), tuple(output), len(output)))
        ids = [] if mask is None else mask.nonzero().flatten().tolist()
        assert ids == [only] if only is not None else face[1] in ids
    bare = replace(formed, grammar="")  # nothing has to follow: the budget is kept to the token
    mask = grammars.allowed(Draw(bare, len(words) + 1, (*words, face[0]), len(words) + 1))
    assert mask is not None and mask.nonzero().flatten().tolist() == [end[0]]


def test_what_does_not_follow_the_grammar_fails_alone() -> None:
    grammars = load()
    masks = grammars.masks([draw(TOKENS.encode("[")), draw(TOKENS.encode("{"), seed=2)])
    assert isinstance(masks[0], RequestFailed) and isinstance(masks[1], torch.Tensor)


def test_a_bounded_number_of_matchers_is_kept() -> None:
    grammars = load()
    for seed in range(KEPT + 10):
        grammars.allowed(draw([], seed=seed))
    assert len(grammars) == KEPT


def test_a_vocabulary_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(CheckpointError, match="tokenizer"):
        Grammars.load(tmp_path, frozenset(), 10)


def drafted(ids: list[int], drafts: list[int], temperature: float) -> Slice:
    wanted = replace(draw(ids), sampling=Sampling(grammar=SCHEMA, seed=1, temperature=temperature))
    tokens = (ids[-1] if ids else 7, *drafts)
    axis = array("q", range(len(tokens)))
    return Slice(1, 0, tokens, (axis,), (), 0, draft_len=len(drafts), draw=wanted)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_verified_under_the_grammar(temperature: float) -> None:
    rows, start = TOKENS.vocab_size + 3, TOKENS.encode('{"a"')
    noise = torch.randn(8, rows, generator=torch.Generator().manual_seed(4))
    alone: list[int] = []
    for row in range(4):
        ((result, _),) = settle([drafted(start + alone, [], temperature)], noise[row : row + 1], load())
        alone += result.tokens
    for drafts in (alone[:3], [alone[0], END, 5], [END], TOKENS.encode("zz")):
        ((result, path),) = settle([drafted(start, drafts, temperature)], noise[: len(drafts) + 1], load())
        assert list(result.tokens) == alone[: len(result.tokens)] and len(path) == len(result.tokens)
    wrong = drafted(TOKENS.encode("["), [], temperature)
    ((result, _),) = settle([wrong], noise[:1], load())
    assert isinstance(result.error, RequestFailed)
