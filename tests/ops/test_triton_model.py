"""A whole tiny trunk by Triton kernels gives what it gives in plain torch, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.support.interpreter import DEVICE  # isort: skip - before any kernel
from foveate.models.interface import Memory
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_device import Qwen35OnDevice, turn_matrices
from foveate.models.registry import load_text
from foveate.ops.kernels import triton_kernels
from foveate.run.batch import lay_out
from foveate.run.embeds import RowStore
from foveate.run.graphs import EvenSteps, Spare
from tests.run.test_graph_step import CAPTURE, PAGES, SLOTS, fresh, mixed, piece, tokens
from tests.spec.test_verify_pass import near
from tests.support.harness import tiny

NOISE = 2e-5


def on_device(kind: str) -> Qwen35OnDevice:
    model = load_text(tiny(kind)[2], DEVICE, torch.float32)
    assert isinstance(model, Qwen35)
    turn_matrices(model.trunk)
    return Qwen35OnDevice(model.config, model.trunk, triton_kernels())


def moved(memory: Memory) -> Memory:
    paged, state = ({n: t.to(DEVICE, copy=True) for n, t in part.items()} for part in (memory.paged, memory.state))
    return Memory(paged, state, memory.page_len)


def equal(got: Any, want: Any) -> None:
    parts = [x.cpu() for x in (got.logits, got.features, got.final)]
    assert near(parts, [want.logits, want.features, want.final]) < NOISE


# The interpreter takes ten seconds for a trunk; a GPU none.
@pytest.mark.parametrize("kind", ["dense_tied", "dense", "moe"] if DEVICE == "cuda" else ["dense_tied"])
def test_mixed_and_even_steps(kind: str) -> None:
    rng, memory, model = random.Random(1), fresh(kind), on_device(kind)
    other = moved(memory)
    even = EvenSteps(model, other, Spare(PAGES, SLOTS), DEVICE, 4, 30, record=False)
    rows = RowStore(DEVICE, torch.float32)
    first = [piece(n, 0, tokens(rng, length)) for n, length in enumerate((21, 1, 3))]
    equal(model.run(lay_out(first, rows, DEVICE), other, CAPTURE), mixed(kind, memory, first))
    # A chunk of a prompt behind its past, a single token, and a chain of drafts, all at once.
    second = [piece(0, 21, tokens(rng, 3)), piece(1, 1, tokens(rng, 4), 3), piece(2, 3, tokens(rng, 1))]
    want, got = mixed(kind, memory, second), model.run(lay_out(second, rows, DEVICE), other, CAPTURE)
    equal(got, want)
    for forward in (want, got):
        forward.pending.commit([[0, 1]])
    third = [piece(0, 24, tokens(rng, 1)), piece(1, 3, tokens(rng, 3), 2), piece(2, 4, tokens(rng, 2), 1)]
    want, (got, _) = mixed(kind, memory, third), even.run(third, CAPTURE)
    equal(got, want)
    for forward in (want, got):
        forward.pending.commit([[0], [0, 1]])
    last = [piece(0, 25, tokens(rng, 1)), piece(1, 4, tokens(rng, 1)), piece(2, 6, tokens(rng, 1))]
    equal(even.run(last, CAPTURE)[0], mixed(kind, memory, last))
    states = ([state[:3].cpu() for state in one.state.values()] for one in (other, memory))
    assert near(*states) < NOISE
