"""Image blocks in the DeepSeek V4 text model against the description: routing, the whole-block window, any chunks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foveate.core.errors import CheckpointError
from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.interface import Batch
from foveate.models.registry import load_text
from tests.models.v4_bench import TOLERANCE, Bench, in_chunks
from tests.models.v4_naive import Naive, Prompt
from tests.support.tiny import write_tensors
from tests.support.tiny_v4 import VOCAB, make_tiny_v4, tiny_v4_config, tiny_v4_tensors
from tests.support.v4_blocks import block


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DeepseekV4:
    model = load_text(make_tiny_v4(tmp_path_factory.mktemp("v4_vision"), "v4_vision"), "cpu", torch.float32)
    assert isinstance(model, DeepseekV4)
    return model


def seen_prompt(seed: int, images: int, first_text: int | None = None) -> Prompt:
    """Text and images in turn; an image is lead pads, START, cells in their order, END."""
    rng, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    text_len = first_text if first_text is not None else rng.randint(1, 12)
    prompt = Prompt([rng.randrange(VOCAB) for _ in range(text_len)])
    for _ in range(images):
        kinds = [kind for kind, _ in block(len(prompt.ids), rng.randint(1, 4), rng.randint(1, 5))]
        start = len(prompt.ids) + kinds.index(0)
        prompt.ids += [VOCAB + kind for kind in kinds]
        prompt.blocks.append((start, len(prompt.ids)))
        prompt.rows |= {at: torch.randn(64, generator=noise) for at in range(start, len(prompt.ids))}
        prompt.ids += [rng.randrange(VOCAB) for _ in range(rng.randint(0, 14))]
    prompt.ids.append(5)
    return prompt


def cuts(prompt: Prompt, budget: int, rng: random.Random | None = None) -> list[int]:
    """Chunk sizes of at most `budget`, but a block stays whole; with an rng, of random sizes up to it."""
    sizes, done = [], 0
    while done < len(prompt.ids):
        end = min(len(prompt.ids), done + (rng.randint(1, budget) if rng else budget))
        for first, last in prompt.blocks:
            if first < end < last:
                end = first if first > done else last
        sizes.append(end - done)
        done = end
    return sizes


def naive(prompt: Prompt) -> Tensor:
    return Naive(tiny_v4_tensors("v4_vision"), tiny_v4_config("v4_vision")).logits(prompt)


@pytest.mark.parametrize("images", [1, 2, 3, 8])
def test_logits_equal_the_description_for_any_chunks(model: DeepseekV4, images: int) -> None:
    prompt = seen_prompt(images, images)
    want = naive(prompt)
    assert want.abs().max() > 3
    for budget in (1, 2, 5, 12, 16, 33, 1000):
        got = in_chunks(Bench(model, pages=160), prompt, cuts(prompt, budget))
        assert (got - want).abs().max() <= TOLERANCE, f"chunks of {budget}"


@pytest.mark.parametrize("text_len", [0, 1, 2, 3])
def test_every_alignment(model: DeepseekV4, text_len: int) -> None:
    prompt = seen_prompt(20 + text_len, 2, text_len)
    assert prompt.blocks[0][0] == 3, "START stands where the index leaves 3, modulo 4"
    assert (in_chunks(Bench(model), prompt, [1000]) - naive(prompt)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("seed", range(12))
def test_brute_force_over_whole_blocks(model: DeepseekV4, seed: int) -> None:
    rng = random.Random(seed)
    prompt = seen_prompt(100 + seed, rng.randint(0, 4))
    want = in_chunks(Bench(model, pages=160), prompt, [len(prompt.ids)])
    for _ in range(6):
        sizes = cuts(prompt, rng.choice([1, 4, 9, 30]), rng)
        assert (in_chunks(Bench(model, pages=160), prompt, sizes) - want).abs().max() <= TOLERANCE, sizes


def test_a_shared_pass_of_four_image_prompts_equals_four_alone(model: DeepseekV4) -> None:
    prompts = [seen_prompt(40, 2), seen_prompt(41, 1), seen_prompt(42, 0), seen_prompt(43, 3)]
    alone = [in_chunks(Bench(model), prompt, [1000]) for prompt in prompts]
    bench = Bench(model, pages=200, seed=5)
    parts = bench.step(*((bench.begin(prompt), len(prompt.ids)) for prompt in prompts))
    for got, want in zip(parts, alone, strict=True):
        assert (got - want).abs().max() <= TOLERANCE


def test_decoders_stream_on_beside_a_block(model: DeepseekV4) -> None:
    prompt, talker = seen_prompt(50, 2), [random.Random(1).randrange(VOCAB) for _ in range(40)]
    want = in_chunks(Bench(model), talker, [1000])
    bench = Bench(model)
    speaking, looking = bench.begin(talker), bench.begin(prompt)
    got = [bench.step((speaking, 12))[0]]
    for size in cuts(prompt, 6):
        got.append(bench.step((looking, size), (speaking, 1))[1])
    done = sum(len(part) for part in got)
    assert len(got) > 3 and (torch.cat(got) - want[:done]).abs().max() <= TOLERANCE


def test_each_rule_of_image_tokens_is_there(model: DeepseekV4) -> None:
    """Left out one by one: the block's window, the bias of images, and rows in place of embeddings."""
    prompt = seen_prompt(60, 2)
    want = in_chunks(Bench(model), prompt, [1000])
    blind = Prompt(prompt.ids, prompt.rows, [])
    assert (in_chunks(Bench(model), blind, [1000]) - want).abs().max() > 1e-2
    rowless = Prompt(prompt.ids, {}, prompt.blocks)
    assert (in_chunks(Bench(model), rowless, [1000]) - want).abs().max() > 1e-2
    start, end = prompt.blocks[0]
    as_text = Prompt([7 if start <= at < end else t for at, t in enumerate(prompt.ids)], prompt.rows, prompt.blocks)
    assert (in_chunks(Bench(model), as_text, [1000]) - want).abs().max() > 1e-2


