"""Manifold-constrained hyper-connections: several residual streams, mixed anew around each sublayer.

A site reads all streams of a token, says how they make the sublayer's input (`pre`), how its result returns to each
(`post`), and how they mix among each other (`comb`, near doubly stochastic by Sinkhorn's alternating normalisation).
Everything is float32 inside; streams come and go in the model's type. The formulas are DeepSeek V4's (sections on mHC
of its report). Knows no sublayer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from foveate.ops.layers import rms_norm


@dataclass(frozen=True, slots=True)
class Site:
    """Weights of one site, float32. into: [streams * hidden, outputs]; scale, base: [outputs].

    outputs: streams for pre, streams for post, streams * streams for comb, row by row; only pre at the head.
    """

    into: Tensor
    scale: Tensor
    base: Tensor


@dataclass(frozen=True, slots=True)
class Mixing:
    """Settings that all sites share: rounds of normalisation, what keeps them from zero, and the norm's epsilon."""

    rounds: int
    floor: float
    eps: float


@dataclass(frozen=True, slots=True)
class Mix:
    """pre, post: float32 [tokens, streams]; comb: float32 [tokens, streams from, streams to]."""

    pre: Tensor
    post: Tensor
    comb: Tensor


def _read(streams: Tensor, site: Site, eps: float) -> Tensor:
    """The site's raw outputs [tokens, outputs] for streams [tokens, streams, hidden]."""
    flat = rms_norm(streams.flatten(1).float(), None, eps)
    return torch.mm(flat, site.into).mul_(site.scale).add_(site.base)


def mix_of(streams: Tensor, site: Site, mixing: Mixing) -> Mix:
    """How a sublayer's site mixes streams [tokens, streams, hidden]."""
    count = streams.shape[1]
    pre, post, comb = _read(streams, site, mixing.eps).split([count, count, count * count], -1)
    return Mix(
        pre=pre.sigmoid() + mixing.floor,
        post=2.0 * post.sigmoid(),
        comb=sinkhorn(comb.unflatten(-1, (count, count)).softmax(-1) + mixing.floor, mixing.rounds, mixing.floor),
    )


def sinkhorn(comb: Tensor, rounds: int, floor: float) -> Tensor:
    """comb [tokens, from, to] with columns, then rows and columns in turn, divided by their sums; columns come last."""
    rows, columns = _summing(comb.shape[-1], comb.device)
    flat = comb.flatten(1)
    least = flat.new_full((flat.shape[1],), floor)
    flat = flat / torch.addmm(least, flat, columns)
    for _ in range(rounds - 1):
        flat.div_(torch.addmm(least, flat, rows))
        flat.div_(torch.addmm(least, flat, columns))
    return flat.view_as(comb)


@lru_cache(maxsize=16)
def _summing(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Matrices that turn a flat table into the sum of each number's row, and of its column, at the number's place.

    Small products are several times faster than reductions over so few numbers.
    """
    with torch.inference_mode(False):
        eye, ones = torch.eye(count, device=device), torch.ones(count, count, device=device)
        return torch.kron(eye, ones), torch.kron(ones, eye)


def gather_streams(streams: Tensor, pre: Tensor) -> Tensor:
    """The weighted sum of each token's streams: [tokens, hidden]."""
    return torch.bmm(pre.unsqueeze(1), streams.float()).squeeze(1).to(streams.dtype)


def return_streams(streams: Tensor, y: Tensor, mix: Mix) -> Tensor:
    """New streams [tokens, streams, hidden]: the old ones mixed, and a sublayer's result y [tokens, hidden]."""
    mixed = torch.bmm(mix.comb.mT, streams.float())
    return mixed.addcmul_(mix.post.unsqueeze(-1), y.float().unsqueeze(1)).to(streams.dtype)


def head_streams(streams: Tensor, site: Site, mixing: Mixing) -> Tensor:
    """What the head reads of streams [tokens, streams, hidden]: [tokens, hidden], before the final norm."""
    return gather_streams(streams, _read(streams, site, mixing.eps).sigmoid() + mixing.floor)


def mix_reference(streams: Tensor, site: Site, mixing: Mixing) -> Mix:
    """What `mix_of` computes, one token and one number at a time."""
    count = streams.shape[1]
    pre, post, comb = (torch.zeros(len(streams), *sides) for sides in ((count,), (count,), (count, count)))
    for t, token in enumerate(streams.flatten(1).float()):
        read = (token / (token.square().mean() + mixing.eps).sqrt()) @ site.into * site.scale + site.base
        pre[t] = torch.sigmoid(read[:count]) + mixing.floor
        post[t] = 2 * torch.sigmoid(read[count : 2 * count])
        table = read[2 * count :].view(count, count).softmax(1) + mixing.floor
        for turn in range(2 * mixing.rounds - 1):
            for i in range(count):
                line = table[i] if turn % 2 else table[:, i]
                line /= line.sum() + mixing.floor
        comb[t] = table
    return Mix(pre, post, comb)
