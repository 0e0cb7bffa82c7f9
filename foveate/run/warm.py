"""Runs what requests will need before the first one comes, so that kernels are compiled and libraries set up.

Owns the steps that are tried out, all on the spare page and slot, so that nothing anybody will read is touched. Knows
no model: whatever it is, it is asked for mixed steps.
"""

from __future__ import annotations

import torch

from foveate.models.interface import Batch, LanguageModel, Memory
from foveate.run.graphs import Spare

RUN_LEN = 200  # of no multiple of any block


@torch.inference_mode()
def warm_up(model: LanguageModel, memory: Memory, spare: Spare, device: str, step_tokens: int) -> None:
    """Run a step of a short run and a single token, then one of as many tokens as steps may have."""
    for lens in ((1, RUN_LEN), (step_tokens,)):
        model.run(_trial(lens, model.axes, memory, spare, device), memory)
    if device != "cpu":
        torch.cuda.synchronize(device)


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
