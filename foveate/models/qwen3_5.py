"""The Qwen3.5 text trunk: gated DeltaNet and gated full attention layers, dense or with experts, over paged memory.

One `run` takes a mixed step: prefill chunks, single tokens and drafts under verification of many sequences, flattened.
One-token sequences go first inside and drafts last, so that each layer treats a kind in one piece; the caller's order
does not matter. Per sequence the model
keeps pages of keys and values (full attention) and two states (DeltaNet): the last inputs of the convolution and the
float32 recurrent state. A sequence without a past starts from zeros whatever its slot holds. Everything depends on
the arguments alone, and nothing is read back from the device. Weights arrive fused from `qwen3_5_weights`, matrices
as [in, out].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.models.interface import NOTHING, Batch, Capture, Forward, Memory, MemorySpec, PagedSpec, StateSpec
from foveate.models.qwen3_5_config import TextConfig
from foveate.models.qwen3_5_trial import Trial, begin_trial
from foveate.ops.attention import attend_paged, write_paged
from foveate.ops.conv import causal_conv
from foveate.ops.fp8 import FEW_PAIRS, Blocked, Matrix, add_projected, chosen_swiglu, numbers, project
from foveate.ops.gated_delta import ChunkPlan, DeltaInputs, delta_runs, delta_step, plan_chunks
from foveate.ops.layers import gated_rms_norm, rms_norm, swiglu
from foveate.ops.moe import expert_swiglu, route
from foveate.ops.pages import PagedLayout, lay_out
from foveate.ops.rope import frequencies, frequency_axes, mrope_cos_sin, rotate_


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers share in one forward: rope, the paged layout, and how tokens split into ones, runs and trials.

    slots, run_lens, plan: of the ones and runs; the sequences of `trial` come behind them.
    """

    cos: Tensor
    sin: Tensor
    layout: PagedLayout
    slots: Tensor
    run_lens: tuple[int, ...]
    plan: ChunkPlan | None
    trial: Trial | None

    @property
    def ones(self) -> int:
        """How many of the leading tokens are one-token sequences."""
        return len(self.slots) - len(self.run_lens)


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Gated full attention.

    qkvg: [hidden, columns of all queries, keys, values, output gates]; scale: float32 [heads + kv heads, head_dim];
    out: [heads * head_dim, hidden].
    """

    qkvg: Matrix
    scale: Tensor
    out: Matrix

    def add_to(self, hidden: Tensor, x: Tensor, step: Step, memory: tuple[Tensor, Tensor], config: TextConfig) -> None:
        """Add the layer's result for normed x [tokens, hidden] to the residual stream, in place."""
        keys, values = memory
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        sides = [(heads + kv_heads) * dim, kv_heads * dim, heads * dim]
        qk, v, gate = project(x, self.qkvg).split(sides, -1)
        qk = rms_norm(qk.float().view(len(x), heads + kv_heads, dim), None, config.eps).mul_(self.scale)
        qk = rotate_(qk, step.cos, step.sin).to(x.dtype)
        write_paged(keys, step.layout.write_at, qk[:, heads:])
        write_paged(values, step.layout.write_at, v.view(len(x), kv_heads, dim))
        out = attend_paged(qk[:, :heads], keys, values, step.layout).flatten(1)
        add_projected(hidden, out * gate.sigmoid(), self.out)


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated DeltaNet.

    into: [hidden, columns of query, key and value channels, then output gates z, write strengths b, decays a]; conv:
    [kernel, channels]; rate: -exp(A_log) and bias: dt_bias, float32 [value heads]; norm: float32 [value dim]; unit:
    float32 [2 * key heads, 1], what turns RMS-normed queries and keys into unit ones (queries also scaled);
    unit_copies: the same [2 * key heads, value heads per key head, 1]; out: [value heads * value dim, hidden].
    """

    into: Matrix
    conv: Tensor
    rate: Tensor
    bias: Tensor
    norm: Tensor
    unit: Tensor
    unit_copies: Tensor
    out: Matrix

    def add_to(self, hidden: Tensor, x: Tensor, step: Step, memory: tuple[Tensor, Tensor], config: TextConfig) -> None:
        """Add the layer's result for normed x [tokens, hidden] to the residual stream, in place."""
        carried, state = memory
        channels = 2 * config.keys + config.values
        mixed, z, b, a = project(x, self.into).split([channels, config.values, *[config.value_heads] * 2], -1)
        mixed = _convolve(mixed, self.conv, carried, step)
        mixed = F.silu(mixed, inplace=True).float()
        qk, v = mixed.split([2 * config.keys, config.values], -1)
        # x / sqrt(sum x^2 + 1e-6) is an RMS norm with its epsilon divided by the width, up to a constant.
        qk = qk.unflatten(-1, (2 * config.key_heads, config.key_dim))
        qk = rms_norm(qk, None, 1e-6 / config.key_dim)
        # Single tokens want one copy per value head, which the scaling then makes along the way.
        qk = qk.mul_(self.unit) if step.run_lens or step.trial else (qk.unsqueeze(2) * self.unit_copies).flatten(1, 2)
        query, key = qk.chunk(2, 1)
        inputs = DeltaInputs(
            query=query,
            key=key,
            value=v.unflatten(-1, (config.value_heads, config.value_dim)),
            decay=F.softplus(a.float() + self.bias).mul_(self.rate),
            beta=b.float().sigmoid(),
        )
        out = gated_rms_norm(_delta(inputs, state, step), z.view(len(x), config.value_heads, -1), self.norm, config.eps)
        add_projected(hidden, out.flatten(1).to(x.dtype), self.out)


