"""A verified step, committed, equals a plain run of what was accepted, wherever the rejection falls."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.interface import Capture
from foveate.models.registry import load_text
from tests.models.v4_bench import Bench, in_chunks
from tests.models.v4_naive import Prompt
from tests.support.tiny_v4 import V4_KINDS, make_tiny_v4

CAPTURE = Capture((0, 2), final=True, streams=True)
NOISE = 1e-5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DeepseekV4]:
    def load(folder: Path, kind: str) -> DeepseekV4:
        model = load_text(make_tiny_v4(folder, kind), "cpu", torch.float32)
        assert isinstance(model, DeepseekV4)
        return model

    return {kind: load(tmp_path_factory.mktemp(kind), kind) for kind in V4_KINDS}


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(320) for _ in range(count)]


def states(bench: Bench) -> list[Tensor]:
    return [tensor.clone() for tensor in bench.memory.state.values()]


@pytest.mark.parametrize("kind", V4_KINDS)
@pytest.mark.parametrize("past_len", [1, 3, 6, 7, 13, 30])
def test_every_place_of_rejection(models: dict[str, DeepseekV4], kind: str, past_len: int) -> None:
    """Five drafts cross windows of every ratio; what stands afterwards is what a plain run gives."""
    rng = random.Random(past_len)
    prompt, drafts, after = tokens(rng, past_len), tokens(rng, 6), tokens(rng, 12)
    for accepted in range(len(drafts)):
        stands = drafts[: accepted + 1]
        want = in_chunks(Bench(models[kind]), prompt + stands + after, [past_len, accepted + 1, 5, 1])
        bench = Bench(models[kind], seed=accepted)
        sequence = bench.begin(prompt)
        bench.step((sequence, past_len))
        before = states(bench)
        forward = bench.run((sequence, drafts, True), capture=CAPTURE)
        assert all(_same(a, b) for a, b in zip(before, states(bench), strict=True)), "states wait for the commit"
        assert (forward.logits[: accepted + 1] - want[past_len : past_len + accepted + 1]).abs().max() < NOISE
        assert forward.pending is not None
        forward.pending.commit([tuple(range(accepted + 1))])
        sequence.past_len += accepted + 1
        sequence.prompt = Prompt(prompt + stands + after)
        got = torch.cat([bench.step((sequence, size))[0] for size in (5, 1, 6)])
        assert (got - want[past_len + accepted + 1 :]).abs().max() < NOISE, f"{accepted} accepted"


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@pytest.mark.parametrize("seed", range(6))
def test_many_rounds_beside_other_sequences(models: dict[str, DeepseekV4], seed: int) -> None:
    """Chains of random length and luck, prefill chunks and single tokens in one step, round after round."""
    rng, model = random.Random(seed), models[V4_KINDS[seed % 3]]
    truth = [tokens(rng, 70) for _ in range(4)]
    wanted = [in_chunks(Bench(model), ids, [1000]) for ids in truth]
    bench = Bench(model, seed=seed)
    running = [bench.begin(ids) for ids in truth]
    for round_number in range(30):
        work, good = [], []
        for sequence in rng.sample(running, 4):
            left = sequence.prompt.ids[sequence.past_len :]
            if not left or rng.random() < 0.2:
                continue
            take = left[: rng.randint(1, 7)]
            verify = len(take) > 1 and sequence.past_len > 0 and rng.random() < 0.6
            right = rng.randint(1, len(take)) if verify else len(take)
            work.append((sequence, take[:right] + tokens(rng, len(take) - right), verify))
            good.append(right)
        if not work:
            continue
        starts = [sequence.past_len for sequence, _, _ in work]
        forward = bench.run(*work, capture=CAPTURE)
        if forward.pending is not None:
            forward.pending.commit([range(right) for right, (_, _, verify) in zip(good, work, strict=True) if verify])
        parts = forward.logits.split([len(run) for _, run, _ in work])
        for (sequence, _, verify), start, right, part in zip(work, starts, good, parts, strict=True):
            sequence.past_len += right if verify else 0
            want = wanted[running.index(sequence)][start : start + right]
            assert (part[:right] - want).abs().max() < NOISE, f"round {round_number}"
    assert max(sequence.past_len for sequence in running) > 40


def test_captures_of_a_verified_step_are_those_of_a_plain_one(models: dict[str, DeepseekV4]) -> None:
    rng, model = random.Random(1), models["v4"]
    ids = tokens(rng, 26)
    plain, tried = Bench(model), Bench(model)
    one, other = plain.begin(ids), tried.begin(ids)
    plain.step((one, 20)), tried.step((other, 20))
    want = plain.run((one, ids[20:], False), capture=CAPTURE)
    got = tried.run((other, ids[20:], True), capture=CAPTURE)
    for name in ("features", "final", "streams", "logits"):
        assert (getattr(got, name) - getattr(want, name)).abs().max() < NOISE, name


def test_trees_are_refused_where_they_would_be_run(models: dict[str, DeepseekV4]) -> None:
    bench, ids = Bench(models["v4"]), tokens(random.Random(2), 8)
    assert models["v4"].verifies_trees is False
    sequence = bench.begin(ids)
    bench.step((sequence, 5))
    batch = replace(bench.batch([(sequence, ids[5:], True)]), parents=((0, 0),))
    with pytest.raises(AssertionError, match="chains"):
        bench.model.run(batch, bench.memory)
    forward = bench.run((sequence, ids[5:], True))
    assert forward.pending is not None
    with pytest.raises(AssertionError, match="chains"):
        forward.pending.commit([(0, 2)])
    with pytest.raises(AssertionError, match="run"):
        bench.model.forward(bench.batch([(sequence, ids[5:], True)]), bench.memory)
