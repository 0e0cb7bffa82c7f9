"""The gated delta rule of DeltaNet layers: one-token steps and chunked prefill.

Per head, with state S [key dim, value dim], decay g <= 0 and write strength beta:
`S = exp(g) S;  d = beta (v - S^T k);  S += k d^T;  o = S^T q` (arXiv 2412.06464). Queries and keys come normalised and
scaled. The chunked form unrolls this over a chunk with G = cumsum(g): `d = (I + A)^-1 beta (v - exp(G) k S)` where
`A_ij = beta_i exp(G_i - G_j) k_i.k_j` below the diagonal. Everything inside chunks is computed for all chunks of all
sequences at once; only the state passes from chunk to chunk in a loop. Works in the dtype of its inputs (float32 in
models, float64 in checks). Key heads serve `value heads / key heads` consecutive value heads each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

CHUNK_LEN = 32  # 64 took a third longer for 280 tokens on a CPU: the triangular solves grow with its square


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How runs of tokens are cut into chunks of one length, the last of each run padded.

    Runs are taken longest first and chunks step by step: the first chunks of all runs, then the second ones, and so on.
    The runs still going at any step are then the leading ones.

    take: [chunks * chunk_len] which token stands where (padding repeats a token); keep: [chunks * chunk_len, 1], 0 at
    padding, or None without any. give: [tokens] where each token's output stands, or None when in order. order: run
    numbers, longest first, or None when in order. widths: how many runs take part at each step.
    """

    chunk_len: int
    take: Tensor
    keep: Tensor | None
    give: Tensor | None
    order: Tensor | None
    widths: tuple[int, ...]