def _convolve(x: Tensor, weight: Tensor, carried: Tensor, step: Step) -> Tensor:
    """The causal convolution over the step's ones, runs and trials: [tokens, channels]."""
    trial = step.trial
    if trial is None:
        return causal_conv(x, weight, carried, step.slots, step.run_lens)
    last = trial.convolve(x[trial.start :], weight, carried)
    if not trial.start:
        return last
    return torch.cat([causal_conv(x[: trial.start], weight, carried, step.slots, step.run_lens), last])


def _delta(inputs: DeltaInputs, state: Tensor, step: Step) -> Tensor:
    """The delta rule over the step's ones, runs and trials: [tokens, value heads, value dim]."""
    trial = step.trial
    if trial is None:
        return _delta_settled(inputs, state, step)
    if not trial.start:
        return trial.delta(inputs, state)
    settled, tried = inputs.split(trial.start)
    return torch.cat([_delta_settled(settled, state, step), trial.delta(tried, state)])


def _delta_settled(inputs: DeltaInputs, state: Tensor, step: Step) -> Tensor:
    """The delta rule over the step's ones and runs."""
    if step.plan is None:
        return delta_step(inputs, state, step.slots)
    if not step.ones:
        return delta_runs(inputs, state, step.slots, step.plan)
    ones, runs = inputs.split(step.ones)
    first = delta_step(ones, state, step.slots[: step.ones])
    return torch.cat([first, delta_runs(runs, state, step.slots[step.ones :], step.plan)])


