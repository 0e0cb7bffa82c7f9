"""DeepSeek's image blocks in a prompt, against the rule written out slowly."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.errors import InvalidRequest
from foveate.core.images import BlockRules, block_len, block_of, cells_of, lead_len
from foveate.core.values import ModelCard, Sampling
from foveate.prompt.layout import lay_out_blocks, lay_out_for
from tests.support import v4_blocks

PAD_ID, VOCAB, CELL = 7, 256, 3
RULES = BlockRules(14, CELL, 147456, 384, 8)


@dataclass(frozen=True)
class Stub:
    key: str
    grid: tuple[int, int]

    @property
    def rows(self) -> int:
        return block_len(cells_of(self.grid, CELL))

    def pixels(self) -> None:
        raise AssertionError("a layout must not decode")


def card(**change: object) -> ModelCard:
    facts: dict[str, object] = {
        "model_type": "deepseek_v4",
        "max_positions": 4096,
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "axes": 1,
        "image_token_id": PAD_ID,
        "image_rules": RULES,
        "eos_ids": frozenset({1}),
        "sampling": Sampling(),
    }
    return ModelCard(**(facts | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("start", range(4))
def test_every_grid_at_every_place_in_a_group(start: int) -> None:
    for down in range(1, 30):
        for across in range(1, 30):
            want = v4_blocks.block(start, down, across)
            block = block_of((down, across))
            assert [kind for kind, _ in want[lead_len(start) :]] == list(block.kinds)
            assert [cell for _, cell in want if cell is not None] == list(block.cells)
            assert len(block.kinds) == block_len((down, across)) == v4_blocks.token_count(down, across)
            prompt = lay_out_blocks([9] * start + [PAD_ID, 8], PAD_ID, [Stub("a", (3 * down, 3 * across))], CELL, VOCAB)
            assert prompt.tokens == (*[9] * start, *(VOCAB + kind for kind, _ in want), 8)
            (span,) = prompt.spans
            assert span.start_at % 4 == 3 and (span.rows - 2) % 4 == 0 and span.atomic
            assert (span.start_at - span.lead_len, span.end_at) == (start, start + len(want))


def test_aligned_groups_are_squares_of_cells() -> None:
    for down, across in ((2, 2), (4, 7), (5, 6), (12, 16)):
        block = block_of((down, across))
        shown = iter(block.cells)
        body = [next(shown) if kind == v4_blocks.IMAGE else None for kind in block.kinds[1:-1]]
        for at in range(0, len(body), 4):
            first, *rest = body[at : at + 4]
            if first is not None and all(cell is not None for cell in rest):
                assert rest == [first + across, first + 1, first + across + 1]
        assert sorted(block.cells) == list(range(down * across))


@given(
    st.lists(st.one_of(st.just(PAD_ID), st.integers(8, 250)), max_size=30),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=30, max_size=30),
)
def test_many_images_are_laid_left_to_right(ids: list[int], grids: list[tuple[int, int]]) -> None:
    pictures = [Stub(f"{k:064x}", grids[k]) for k in range(ids.count(PAD_ID))]
    want: list[int] = []
    waiting, places = list(pictures), []
    for token in ids:
        if token != PAD_ID:
            want.append(token)
            continue
        down, across = (-(-side // CELL) for side in waiting.pop(0).grid)
        tokens = [kind for kind, _ in v4_blocks.block(len(want), down, across)]
        places.append(len(want) + tokens.index(v4_blocks.START))
        want += [VOCAB + kind for kind in tokens]
    prompt = lay_out_for(card(), ids, pictures)
    assert list(prompt.tokens) == want
    assert [span.start_at for span in prompt.spans] == places
    assert [(span.key, span.grid, span.rows) for span in prompt.spans] == [(p.key, p.grid, p.rows) for p in pictures]
    assert [list(axis) for axis in prompt.positions.axes] == [list(range(len(want)))] and prompt.positions.offset == 0
    assert [list(axis) for axis in prompt.positions.window(len(want), len(want) + 2)] == [[len(want), len(want) + 1]]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_counts_must_agree(count: int) -> None:
    with pytest.raises(InvalidRequest, match=f"2 image placeholders for {count} images"):
        lay_out_blocks([PAD_ID, 9, PAD_ID], PAD_ID, [Stub("a", (3, 3))] * count, CELL, VOCAB)


def test_without_pictures_a_placeholder_is_a_token_like_any_other() -> None:
    assert lay_out_for(card(), [9, PAD_ID, 9], []).tokens == (9, PAD_ID, 9)
    blind = lay_out_for(card(image_rules=None, image_token_id=None), [9, PAD_ID, 9], [])
    assert blind.tokens == (9, PAD_ID, 9) and len(blind.positions.axes) == 1
