"""The Qwen3.5 text trunk on a device with kernels of its own: the same weights, maths and memory, told by tensors.

Two kinds of steps. Even ones (`run_even`) can be recorded. Mixed ones (`run`) take prefill chunks, single tokens and
chains of drafts at once: their layout is worked out from Python's integers and sent to the device in one piece, then
each layer treats lanes and runs in one launch each. Trees of drafts go the way of `Qwen35`. A sequence without a past
starts from zeros inside the kernels, so no state is cleared beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from foveate.models.even import EvenBatch, EvenForward
from foveate.models.interface import NOTHING, Batch, Capture, Forward, Memory
from foveate.models.qwen3_5 import (
    DeltaNet,
    Dense,
    Experts,
    FullAttention,
    Layer,
    Qwen35,
    Trunk,
    clear_fresh,
    sorted_batch,
)
from foveate.models.qwen3_5_config import TextConfig
from foveate.models.step_layout import DeviceStep, mixed_step
from foveate.ops.kernels import Kernels
from foveate.ops.lanes import DeltaSizes, DeltaWeights, HeadSizes, Lanes, Norm, Runs

STAND_IN_WORDS = 16_384


@dataclass(slots=True)
class Record:
    """What one DeltaNet layer keeps of lanes under verification."""

    weights: DeltaWeights
    memory: tuple[Tensor, Tensor]
    mixed: Tensor
    convolved: Tensor


@dataclass(slots=True)
class ChainTrial:
    """Chains under verification: `keep` (or `commit`) writes the states of what stands."""

    lanes: Lanes
    kernels: Kernels
    records: list[Record] = field(default_factory=list)

    @torch.no_grad()
    def keep(self, kept: Tensor) -> None:
        """Bring the states past the first `kept` int32 [sequences] tokens of each chain."""
        for record in self.records:
            carried, state = record.memory
            channels = record.weights.sizes.channels
            self.kernels.keep_conv(record.mixed[:, :channels], carried, self.lanes, kept)
            self.kernels.keep_delta(record.mixed, record.convolved, record.weights, state, self.lanes, kept)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """As of `interface.Pending`, for chains: a path is a run of the first places."""
        assert all(list(path) == list(range(len(path))) for path in paths), "a chain has no branches"
        self.keep(torch.tensor([len(path) for path in paths], dtype=torch.int32).to(self.lanes.slots.device))


class Qwen35OnDevice(Qwen35):
    """`Qwen35` by the operators of one `Kernels`; also an `EvenModel`."""

    def __init__(self, config: TextConfig, trunk: Trunk, kernels: Kernels) -> None:
        super().__init__(config, trunk)
        assert config.conv_kernel == 4, "kernels convolve with four taps"
        self.kernels = kernels
        # Grouped products of float32 are taken apart on the host, which cannot be recorded.
        routed = any(isinstance(layer.mlp, Experts) for layer in trunk.layers)
        self.recordable = not routed or trunk.embedding.dtype == torch.bfloat16
        self._heads = HeadSizes(config.heads, config.kv_heads, config.head_dim, config.eps)
        sizes = DeltaSizes(config.key_heads, config.key_dim, config.value_heads, config.value_dim, config.eps)
        self._deltas = tuple(
            DeltaWeights(m.conv, m.rate, m.bias, m.norm, sizes) if isinstance(m := layer.mixer, DeltaNet) else None
            for layer in trunk.layers
        )
        self._own_states = frozenset(spec.name for spec in self.memory_spec().state)

    @torch.no_grad()
    def run_even(self, batch: EvenBatch, memory: Memory, capture: Capture) -> EvenForward:
        """As of `EvenModel`."""
        trial = None if batch.lanes.settle else ChainTrial(batch.lanes, self.kernels)
        step = DeviceStep(batch.lanes, ((slice(0, len(batch.ids)), batch.lanes),))
        hidden = self.embed(batch.ids)
        outputs = self._through_layers(hidden, batch.positions, step, memory, capture, trial)
        final = self.kernels.norm(hidden, Norm(self.trunk.norm, self.config.eps)) if capture.final else None
        logits = self._logits(hidden, final)
        return EvenForward(logits, self.kernels.glance(logits), _side_by_side(outputs, capture), final, trial)

    @torch.no_grad()
    def run(self, batch: Batch, memory: Memory, capture: Capture = NOTHING) -> Forward:
        """As of `LanguageModel`."""
        runs = self.kernels.runs
        if runs is None or any(batch.parents):
            return super().run(batch, memory, capture)
        batch, place = sorted_batch(batch)
        clear_fresh(batch, {name: state for name, state in memory.state.items() if name not in self._own_states})
        hidden = self.embed(batch.ids)
        if batch.image_rows is not None and batch.image_at is not None:
            hidden.index_copy_(0, batch.image_at, batch.image_rows.to(hidden.dtype))
        step = mixed_step(batch, memory.page_len, runs)
        tried = [part for _, part in step.parts if isinstance(part, Lanes) and not part.settle]
        trial = ChainTrial(tried[0], self.kernels) if tried else None
        outputs = self._through_layers(hidden, batch.positions, step, memory, capture, trial)
        final = self.kernels.norm(hidden, Norm(self.trunk.norm, self.config.eps)) if capture.final else None
        at = batch.logits_at
        logits = self._logits(hidden[at], None if final is None else final[at])
        features = _side_by_side(outputs, capture)
        if place is not None:
            features, final = (None if x is None else x[place] for x in (features, final))
        return Forward(logits, features, final, trial)

    def _logits(self, hidden: Tensor, final: Tensor | None) -> Tensor:
        """Float32 logits of the last layer's output, or of what the final norm already made of it."""
        if final is not None:
            return self.kernels.project(final, self.trunk.head, None).float()
        return self.kernels.project(hidden, self.trunk.head, Norm(self.trunk.norm, self.config.eps)).float()

    def _through_layers(
        self, hidden: Tensor, positions: Tensor, step: DeviceStep, memory: Memory, capture: Capture,
        trial: ChainTrial | None,
    ) -> dict[int, Tensor]:  # fmt: skip
        """Run all layers on hidden [tokens, hidden] in place; returns the captured layers' outputs."""
        rope = self.kernels.cos_sin(positions, self._frequency, self._axes)
        held = memory.paged | memory.state
        outputs = {-1: hidden.clone()} if -1 in capture.layers else {}
        for i, layer in enumerate(self.trunk.layers):
            first, second = (held[f"{name}.{i}"] for name in layer.memory_names)
            delta = self._deltas[i]
            if delta is None:
                self._attend(layer, hidden, step, rope, (first, second))
            else:
                record = self._recall(layer, hidden, step, delta, (first, second))
                if trial is not None and record is not None:
                    trial.records.append(record)
            self._feed(layer, hidden)
            if i in capture.layers:
                outputs[i] = hidden.clone()  # the next layer adds in place
        return outputs

    def _attend(
        self, layer: Layer, hidden: Tensor, step: DeviceStep, rope: tuple[Tensor, Tensor],
        memory: tuple[Tensor, Tensor],
    ) -> None:  # fmt: skip
        """A full-attention mixer, added to the residual stream."""
        mixer, kernels, width = layer.mixer, self.kernels, self._heads.heads * self._heads.dim
        assert isinstance(mixer, FullAttention)
        mixed = kernels.project(hidden, mixer.qkvg, Norm(layer.mixer_norm, self.config.eps))
        query = kernels.place(mixed, mixer.scale, rope, memory, step.lanes, self._heads)
        gate, out = mixed[:, -width:], torch.empty_like(mixed[:, :width], memory_format=torch.contiguous_format)
        for at, part in step.parts:
            if isinstance(part, Runs):
                assert kernels.runs is not None
                kernels.runs.attend(query[at], gate[at], memory, part, out[at])
            else:
                kernels.attend(query[at], gate[at], memory, part, out[at])
        kernels.add_projected(hidden, out, mixer.out)

    def _recall(
        self, layer: Layer, hidden: Tensor, step: DeviceStep, delta: DeltaWeights, memory: tuple[Tensor, Tensor]
    ) -> Record | None:
        """A DeltaNet mixer, added to the residual stream; returns what a verification must keep."""
        mixer, kernels, (carried, state), record = layer.mixer, self.kernels, memory, None
        assert isinstance(mixer, DeltaNet)
        channels, width = delta.sizes.channels, delta.sizes.value_heads * delta.sizes.value_dim
        mixed = kernels.project(hidden, mixer.into, Norm(layer.mixer_norm, self.config.eps))
        convolved, out = (mixed.new_empty(len(mixed), columns) for columns in (channels, width))
        for at, part in step.parts:
            if isinstance(part, Runs):
                assert kernels.runs is not None
                kernels.runs.convolve(mixed[at, :channels], delta.conv, carried, part, convolved[at])
                kernels.runs.delta(mixed[at], convolved[at], delta, state, part, out[at])
                continue
            kernels.convolve(mixed[at, :channels], delta.conv, carried, part, convolved[at])
            kernels.delta(mixed[at], convolved[at], delta, state, part, out[at])
            if not part.settle:
                record = Record(delta, memory, mixed[at], convolved[at])
        kernels.add_projected(hidden, out, mixer.out)
        return record

    def _feed(self, layer: Layer, hidden: Tensor) -> None:
        """The layer's MLP, added to the residual stream."""
        norm = Norm(layer.mlp_norm, self.config.eps)
        if isinstance(layer.mlp, Dense):
            inner = self.kernels.project_gated(hidden, layer.mlp.gate_up, norm)
            self.kernels.add_projected(hidden, inner, layer.mlp.down)
        else:
            layer.mlp.add_to(hidden, self.kernels.norm(hidden, norm))