@dataclass(frozen=True, slots=True)
class Dense:
    """A SwiGLU. gate_up: [hidden, 2 * inner], gate columns first; down: [inner, hidden]."""

    gate_up: Matrix
    down: Matrix

    def add_to(self, hidden: Tensor, x: Tensor) -> None:
        """Add the result for normed x to the residual stream, in place."""
        add_projected(hidden, swiglu(x, self.gate_up), self.down)


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts and a gated shared one.

    router: [hidden, experts + 1], the shared expert's gate last; gate_up: [experts, hidden, 2 * inner], gate columns
    first; down: [experts, inner, hidden].
    """

    router: Tensor
    gate_up: Tensor | Blocked
    down: Tensor | Blocked
    shared: Dense
    top_k: int

    def add_to(self, hidden: Tensor, x: Tensor) -> None:
        """Add the result for normed x to the residual stream, in place."""
        logits = torch.mm(x, self.router)
        shares, chosen = route(logits[:, :-1], self.top_k)
        shared = project(swiglu(x, self.shared.gate_up), self.shared.down)
        hidden += self._routed(x, shares, chosen).addcmul_(shared, logits[:, -1:].sigmoid())

    def _routed(self, x: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """The routed experts' part for x [tokens, hidden]."""
        gate_up, down = self.gate_up, self.down
        few = chosen.numel() <= FEW_PAIRS * (self.router.shape[1] - 1)
        if few and isinstance(gate_up, Blocked) and isinstance(down, Blocked):
            return chosen_swiglu(x, gate_up, down, shares, chosen)
        return expert_swiglu(x, numbers(gate_up, x.dtype), numbers(down, x.dtype), shares, chosen)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; the norm scales are float32."""

    mixer_norm: Tensor
    mixer: FullAttention | DeltaNet
    mlp_norm: Tensor
    mlp: Dense | Experts

    @property
    def memory_names(self) -> tuple[str, str]:
        """Prefixes of the layer's two tensors in paged memory or state."""
        return ("keys", "values") if isinstance(self.mixer, FullAttention) else ("conv", "delta")


@dataclass(frozen=True, slots=True)
class Trunk:
    """All weights of the text model; head: [hidden, vocab], a view of the embedding when tied."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor


class Qwen35:
    """The text model as a `LanguageModel`."""

    axes = 3
    verifies_trees = True

    def __init__(self, config: TextConfig, trunk: Trunk) -> None:
        self.config, self.trunk = config, trunk
        self.vocab_size, self.hidden_size, self.max_positions = config.vocab, config.hidden, config.max_positions
        self.layer_count = len(trunk.layers)
        device = trunk.embedding.device
        self._frequency = frequencies(config.rope_theta, config.rotary).to(device)
        self._axes = torch.tensor(frequency_axes(config.sections)).to(device)

    def memory_spec(self) -> MemorySpec:
        """Keys and values per full layer; convolution rows and recurrent state per DeltaNet layer."""
        c, dtype = self.config, self.trunk.embedding.dtype
        paged: list[PagedSpec] = []
        state: list[StateSpec] = []
        for i, layer in enumerate(self.trunk.layers):
            first, second = (f"{name}.{i}" for name in layer.memory_names)
            if isinstance(layer.mixer, FullAttention):
                paged += [PagedSpec(name, (c.kv_heads, c.head_dim), dtype) for name in (first, second)]
            else:
                state.append(StateSpec(first, (c.conv_kernel - 1, 2 * c.keys + c.values), dtype))
                state.append(StateSpec(second, (c.value_heads, c.key_dim, c.value_dim), torch.float32))
        return MemorySpec(tuple(paged), tuple(state))

    @torch.no_grad()
    def forward(self, batch: Batch, memory: Memory) -> Tensor:
        """Run the step, write its keys, values and states into memory, and return float32 logits [wanted, vocab]."""
        assert not any(batch.verify), "what is verified must also be committed: use run"
        return self.run(batch, memory).logits

    @torch.no_grad()
    def run(self, batch: Batch, memory: Memory, capture: Capture = NOTHING) -> Forward:
        """Run the step and return what was asked for; states of verified sequences wait for the commit."""
        assert batch.query_lens and min(batch.query_lens) > 0, "every sequence of a step has tokens"
        batch, place = sorted_batch(batch)
        clear_fresh(batch, memory.state)
        hidden = self.embed(batch.ids)  # [tokens, hidden]
        if batch.image_rows is not None and batch.image_at is not None:
            hidden.index_copy_(0, batch.image_at, batch.image_rows.to(hidden.dtype))
        step, held = self._step(batch, memory), memory.paged | memory.state
        outputs = {-1: hidden.clone()} if -1 in capture.layers else {}
        for i, layer in enumerate(self.trunk.layers):
            first, second = (held[f"{name}.{i}"] for name in layer.memory_names)
            normed = rms_norm(hidden, layer.mixer_norm, self.config.eps)
            layer.mixer.add_to(hidden, normed, step, (first, second), self.config)
            layer.mlp.add_to(hidden, rms_norm(hidden, layer.mlp_norm, self.config.eps))
            if i in capture.layers:
                outputs[i] = hidden.clone()  # the next layer adds in place
        final = rms_norm(hidden if capture.final else hidden[batch.logits_at], self.trunk.norm, self.config.eps)
        logits = self.head(final[batch.logits_at] if capture.final else final)
        features = torch.cat([outputs[i] for i in capture.layers], -1) if capture.layers else None
        everywhere = final if capture.final else None
        if place is not None:
            features, everywhere = (None if x is None else x[place] for x in (features, everywhere))
        return Forward(logits, features, everywhere, step.trial)

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings [tokens, hidden]."""
        return F.embedding(ids, self.trunk.embedding)

    def head(self, hidden: Tensor) -> Tensor:
        """Float32 logits [tokens, vocab] of final-normed states [tokens, hidden]."""
        return torch.mm(hidden, self.trunk.head).float()

    def _step(self, batch: Batch, memory: Memory) -> Step:
        cos, sin = mrope_cos_sin(batch.positions, self._frequency, self._axes)
        layout = lay_out(batch.pages, batch.past_lens, batch.query_lens, memory.page_len)
        trial = None
        if any(batch.verify):
            paged = tuple(memory.paged[spec.name] for spec in self.memory_spec().paged)
            trial = begin_trial(batch, layout, paged, self.config.conv_kernel)
        settled = len(batch.query_lens) if trial is None else len(batch.query_lens) - len(trial.branches.lens)
        run_lens = tuple(length for length in batch.query_lens[:settled] if length > 1)
        return Step(
            cos=cos,
            sin=sin,
            layout=layout if trial is None else trial.layout,
            slots=batch.slots[:settled],
            run_lens=run_lens,
            plan=plan_chunks(run_lens, batch.ids.device) if run_lens else None,
            trial=trial,
        )