def test_lead_pads_and_kinds_are_embedded(model: DeepseekV4) -> None:
    tensors = tiny_v4_tensors("v4_vision")
    got = model.embed(torch.tensor([3, VOCAB, VOCAB + 1, VOCAB + 3, VOCAB + 4]))
    names = ("image_start", "image_pad", "image_newline", "image_end")
    want = torch.stack([tensors["embed.weight"][3], *(tensors[name] for name in names)])
    assert torch.equal(got, want)


def test_a_cut_inside_a_block_would_show(model: DeepseekV4) -> None:
    """The guarantee that blocks stay whole matters."""
    prompt = seen_prompt(61, 1)
    start, end = prompt.blocks[0]
    want = in_chunks(Bench(model), prompt, [1000])
    bench = Bench(model)
    sequence, middle = bench.begin(Prompt(prompt.ids, prompt.rows)), start + (end - start) // 2
    bench.step((sequence, middle))
    rest = bench.step((sequence, len(prompt.ids) - middle))[0]
    assert (rest - want[middle:]).abs().max() > 1e-2


def test_a_placeholder_kind_needs_no_row(model: DeepseekV4) -> None:
    """A batch without images, from a model that sees: nothing is looked up."""
    bench = Bench(model)
    batch = bench.batch([(bench.begin([1, 2, 3]), [1, 2, 3], False)])
    assert isinstance(batch, Batch) and batch.image_rows is None
    assert model.forward(batch, bench.memory).isfinite().all()


def test_eyes_need_their_biases(tmp_path: Path) -> None:
    make_tiny_v4(tmp_path, "v4_vision")
    tensors = tiny_v4_tensors("v4_vision")
    del tensors["layers.0.ffn.gate.bias_vl"]
    write_tensors(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"layers\.0\.ffn\.gate\.bias_vl"):
        load_text(tmp_path, "cpu", torch.float32)
