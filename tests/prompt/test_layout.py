"""Positions and spans against a naive reading of the rule and against transformers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.errors import InvalidRequest
from foveate.prompt.layout import lay_out

PAD = 500


@dataclass(frozen=True)
class Stub:
    key: str
    grid: tuple[int, int]
    merge: int = 2

    @property
    def rows(self) -> int:
        return self.grid[0] * self.grid[1] // self.merge**2

    def pixels(self) -> None:
        raise AssertionError("a layout must not decode")


def naive(ids: list[int], pictures: list[Stub], merge: int) -> tuple[list[int], list[tuple[int, int, int]], int]:
    """One token at a time, as the rule is written."""
    tokens, places, current, waiting = [], [], 0, list(pictures)
    for token in ids:
        if token != PAD:
            tokens.append(token)
            places.append((current, current, current))
            current += 1
            continue
        picture = waiting.pop(0)
        for r in range(picture.grid[0] // merge):
            for c in range(picture.grid[1] // merge):
                tokens.append(PAD)
                places.append((current, current + r, current + c))
        current = max(max(place) for place in places) + 1
    highest = max((max(place) for place in places), default=-1)
    return tokens, places, highest + 1 - len(tokens)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[Stub], int]:
    merge = draw(st.sampled_from([1, 2, 3]))
    side = st.integers(1, 7).map(lambda n: n * merge)
    ids = draw(st.lists(st.one_of(st.just(PAD), st.integers(0, 99)), max_size=30))
    pictures = [Stub(f"{k:064x}", draw(st.tuples(side, side)), merge) for k in range(ids.count(PAD))]
    return ids, pictures, merge


@given(prompts())
def test_equals_the_rule_written_out(case: tuple[list[int], list[Stub], int]) -> None:
    ids, pictures, merge = case
    prompt = lay_out(ids, PAD, pictures, merge)
    tokens, places, offset = naive(ids, pictures, merge)
    assert list(prompt.tokens) == tokens
    assert list(zip(*prompt.positions.axes, strict=True)) == places
    assert prompt.positions.offset == offset
    assert [(span.key, span.rows, span.grid) for span in prompt.spans] == [(p.key, p.rows, p.grid) for p in pictures]
    inside = {at for span in prompt.spans for at in range(span.start_at, span.end_at)}
    assert inside == {at for at, token in enumerate(tokens) if token == PAD}


def test_positions_go_on_behind_the_prompt() -> None:
    prompt = lay_out([1, PAD, 2], PAD, [Stub("a", (4, 8))], 2)
    assert [list(axis) for axis in prompt.positions.window(9, 12)] == [[5, 6, 7]] * 3
    assert prompt.positions.offset == -4


@pytest.mark.parametrize("count", [0, 1, 3])
def test_counts_must_agree(count: int) -> None:
    with pytest.raises(InvalidRequest, match=f"2 image placeholders for {count} images"):
        lay_out([PAD, 1, PAD], PAD, [Stub("a", (2, 2))] * count, 2)


def test_a_text_model_has_no_placeholder() -> None:
    assert lay_out([1, 2, 3], None, [], 2).tokens == (1, 2, 3)


def test_equals_transformers() -> None:
    import torch
    from transformers import Qwen3_5Config, Qwen3_5Model

    config = Qwen3_5Config()
    config.image_token_id = PAD
    pictures = [Stub("a", (4, 6)), Stub("b", (10, 2)), Stub("c", (2, 2))]
    ids = [7, PAD, 8, 9, PAD, 6, PAD, 3, 3]  # the reference needs something between two images, as templates write it
    prompt = lay_out(ids, PAD, pictures, 2)
    tokens = torch.tensor([prompt.tokens])
    grids = torch.tensor([(1, *p.grid) for p in pictures])

    class Shell:
        """Just what the method reads of a model, without building one."""

    shell = Shell()
    shell.config = config
    shell.get_vision_position_ids = Qwen3_5Model.get_vision_position_ids.__get__(shell)
    want, delta = Qwen3_5Model.get_rope_index(shell, tokens, (tokens == PAD).int(), image_grid_thw=grids)
    assert [list(axis) for axis in prompt.positions.axes] == want[:, 0].tolist()
    assert prompt.positions.offset == int(delta)