def _side_by_side(outputs: dict[int, Tensor], capture: Capture) -> Tensor | None:
    return torch.cat([outputs[i] for i in capture.layers], -1) if capture.layers else None


@torch.no_grad()
def turn_matrices(trunk: Trunk) -> None:
    """Store every plain matrix [in, out] with its inputs side by side, in place and one at a time.

    A product of few rows then reads each output's weights in one piece (`ops.triton_linear`).
    """
    for layer in trunk.layers:
        mlp = [layer.mlp.gate_up, layer.mlp.down] if isinstance(layer.mlp, Dense) else []
        into = layer.mixer.qkvg if isinstance(layer.mixer, FullAttention) else layer.mixer.into
        for matrix in (into, layer.mixer.out, *mlp):
            if isinstance(matrix, Tensor) and matrix.stride(0) != 1:
                matrix.data = matrix.T.contiguous().T
    if trunk.head.stride(0) != 1:
        trunk.head.data = trunk.head.T.contiguous().T


def stand_in(config: TextConfig, place: tuple[torch.device, torch.dtype], kernels: Kernels) -> Qwen35OnDevice:
    """A model of two layers and few words whose operators are those of `config` in every size but how many there are.

    What runs on it compiles what the model itself will need, while that one's weights are still being read.
    """
    device, dtype = place

    def matrix(ins: int, outs: int) -> Tensor:
        return torch.zeros(outs, ins, dtype=dtype, device=device).T

    def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.ones(shape, dtype=dtype, device=device)

    c, hidden, values = config, config.hidden, config.value_heads
    width, channels, repeat = c.heads * c.head_dim, 2 * c.keys + c.values, values // c.key_heads
    inner = c.inner if c.moe is None else c.moe.shared_inner
    assert inner is not None, "a dense model has an inner width"
    full = FullAttention(
        matrix(hidden, 2 * width + 2 * c.kv_heads * c.head_dim),
        ones(c.heads + c.kv_heads, c.head_dim),
        matrix(width, hidden),
    )
    delta = DeltaNet(
        into=matrix(hidden, channels + c.values + 2 * values),
        conv=ones(c.conv_kernel, channels, dtype=dtype),
        rate=-ones(values),
        bias=ones(values),
        norm=ones(c.value_dim),
        unit=ones(2 * c.key_heads, 1),
        unit_copies=ones(2 * c.key_heads, repeat, 1),
        out=matrix(c.values, hidden),
    )
    mlp = Dense(matrix(hidden, 2 * inner), matrix(inner, hidden))
    layers = (Layer(ones(hidden), delta, ones(hidden), mlp), Layer(ones(hidden), full, ones(hidden), mlp))
    embedding = ones(min(c.vocab, STAND_IN_WORDS), hidden, dtype=dtype)
    return Qwen35OnDevice(config, Trunk(embedding, layers, ones(hidden), embedding.T), kernels)
