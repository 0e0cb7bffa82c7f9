"""The text trunk against transformers, and its own equivalences: chunked = whole, batched = alone, fresh = fresh."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from foveate.models.interface import Batch
from foveate.models.qwen3_5 import sorted_batch
from foveate.models.registry import load_text, load_vision
from tests.models.oracle import Bench, Oracle, Sequence, run_chunks, run_greedy

TOLERANCE = 1e-4  # float32 noise at logits of about 8; mistakes start at 1e-2


def rows_of(oracle: Oracle, images: int) -> list[Tensor]:
    pictures = oracle.case(images).pictures
    return oracle.tower.encode(list(pictures)) if pictures else []


@pytest.mark.parametrize("images", [0, 1, 2, 4, 16])
@pytest.mark.parametrize("size", [1, 3, 7, 64, 1000])
def test_logits_equal_the_reference(oracle: Oracle, images: int, size: int) -> None:
    case, want = oracle.case(images), oracle.logits(images)
    got = run_chunks(Bench(oracle.model), case, rows_of(oracle, images), size)
    assert (got - want).abs().max() < TOLERANCE
    assert want.abs().max() > 4, "flat logits would hide mistakes"


@pytest.mark.parametrize("images", [0, 4])
def test_a_hundred_greedy_tokens_equal_the_reference(oracle: Oracle, images: int) -> None:
    case = oracle.case(images)
    assert run_greedy(Bench(oracle.model), case, rows_of(oracle, images), 100) == oracle.greedy(case, 100)


def test_a_mixed_step_equals_each_sequence_alone(oracle: Oracle) -> None:
    alone = {
        images: run_chunks(Bench(oracle.model), oracle.case(images), rows_of(oracle, images), 1000)
        for images in (0, 1, 2, 4)
    }
    bench = Bench(oracle.model, seed=1)
    running = {images: bench.begin(oracle.case(images), rows_of(oracle, images)) for images in alone}
    got: dict[int, list[Tensor]] = {images: [] for images in alone}
    # Runs of different lengths, single tokens between them, and sequences that begin while others go on.
    for sizes in (
        (9, 0, 5, 0),
        (1, 12, 1, 0),
        (1, 1, 1, 1),
        (30, 1, 11, 70),
        (1, 2, 1, 1),
        (2, 0, 3, 5),
        (99, 99, 99, 99),
    ):
        work = [_next(running[images], size) for images, size in zip(running, sizes, strict=True)]
        members = [images for images, (_, tokens) in zip(running, work, strict=True) if len(tokens)]
        parts = bench.step(*(pair for pair in work if len(pair[1])))
        for images, part in zip(members, parts, strict=True):
            got[images].append(part)
    for images, parts in got.items():
        assert (torch.cat(parts) - alone[images]).abs().max() < TOLERANCE, f"sequence with {images} images"


def _next(sequence: Sequence, size: int) -> tuple[Sequence, Tensor]:
    return sequence, sequence.case.ids[sequence.past_len : sequence.past_len + size]


def test_many_single_tokens_equal_each_alone(oracle: Oracle) -> None:
    case, bench = oracle.case(0), Bench(oracle.model)
    running = [bench.begin(case, []) for _ in range(5)]
    for i, sequence in enumerate(running):
        bench.step((sequence, case.ids[: 3 + 7 * i]))
    want = oracle.logits(0)
    for _ in range(4):
        at = [sequence.past_len for sequence in running]
        parts = bench.step(*(_next(sequence, 1) for sequence in running))
        assert max((part[0] - want[i]).abs().max() for part, i in zip(parts, at, strict=True)) < TOLERANCE


def test_a_used_slot_and_used_pages_start_afresh(oracle: Oracle) -> None:
    case, bench = oracle.case(0), Bench(oracle.model, slots=1)
    first = run_chunks(bench, case, [], 7)
    assert torch.equal(run_chunks(bench, case, [], 7), first)


def test_both_spellings_of_the_experts_are_one_model(oracles: dict[str, Oracle]) -> None:
    case = oracles["moe"].case(0)
    got = [run_chunks(Bench(oracles[kind].model), case, [], 1000) for kind in ("moe", "moe_fused")]
    assert torch.equal(*got)


def test_only_wanted_logits_come_back(oracle: Oracle) -> None:
    bench, case = Bench(oracle.model), oracle.case(0)
    sequence = bench.begin(case, [])
    sequence.pages = bench.free_pages[:2]
    ids, positions = case.ids[:11], case.positions[:, :11]
    pages, slots = torch.tensor([sequence.pages]), torch.tensor([sequence.slot])
    batch = Batch(ids, positions, (11,), (0,), pages, slots, logits_at=torch.tensor([10, 3]))
    got = oracle.model.forward(batch, bench.memory)
    assert got.dtype == torch.float32 and got.shape == (2, oracle.model.vocab_size)
    assert (got - oracle.logits(0)[[10, 3]]).abs().max() < TOLERANCE


def test_sorting_keeps_every_token_with_its_sequence() -> None:
    lens = (3, 1, 2, 1)
    batch = Batch(
        ids=torch.tensor([10, 11, 12, 20, 30, 31, 40]),
        positions=torch.arange(7).expand(3, -1),
        query_lens=lens,
        past_lens=(0, 5, 6, 7),
        pages=torch.tensor([[1], [2], [3], [4]]),
        slots=torch.tensor([1, 2, 3, 4]),
        logits_at=torch.tensor([2, 3, 5, 6]),
        image_at=torch.tensor([1, 4]),
    )
    got, place = sorted_batch(batch)
    assert got.ids.tolist() == [20, 40, 10, 11, 12, 30, 31]
    assert got.query_lens == (1, 1, 3, 2) and got.past_lens == (5, 7, 0, 6)
    assert got.slots.tolist() == [2, 4, 1, 3] and got.pages[:, 0].tolist() == [2, 4, 1, 3]
    assert got.ids[got.logits_at].tolist() == [12, 20, 31, 40], "logits come in the caller's order"
    assert got.image_at is not None and got.ids[got.image_at].tolist() == [11, 30]
    assert place is not None and torch.equal(got.ids[place], batch.ids)
    assert sorted_batch(got) == (got, None)
    checked, _ = sorted_batch(replace(batch, verify=(True, False, False, False), parents=((0, 0), (), (), ())))
    assert checked.ids.tolist() == [20, 40, 30, 31, 10, 11, 12], "what is verified stands last"
    assert checked.verify == (False, False, False, True) and checked.parents == ((), (), (), (0, 0))


def test_bfloat16_stays_near_float32(oracle: Oracle) -> None:
    model = load_text(oracle.folder, "cpu", torch.bfloat16)
    tower = load_vision(oracle.folder, "cpu", torch.bfloat16)
    case, want = oracle.case(2), oracle.logits(2)
    rows = tower.encode(list(case.pictures))
    assert rows[0].dtype == torch.bfloat16
    got = run_chunks(Bench(model), case, rows, 7)
    # Random weights have no margins: compare directions, not choices.
    assert torch.cosine_similarity(got, want, dim=1).median() > 0.99


def test_memory_is_what_the_layers_need(oracles: dict[str, Oracle]) -> None:
    spec = oracles["dense"].model.memory_spec()
    assert {p.name: p.shape for p in spec.paged} == {"keys.3": (2, 32), "values.3": (2, 32)}
    shapes = {s.name: s.shape for s in spec.state}
    assert shapes == {f"conv.{i}": (3, 128) for i in range(3)} | {f"delta.{i}": (4, 16, 16) for i in range(3)}
    assert spec.token_bytes() == 2 * 2 * 32 * 4
    half = load_text(oracles["dense"].folder, "cpu", torch.bfloat16).memory_spec()
    assert {s.dtype for s in half.state if s.name.startswith("delta")} == {torch.float32}
    assert half.token_bytes() == spec.token_bytes() // 2
