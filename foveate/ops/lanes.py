"""A step told to the device by tensors alone, and its operators in plain torch.

`Lanes` are sequences with few new tokens each (decoding, or drafts under verification), `Runs` those with many
(prefill). Everything that changes from step to step is in tensors, so that a recorded step can be replayed: nothing
depends on a length that only Python knows. The functions here are what the kernels of `triton_*` are tested against
and what a CPU runs; they take lanes of one width, as recorded steps have them. Sequences behind a batch's own write to
a spare page and slot. Knows no layers and no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.ops.gated_delta import DeltaInputs
from foveate.ops.layers import gated_rms_norm, rms_norm
from foveate.ops.rope import rotate_

UNIT_EPS = 1e-6  # of the unit queries and keys of DeltaNet


@dataclass(frozen=True, slots=True)
class Lanes:
    """Sequences with few tokens each; all tensors but `owner` have one entry per sequence, all are int32.

    starts: [sequences + 1] where each one's tokens begin; past_lens: tokens in memory before; pages: [sequences, most
    pages], the spare page where a sequence has none of its own; slots; owner: [tokens] which sequence a token is of.
    width: most tokens of a sequence, page_len: tokens per page. settle: whether states are written now, or by a
    commit.
    """

    starts: Tensor
    past_lens: Tensor
    pages: Tensor
    slots: Tensor
    owner: Tensor
    width: int
    page_len: int
    settle: bool = True


@dataclass(frozen=True, slots=True)
class Runs:
    """Sequences with many tokens, as `lanes`, and how kernels cut them.

    blocks: [blocks, 2] sequence and first token within it, of each run of `block_len` queries that attention takes at
    once, those that see most first. chunks: the same of the delta rule's chunks in order; chunk_starts: [sequences +
    1] where each sequence's chunks begin.
    """

    lanes: Lanes
    blocks: Tensor
    chunks: Tensor
    chunk_starts: Tensor


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm before a product; scale: float32 [in]."""

    scale: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Heads of a full-attention layer; the projection's columns are queries, keys, values, gates, head by head."""

    heads: int
    kv_heads: int
    dim: int
    eps: float


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """Heads of a DeltaNet layer; the projection's columns are queries, keys, values, gates z, strengths, decays."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    eps: float

    @property
    def channels(self) -> int:
        """Columns that go through the convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """What a DeltaNet layer has beside its matrices.

    conv: [4, channels], oldest tap first; rate: -exp(A_log) and bias: dt_bias, float32 [value heads]; norm: float32
    [value dim].
    """

    conv: Tensor
    rate: Tensor
    bias: Tensor
    norm: Tensor
    sizes: DeltaSizes


