"""Verification of drafted tokens, chains and trees alike: state is read, and written once it is known what stands.

A run under verification is an anchor and drafted tokens, each with a parent before it; a chain is the tree in which
everyone's parent is the token before. Owns who sees whom (`Branches`), the convolution and the delta rule along
branches, and the commit of one path. A token's result depends on its ancestors only, so whatever is rejected, the
rest stands: with M the ancestor-or-self matrix and G = M g, the delta rule of `gated_delta` holds with every sum over
earlier tokens taken over ancestors (`d_i = beta_i (v_i - exp(G_i) S^T k_i - sum_j exp(G_i - G_j) k_i.k_j d_j)`), and
the state after a path that ends in n is `exp(G_n) S + sum over its j of exp(G_n - G_j) k_j d_j^T`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.ops.gated_delta import DeltaInputs

Parents = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Branches:
    """Runs under verification, one after another on a token axis of their own.

    lens: tokens of each run. seen: [runs, n, n] bool, n the longest run: token i sees j (itself and its ancestors);
    padding sees nothing and is seen by none. take: [runs * n] which token stands where (padding repeats one) and give:
    [tokens] where each token stands, or both None when no run is padded. windows: [tokens, kernel] the rows of a
    stream (carried rows of all runs, then all tokens) that a convolution over a token's branch reads, oldest first.
    """

    lens: tuple[int, ...]
    seen: Tensor
    take: Tensor | None
    give: Tensor | None
    windows: Tensor

    @property
    def width(self) -> int:
        """Tokens of the longest run."""
        return self.seen.shape[-1]

    def spread(self, x: Tensor) -> Tensor:
        """[tokens, heads, ...] to [runs, heads, n, ...]."""
        placed = x if self.take is None else x.index_select(0, self.take)
        return placed.unflatten(0, (len(self.lens), -1)).transpose(1, 2)

    def gather(self, x: Tensor) -> Tensor:
        """[runs, heads, n, dim] back to [tokens, heads, dim]."""
        flat = x.transpose(1, 2).flatten(0, 1)
        return flat if self.give is None else flat.index_select(0, self.give)

    def ends(self, last: Sequence[int]) -> Tensor:
        """Indices on the token axis [runs] of each run's token number `last`."""
        starts = [sum(self.lens[:run]) for run in range(len(self.lens))]
        return torch.tensor([start + at for start, at in zip(starts, last, strict=True)]).to(self.seen.device)


def chain(length: int) -> Parents:
    """Parents of a chain of `length` drafted tokens behind an anchor: number i + 1 follows number i."""
    return tuple(range(length))


def lay_out_branches(parents: Sequence[Parents], kernel: int, device: torch.device) -> Branches:
    """The branches of runs, each given by the parents of its drafted tokens.

    Run tokens count from 0, the anchor; `parents[run][i]` is the number of draft i + 1's parent and at most i.
    kernel: taps of the convolution.
    """
    lens = tuple(1 + len(run) for run in parents)
    width, carried = max(lens), kernel - 1
    seen = torch.zeros(len(lens), width, width, dtype=torch.bool)
    windows: list[list[int]] = []
    take: list[int] = []
    for run, above in enumerate(parents):
        first = len(windows)  # this run's anchor on the token axis
        windows.append([*range(run * carried, (run + 1) * carried), len(lens) * carried + first])
        seen[run, 0, 0] = True
        for number, parent in enumerate(above, 1):
            windows.append([*windows[first + parent][1:], len(lens) * carried + first + number])
            seen[run, number] = seen[run, parent]
            seen[run, number, number] = True
        take += [first + min(number, lens[run] - 1) for number in range(width)]
    padded = len(take) > len(windows)
    give = [run * width + number for run, length in enumerate(lens) for number in range(length)]
    return Branches(
        lens=lens,
        seen=seen.to(device),
        take=torch.tensor(take).to(device) if padded else None,
        give=torch.tensor(give).to(device) if padded else None,
        windows=torch.tensor(windows).to(device),
    )