def sorted_batch(batch: Batch) -> tuple[Batch, Tensor | None]:
    """The same step with its one-token sequences in front and what is verified at the end.

    Returns the batch itself and None when that holds already, else also where each token went [tokens].
    """
    count = len(batch.query_lens)
    verify = batch.verify or (False,) * count
    order = sorted(range(count), key=lambda s: (verify[s], batch.query_lens[s] > 1))
    if order == list(range(count)):
        return batch, None
    device, offsets = batch.ids.device, batch.offsets
    tokens = list(chain.from_iterable(range(offsets[s], offsets[s + 1]) for s in order))
    place = [0] * len(tokens)
    for new, old in enumerate(tokens):
        place[old] = new
    sequences, take, place_of = (torch.tensor(x).to(device) for x in (order, tokens, place))
    return replace(
        batch,
        ids=batch.ids[take],
        positions=batch.positions[:, take],
        query_lens=tuple(batch.query_lens[s] for s in order),
        past_lens=tuple(batch.past_lens[s] for s in order),
        pages=batch.pages[sequences],
        slots=batch.slots[sequences],
        logits_at=place_of[batch.logits_at],
        image_at=None if batch.image_at is None else place_of[batch.image_at],
        verify=tuple(verify[s] for s in order),
        parents=tuple(batch.parents[s] for s in order) if batch.parents else (),
    ), place_of


def clear_fresh(batch: Batch, states: Mapping[str, Tensor]) -> None:
    """Zero these states of the sequences that begin in this step."""
    fresh = [s for s, past_len in enumerate(batch.past_lens) if not past_len]
    if fresh and states:
        slots = batch.slots[torch.tensor(fresh).to(batch.slots.device)]
        for state in states.values():
            state.index_fill_(0, slots, 0)
