"""Runs what requests will need before the first one comes, so that kernels are compiled and libraries set up.

Owns the steps that are tried out: on the model itself, all on the spare page and slot, so that nothing anybody will
read is touched; and before it is there on a stand-in, so that compiling takes place while weights are read. Knows
neither weights nor requests.
"""

from __future__ import annotations

import torch

from foveate.models.interface import NOTHING, Batch, LanguageModel, Memory
from foveate.models.qwen3_5_device import Qwen35OnDevice
from foveate.run.cache import allocate
from foveate.run.graphs import LEAST_PAGES, EvenSteps, Spare

RUN_LEN = 200  # of no multiple of any block


@torch.inference_mode()
def warm_up(model: LanguageModel, memory: Memory, spare: Spare, device: str, step_tokens: int) -> None:
    """Run a step of a short run and a single token, then one of as many tokens as steps may have."""
    for lens in ((1, RUN_LEN), (step_tokens,)):
        model.run(_trial(lens, model.axes, memory, spare, device), memory, NOTHING)
    if device != "cpu":
        torch.cuda.synchronize(device)


@torch.inference_mode()
def rehearse(model: Qwen35OnDevice, device: str, most_lanes: int, page_len: int, drafts: bool = False) -> None:
    """Run a stand-in's steps of both kinds, in a memory of its own; `drafts`: of those that verify some, too."""
    memory, spare = allocate(model.memory_spec(), 1, page_len, 1, device), Spare(0, 0)
    even = EvenSteps(model, memory, spare, device, most_lanes, LEAST_PAGES, record=False)
    even.prepare()
    if drafts:
        even.try_drafts()
    warm_up(model, memory, spare, device, RUN_LEN)


def _trial(lens: tuple[int, ...], axes: int, memory: Memory, spare: Spare, device: str) -> Batch:
    """New sequences of zeros."""
    tokens, count = sum(lens), len(lens)
    pages = -(-max(lens) // memory.page_len)
    return Batch(
        ids=torch.zeros(tokens, dtype=torch.int64, device=device),
        positions=torch.zeros(axes, tokens, dtype=torch.int64, device=device),
        query_lens=lens,
        past_lens=(0,) * count,
        pages=torch.full((count, pages), spare.page, device=device),
        slots=torch.full((count,), spare.slot, device=device),
        logits_at=torch.tensor([tokens - 1], device=device),
    )