def branch_conv(x: Tensor, weight: Tensor, state: Tensor, slots: Tensor, branches: Branches) -> tuple[Tensor, Tensor]:
    """Convolve each token behind its ancestors and the rows its run carries; the state stays.

    x: [tokens, channels]; weight: [kernel, channels], oldest tap first; state: [slots, kernel - 1, channels]. Returns
    [tokens, channels] and the stream that `keep_conv` reads.
    """
    stream = torch.cat([state.index_select(0, slots).flatten(0, 1), x])
    return (stream[branches.windows] * weight).sum(1), stream


def keep_conv(stream: Tensor, state: Tensor, slots: Tensor, branches: Branches, ends: Tensor) -> None:
    """Carry on the rows as they are after the path that ends in each run's token `ends` [runs]."""
    state.index_copy_(0, slots, stream[branches.windows.index_select(0, ends)[:, 1:]])


@dataclass(frozen=True, slots=True)
class DeltaRecord:
    """What verification keeps of each token so that a state can be built of any path.

    key: [runs, key heads, n, dim]; delta: [runs, heads, n, dim]; fade: [runs, heads, n, n], exp(G_i - G_j) where i
    sees j, else 0; grow: [runs, heads, n, 1], exp(G).
    """

    key: Tensor
    delta: Tensor
    fade: Tensor
    grow: Tensor


def branch_delta(x: DeltaInputs, state: Tensor, slots: Tensor, branches: Branches) -> tuple[Tensor, DeltaRecord]:
    """The delta rule along branches; state [slots, heads, key dim, value dim] stays as it is.

    Returns [tokens, heads, value dim] and the record that `keep_delta` reads.
    """
    query, key, value = (branches.spread(part) for part in (x.query, x.key, x.value))
    decay, beta = (branches.spread(part) for part in (x.decay, x.beta.unsqueeze(-1)))  # [runs, heads, n(, 1)]
    total = torch.matmul(decay, branches.seen.mT.to(decay.dtype))  # G: [runs, heads, n]
    apart = total.unsqueeze(-1) - total.unsqueeze(-2)
    fade = apart.masked_fill_(~branches.seen.unsqueeze(1), float("-inf")).exp_()  # [runs, heads, n, n]
    grow, groups = total.exp().unsqueeze(-1), (key.shape[1], -1)
    both = torch.cat([query, key], 2)  # [runs, key heads, 2n, key dim]
    inside, system = (
        (part.unsqueeze(2) * fade.unflatten(1, groups)).flatten(1, 2) for part in torch.matmul(both, key.mT).chunk(2, 2)
    )
    before = state.index_select(0, slots).unflatten(1, groups)  # [runs, key heads, repeat, key dim, value dim]
    from_query, from_key = torch.matmul(both.unsqueeze(2), before).flatten(1, 2).chunk(2, 2)
    wanted = (value - from_key * grow).mul_(beta)
    delta = torch.linalg.solve_triangular(system.mul_(beta), wanted, upper=False, unitriangular=True)
    out = torch.matmul(inside, delta).addcmul_(from_query, grow)
    return branches.gather(out), DeltaRecord(key, delta, fade, grow)


def keep_delta(record: DeltaRecord, state: Tensor, slots: Tensor, last: Tensor) -> None:
    """Bring the state at `slots` [runs] past the path that ends in each run's token number `last` [runs]."""
    runs = torch.arange(len(last), device=last.device)
    weight = record.fade[runs, :, last]  # [runs, heads, n]: exp(G_last - G_j) on the path, 0 elsewhere
    key = record.key.unsqueeze(2) * weight.unflatten(1, (record.key.shape[1], -1)).unsqueeze(-1)
    new = state.index_select(0, slots).mul_(record.grow[runs, :, last].unsqueeze(-1))
    new += torch.matmul(key.flatten(1, 2).mT, record.delta)
    state.index_copy_(0, slots, new)