def place(
    mixed: Tensor, scale: Tensor, rope: tuple[Tensor, Tensor], memory: tuple[Tensor, Tensor], lanes: Lanes,
    sizes: HeadSizes,
) -> Tensor:  # fmt: skip
    """Norm and turn queries and keys of a projection [tokens, columns], store keys and values in their pages.

    scale: float32 [heads + kv heads, dim]; rope: cos and sin [tokens, 1, half of the turned width]; memory: keys and
    values [pages, page_len, kv heads, dim]. Returns queries [tokens, heads, dim].
    """
    both = sizes.heads + sizes.kv_heads
    columns = mixed[:, : (both + sizes.kv_heads) * sizes.dim].unflatten(1, (-1, sizes.dim))
    qk, value = columns.split([both, sizes.kv_heads], 1)
    qk = rms_norm(qk.float(), None, sizes.eps).mul_(scale)
    qk = rotate_(qk, *rope).to(mixed.dtype)
    index = _indices(lanes)
    page = lanes.pages.flatten()[lanes.owner * lanes.pages.shape[1] + index // lanes.page_len]
    at = page.long() * lanes.page_len + index % lanes.page_len
    for paged, new in zip(memory, (qk[:, sizes.heads :], value), strict=True):
        paged.flatten(0, 1).index_copy_(0, at, new)
    return qk[:, : sizes.heads]


def _indices(lanes: Lanes) -> Tensor:
    """Index [tokens] of each token within its sequence."""
    at = torch.arange(len(lanes.owner), dtype=torch.int32, device=lanes.owner.device)
    return at - lanes.starts[lanes.owner] + lanes.past_lens[lanes.owner]


def attend(query: Tensor, gate: Tensor, memory: tuple[Tensor, Tensor], lanes: Lanes, out: Tensor) -> None:
    """Causal attention of few tokens over their pages, times sigmoid(gate), scale dim ** -0.5.

    query: [tokens, heads, dim], gate and out: [tokens, heads * dim]; memory: as in `place`, the new tokens included.
    """
    tokens, heads, dim = query.shape
    sequences = len(lanes.past_lens)
    keys, values = (paged[lanes.pages.long()].flatten(1, 2) for paged in memory)  # [sequences, most, kv heads, dim]
    most, kv_heads = keys.shape[1], keys.shape[2]
    last = _indices(lanes).view(sequences, lanes.width)
    seen = torch.arange(most, device=query.device) <= last[..., None]  # [sequences, width, most]
    # What nobody may see is another sequence's or was never written: zeros, so that not even a NaN gets through.
    unseen = ~seen[:, -1, :, None, None]
    keys, values = (x.masked_fill(unseen, 0).transpose(1, 2)[:, :, None] for x in (keys, values))
    q = query.view(sequences, lanes.width, kv_heads, heads // kv_heads, dim).permute(0, 2, 3, 1, 4)
    group = (-1, -1, q.shape[2], -1, -1)
    mixed = F.scaled_dot_product_attention(
        q, keys.expand(group), values.expand(group), attn_mask=seen[:, None, None]
    )  # [sequences, kv heads, group, width, dim]
    out.copy_(mixed.permute(0, 3, 1, 2, 4).reshape(tokens, heads * dim) * gate.sigmoid())


def convolve(x: Tensor, weight: Tensor, state: Tensor, lanes: Lanes, out: Tensor) -> None:
    """SiLU of the causal convolution of x [tokens, channels] behind the rows that each sequence carries.

    weight: [4, channels]; state: [slots, 3, channels], rewritten if the lanes settle. A sequence without a past starts
    from zeros.
    """
    stream = _stream(x, state, lanes)
    taps = len(weight)
    windows = [stream[:, tap : tap + lanes.width] * weight[tap] for tap in range(taps)]
    out.copy_(F.silu(sum(windows[1:], windows[0])).flatten(0, 1))
    if lanes.settle:
        state.index_copy_(0, lanes.slots.long(), stream[:, lanes.width :])


def keep_conv(x: Tensor, state: Tensor, lanes: Lanes, kept: Tensor) -> None:
    """Carry on the rows as they are after the first `kept` int32 [sequences] tokens of each lane."""
    stream, carried = _stream(x, state, lanes), state.shape[1]
    at = kept[:, None] + torch.arange(carried, device=kept.device)
    rows = stream.gather(1, at[..., None].expand(-1, -1, stream.shape[-1]))
    state.index_copy_(0, lanes.slots.long(), rows)


def _stream(x: Tensor, state: Tensor, lanes: Lanes) -> Tensor:
    """Carried rows and new ones of each lane: [sequences, carried + width, channels]."""
    past = state.index_select(0, lanes.slots).masked_fill(lanes.past_lens[:, None, None] == 0, 0)
    return torch.cat([past, x.unflatten(0, (-1, lanes.width))], 1)


def delta(mixed: Tensor, convolved: Tensor, weights: DeltaWeights, state: Tensor, lanes: Lanes, out: Tensor) -> None:
    """The gated delta rule token by token, normed and gated: out [tokens, value heads * value dim].

    mixed: the projection [tokens, columns], convolved: its convolved columns [tokens, channels]; state: float32
    [slots, value heads, key dim, value dim], rewritten if the lanes settle.
    """
    inputs, sizes = delta_inputs(mixed, convolved, weights), weights.sizes
    now = state.index_select(0, lanes.slots).masked_fill(lanes.past_lens[:, None, None, None] == 0, 0)
    parts = []
    for at in range(lanes.width):
        now, part = _advance(now, inputs, slice(at, None, lanes.width))
        parts.append(part)
    mixed_out = torch.stack(parts, 1).flatten(0, 1)  # [tokens, value heads, value dim]
    gate = mixed[:, sizes.channels :][:, : sizes.value_heads * sizes.value_dim].unflatten(1, (sizes.value_heads, -1))
    out.copy_(gated_rms_norm(mixed_out, gate, weights.norm, sizes.eps).flatten(1))
    if lanes.settle:
        state.index_copy_(0, lanes.slots.long(), now)


def keep_delta(
    mixed: Tensor, convolved: Tensor, weights: DeltaWeights, state: Tensor, lanes: Lanes, kept: Tensor
) -> None:
    """Bring each lane's state past its first `kept` int32 [sequences] tokens; the rest as in `delta`."""
    inputs = delta_inputs(mixed, convolved, weights)
    now = state.index_select(0, lanes.slots).masked_fill(lanes.past_lens[:, None, None, None] == 0, 0)
    for at in range(lanes.width):
        then, _ = _advance(now, inputs, slice(at, None, lanes.width))
        now = torch.where((kept > at)[:, None, None, None], then, now)
    state.index_copy_(0, lanes.slots.long(), now)


def delta_inputs(mixed: Tensor, convolved: Tensor, weights: DeltaWeights) -> DeltaInputs:
    """What the rule works with, in float32: unit queries (scaled by key dim ** -0.5) and keys, values, gates."""
    sizes = weights.sizes
    keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
    qk, value = convolved.float().split([2 * keys, values], -1)
    qk = qk.unflatten(-1, (2 * sizes.key_heads, sizes.key_dim))
    query, key = (qk * torch.rsqrt(qk.square().sum(-1, keepdim=True) + UNIT_EPS)).chunk(2, 1)
    beta, decay = mixed[:, sizes.channels + values :].float().chunk(2, -1)
    return DeltaInputs(
        query=query * sizes.key_dim**-0.5,
        key=key,
        value=value.unflatten(-1, (sizes.value_heads, sizes.value_dim)),
        decay=F.softplus(decay + weights.bias).mul_(weights.rate),
        beta=beta.sigmoid(),
    )


def _advance(state: Tensor, inputs: DeltaInputs, at: slice) -> tuple[Tensor, Tensor]:
    """One token of every lane: the state [sequences, heads, key dim, value dim] after it, and its output."""
    repeat = inputs.value.shape[1] // inputs.key.shape[1]
    query, key = (t[at].repeat_interleave(repeat, 1).unsqueeze(-1) for t in (inputs.query, inputs.key))
    state = state * inputs.decay[at].exp()[..., None, None]
    rest = inputs.value[at].unsqueeze(-2) - (state * key).sum(-2, keepdim=True)
    state = state + key * (rest * inputs.beta[at][..., None, None])
    return state, (state * query).sum(-2)


def glance(logits: Tensor) -> Tensor:
    """int64 [2, rows] of float32 logits [rows, vocab]: each row's best id, and 1 where all its values are finite."""
    low, high = logits.aminmax(dim=-1)  # both are NaN where any value is
    return torch.stack([logits.argmax(-1), (torch.isfinite(low) & torch.isfinite(high)).long()])
