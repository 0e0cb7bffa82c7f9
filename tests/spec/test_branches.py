"""Chains and trees under verification against the reference run along each path, in float64."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from foveate.ops.branches import Parents, branch_conv, branch_delta, chain, keep_conv, keep_delta, lay_out_branches
from foveate.ops.conv import conv_reference
from foveate.ops.gated_delta import DeltaInputs, delta_reference

KEY_HEADS, HEADS, KEY_DIM, VALUE_DIM, SLOTS, KERNEL, CHANNELS = 2, 4, 8, 12, 7, 4, 10
TIGHT = 1e-12
CPU = torch.device("cpu")


def tree(seed: int, count: int) -> Parents:
    rng = random.Random(seed)
    return tuple(rng.randint(max(0, i - 3), i) for i in range(count))


SHAPES = {
    "chain": [chain(5)],
    "chains": [chain(1), chain(6), chain(3)],
    "tree": [tree(0, 14)],
    "trees": [tree(1, 9), chain(4), tree(2, 12)],
}


def path_to(parents: Parents, number: int) -> list[int]:
    """The tokens from the anchor to `number`."""
    path = [number]
    while path[-1]:
        path.append(parents[path[-1] - 1])
    return path[::-1]


def delta_inputs(tokens: int, decay: float = 1.0, seed: int = 0) -> DeltaInputs:
    gen = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(tokens, *shape, generator=gen, dtype=torch.float64)

    query, key = (torch.nn.functional.normalize(draw(KEY_HEADS, KEY_DIM), dim=-1) for _ in range(2))
    return DeltaInputs(query, key, draw(HEADS, VALUE_DIM), -decay * draw(HEADS).abs(), draw(HEADS).sigmoid())


def picked(x: DeltaInputs, at: list[int]) -> DeltaInputs:
    return DeltaInputs(*(part[at] for part in (x.query, x.key, x.value, x.decay, x.beta)))


@pytest.mark.parametrize("decay", [1.0, 400.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_delta_along_every_path(shape: str, decay: float) -> None:
    parents = SHAPES[shape]
    branches = lay_out_branches(parents, KERNEL, CPU)
    x = delta_inputs(sum(branches.lens), decay)
    before = torch.randn(SLOTS, HEADS, KEY_DIM, VALUE_DIM, dtype=torch.float64)
    state, slots = before.clone(), torch.tensor([3, 0, 6])[: len(parents)]
    out, record = branch_delta(x, state, slots, branches)
    assert torch.equal(state, before), "verification must not write"
    for number in range(branches.width):
        after, last = before.clone(), [min(number, length - 1) for length in branches.lens]
        keep_delta(record, after, slots, torch.tensor(last))
        expected, start = before.clone(), 0
        for run, (above, slot) in enumerate(zip(parents, slots.tolist(), strict=True)):
            path = [start + at for at in path_to(above, last[run])]
            want, expected[slot] = delta_reference(picked(x, path), before[slot])
            assert (out[path] - want).abs().max() < TIGHT
            start += branches.lens[run]
        assert (after - expected).abs().max() < TIGHT, f"state after token {last}; other slots stay"


@pytest.mark.parametrize("shape", SHAPES)
def test_convolution_along_every_path(shape: str) -> None:
    parents = SHAPES[shape]
    branches = lay_out_branches(parents, KERNEL, CPU)
    x, weight = torch.randn(sum(branches.lens), CHANNELS), torch.randn(KERNEL, CHANNELS)
    before = torch.randn(SLOTS, KERNEL - 1, CHANNELS)
    state, slots = before.clone(), torch.tensor([4, 1, 6])[: len(parents)]
    out, stream = branch_conv(x, weight, state, slots, branches)
    assert torch.equal(state, before), "verification must not write"
    for number in range(branches.width):
        after, last = before.clone(), [min(number, length - 1) for length in branches.lens]
        keep_conv(stream, after, slots, branches, branches.ends(last))
        expected, start = before.clone(), 0
        for run, (above, slot) in enumerate(zip(parents, slots.tolist(), strict=True)):
            path = [start + at for at in path_to(above, last[run])]
            want, expected[slot] = conv_reference(x[path], weight, before[slot])
            assert (out[path] - want).abs().max() < 1e-5
            start += branches.lens[run]
        assert torch.equal(after, expected)


def test_a_rejected_token_cannot_reach_what_stands() -> None:
    """Not even through rounding: the same path beside different siblings gives the same bits."""
    parents = (0, 1, 0, 2, 3)  # the path 0 1 2 4 stands; 3 and 5 do not
    branches, states = lay_out_branches([parents], KERNEL, CPU), []
    for seed in (1, 2):
        x, other = delta_inputs(6), delta_inputs(6, seed=seed)
        for name in ("query", "key", "value", "decay", "beta"):
            getattr(x, name)[[3, 5]] = getattr(other, name)[[3, 5]]
        state = torch.ones(SLOTS, HEADS, KEY_DIM, VALUE_DIM, dtype=torch.float64)
        _, record = branch_delta(x, state, torch.tensor([2]), branches)
        keep_delta(record, state, torch.tensor([2]), torch.tensor([4]))
        states.append(state)
    assert torch.equal(*states)