def plan_chunks(run_lens: tuple[int, ...], device: torch.device, chunk_len: int = CHUNK_LEN) -> ChunkPlan:
    """The chunk plan of runs that follow one another on the token axis."""
    chunk_len = min(chunk_len, max(run_lens))
    starts = [0, *accumulate(run_lens)][:-1]
    order = sorted(range(len(run_lens)), key=lambda run: -run_lens[run])
    steps = -(-run_lens[order[0]] // chunk_len)
    widths = tuple(sum(run_lens[run] > step * chunk_len for run in order) for step in range(steps))
    runs = [(step, run) for step, width in enumerate(widths) for run in order[:width]]
    first = torch.tensor([starts[run] + step * chunk_len for step, run in runs])[:, None]
    last = torch.tensor([starts[run] + run_lens[run] - 1 for _, run in runs])[:, None]
    at = first + torch.arange(chunk_len)  # [chunks, chunk_len]
    real, take = (at <= last).flatten(), torch.minimum(at, last).flatten()
    give = torch.empty(sum(run_lens), dtype=torch.int64)
    give[take[real]] = torch.arange(len(take))[real]
    return ChunkPlan(
        chunk_len=chunk_len,
        take=take.to(device),
        keep=None if len(take) == len(give) else real.float()[:, None].to(device),
        give=None if len(run_lens) == 1 else give.to(device),
        order=None if order == sorted(order) else torch.tensor(order).to(device),
        widths=widths,
    )


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """What a layer feeds the rule, per token: query, key [tokens, key heads, key dim], value [tokens, value heads,
    value dim], decay g and write strength beta [tokens, value heads]."""

    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor
    beta: Tensor

    def split(self, at: int) -> tuple[DeltaInputs, DeltaInputs]:
        """The tokens before `at` and the rest."""
        parts = (self.query, self.key, self.value, self.decay, self.beta)
        return DeltaInputs(*(x[:at] for x in parts)), DeltaInputs(*(x[at:] for x in parts))


def delta_step(x: DeltaInputs, state: Tensor, slots: Tensor) -> Tensor:
    """One token per sequence; state [slots, value heads, key dim, value dim] is updated at `slots` [tokens].

    Returns [tokens, value heads, value dim].
    """
    tokens, heads, dim = x.value.shape
    query, key = x.query, x.key
    if key.shape[1] != heads:
        query, key = (t.repeat_interleave(heads // t.shape[1], 1) for t in (query, key))
    query, key, value = (t.reshape(tokens * heads, 1, -1) for t in (query, key, x.value))
    now = state.index_select(0, slots).view(tokens * heads, -1, dim)
    now.mul_(x.decay.exp().view(-1, 1, 1))
    delta = torch.baddbmm(value, key, now, alpha=-1).mul_(x.beta.reshape(-1, 1, 1))  # [tokens * heads, 1, value dim]
    now.addcmul_(key.mT, delta)
    state.index_copy_(0, slots, now.view(tokens, heads, -1, dim))
    return torch.bmm(query, now).view(tokens, heads, dim)


def delta_runs(x: DeltaInputs, state: Tensor, slots: Tensor, plan: ChunkPlan) -> Tensor:
    """Runs of tokens laid out by `plan`; state is updated at `slots` [runs].

    Returns [tokens, value heads, value dim].
    """
    slots = slots if plan.order is None else slots[plan.order]
    chunks = _Chunks.of(x, plan)
    out, last = chunks.scan(state.index_select(0, slots), plan.widths)
    state.index_copy_(0, slots, last)
    return _ungather(out, plan, len(x.value))


@dataclass(frozen=True, slots=True)
class _Chunks:
    """All chunks of a step with what does not depend on the state; the leading axis is chunks * value heads."""

    query: Tensor  # [n, chunk_len, key dim], times exp(G)
    key_in: Tensor  # [n, chunk_len, key dim], times exp(G): how the old state is read
    key_out: Tensor  # [n, chunk_len, key dim], times exp(G_last - G): how deltas reach the next state
    value: Tensor  # [n, chunk_len, value dim]
    solve: Tensor  # [n, chunk_len, chunk_len]: (I + A)^-1 diag(beta)
    inside: Tensor  # [n, chunk_len, chunk_len]: q_i.k_j exp(G_i - G_j) on and below the diagonal
    last: Tensor  # [n, 1, 1]: exp(G_last)
    heads: int

    @classmethod
    def of(cls, x: DeltaInputs, plan: ChunkPlan) -> _Chunks:
        chunk_len, heads, key_heads = plan.chunk_len, x.value.shape[1], x.key.shape[1]
        query, key = _cut(x.query, plan), _cut(x.key, plan)  # [chunks, key heads, chunk_len, key dim]
        gates = torch.stack([x.decay, x.beta], -1).index_select(0, plan.take)  # [chunks * chunk_len, heads, 2]
        gates = gates if plan.keep is None else gates * plan.keep[..., None]
        decay, beta = gates.unflatten(0, (-1, chunk_len)).permute(3, 0, 2, 1)  # [chunks, heads, chunk_len]
        total = decay.cumsum(-1)

        def spread(t: Tensor, factor: Tensor) -> Tensor:  # each key head to its value heads, scaled for them
            return (t.unsqueeze(2) * factor.unflatten(1, (key_heads, -1))).flatten(0, 2)

        # Above the diagonal the difference is positive and its exponential may be infinite: never read unmasked.
        fade = (total.unsqueeze(-1) - total.unsqueeze(-2)).exp()  # [chunks, heads, chunk_len, chunk_len]
        grow, shrink = total.exp().unsqueeze(-1), (total[..., -1:] - total).exp().unsqueeze(-1)
        system = spread(torch.matmul(key, key.mT), fade * beta.unsqueeze(-1))
        return cls(
            query=spread(query, grow),
            key_in=spread(key, grow),
            key_out=spread(key, shrink),
            value=_cut(x.value, plan).flatten(0, 1),
            solve=_unit_lower_inverse(system).mul_(beta.flatten(0, 1).unsqueeze(-2)),
            inside=spread(torch.matmul(query, key.mT), fade).tril_(),
            last=grow[..., -1:, :].flatten(0, 1),
            heads=heads,
        )

    def scan(self, state: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Pass the state [runs, heads, key dim, value dim] through the chunks of each step.

        Returns outputs [chunks * heads, chunk_len, value dim] and the last states [runs, heads, ...].
        """
        now, shape, at = state.flatten(0, 1), state.shape, 0
        befores, deltas, finished = [], [], []
        for width in widths:
            count = width * self.heads
            if count < len(now):
                finished.append(now[count:])
                now = now[:count]
            here = slice(at, at + count)
            befores.append(now)
            rest = torch.baddbmm(self.value[here], self.key_in[here], now, alpha=-1)
            deltas.append(torch.bmm(self.solve[here], rest))
            now = torch.baddbmm(now * self.last[here], self.key_out[here].mT, deltas[-1])
            at += count
        before, delta = _joined(befores), _joined(deltas)
        out = torch.baddbmm(torch.bmm(self.query, before), self.inside, delta)
        return out, _joined([now, *reversed(finished)]).view(shape)


def _cut(x: Tensor, plan: ChunkPlan) -> Tensor:
    """[tokens, heads, dim] to [chunks, heads, chunk_len, dim]."""
    return x.index_select(0, plan.take).unflatten(0, (-1, plan.chunk_len)).transpose(1, 2).contiguous()


def _unit_lower_inverse(system: Tensor) -> Tensor:
    """Inverse of I + the part of `system` [n, side, side] below the diagonal; the rest of it is not read."""
    eye = torch.eye(system.shape[-1], dtype=system.dtype, device=system.device).expand_as(system)
    return torch.linalg.solve_triangular(system, eye, upper=False, unitriangular=True)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _ungather(out: Tensor, plan: ChunkPlan, tokens: int) -> Tensor:
    """[chunks * heads, chunk_len, dim] back to [tokens, heads, dim]."""
    chunks = sum(plan.widths)
    flat = out.unflatten(0, (chunks, -1)).transpose(1, 2).flatten(0, 1)  # [chunks * chunk_len, heads, dim]
    return flat[:tokens] if plan.give is None else flat.index_select(0, plan.give)


def delta_reference(x: DeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """One sequence, token by token: outputs [tokens, value heads, value dim] and the state afterwards."""
    repeat = x.value.shape[1] // x.key.shape[1]
    query, key = x.query.repeat_interleave(repeat, 1), x.key.repeat_interleave(repeat, 1)
    out = []
    for t in range(len(x.value)):
        state = state * x.decay[t].exp()[:, None, None]
        delta = x.beta[t, :, None] * (x.value[t] - torch.einsum("hkv,hk->hv", state, key[t]))
        state = state + key[t, :, :, None] * delta[:, None, :]
        out.append(torch.einsum("hkv,hk->hv", state, query[t]))
    return torch.stack(out), state
