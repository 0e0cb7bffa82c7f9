"""The causal depthwise convolution of DeltaNet layers, with the last inputs of each sequence carried in state slots.

Tokens lead, channels are contiguous: a window is a few shifted rows, and the state of a sequence is simply its last
`kernel - 1` input rows. One-token sequences go first in a step and are computed together; the longer runs behind them
share one stream in which each run follows its own carried rows. No activation, no bias, no knowledge of layers.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor


def causal_conv(x: Tensor, weight: Tensor, state: Tensor, slots: Tensor, run_lens: tuple[int, ...]) -> Tensor:
    """Convolve each sequence behind its carried rows and carry its last rows on; returns [tokens, channels].

    x: [tokens, channels], one-token sequences first, then the runs. weight: [kernel, channels], oldest tap first.
    state: [slots, kernel - 1, channels], written in place at `slots` [sequences].
    """
    ones = len(slots) - len(run_lens)
    past = state.index_select(0, slots)  # [sequences, kernel - 1, channels]
    if not run_lens:
        window = torch.cat([past, x[:, None]], 1)  # [sequences, kernel, channels]
        state.index_copy_(0, slots, window[:, 1:])
        return (window * weight).sum(1)
    stream, ends = _stream(x[ones:], past[ones:], run_lens)
    out, new = _convolve_stream(stream, weight, ends, run_lens)
    if ones:
        window = torch.cat([past[:ones], x[:ones, None]], 1)
        out, new = torch.cat([(window * weight).sum(1), out]), torch.cat([window[:, 1:], new])
    state.index_copy_(0, slots, new)
    return out


def _ends(carried: int, run_lens: tuple[int, ...]) -> list[int]:
    return list(accumulate(length + carried for length in run_lens))


def _stream(x: Tensor, past: Tensor, run_lens: tuple[int, ...]) -> tuple[Tensor, list[int]]:
    """Each run behind its carried rows, one after another, and where each ends."""
    pieces = [piece for pair in zip(past, x.split(run_lens), strict=True) for piece in pair]
    return torch.cat(pieces), _ends(past.shape[1], run_lens)


def _convolve_stream(
    stream: Tensor, weight: Tensor, ends: list[int], run_lens: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Outputs of the runs [their tokens, channels], and their last rows [runs, kernel - 1, channels]."""
    taps, rows = len(weight), len(stream) - len(weight) + 1
    out = stream[:rows] * weight[0]
    for tap in range(1, taps):
        out.addcmul_(stream[tap : tap + rows], weight[tap])
    new = torch.stack([stream[end - taps + 1 : end] for end in ends])
    if len(run_lens) == 1:
        return out, new
    # Windows that straddle two runs are computed too and dropped here.
    spans = [out[end - taps + 1 - length : end - taps + 1] for end, length in zip(ends, run_lens, strict=True)]
    return torch.cat(spans), new


def conv_reference(x: Tensor, weight: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """One sequence, written out: outputs [tokens, channels] and the carried rows afterwards."""
    rows = torch.cat([past, x])
    taps = len(weight)
    out = [(rows[t : t + taps] * weight).sum(0) for t in range(len(x))]
    return torch.stack(out), rows[len(x) :]
