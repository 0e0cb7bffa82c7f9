"""The DeepSeek V4 text model: hyper-connected layers of windowed, compressed attention and of hash- or score-routed
experts.

One `run` takes a mixed step: prefill chunks, single tokens and drafts under verification of many sequences, flattened
in any order. Attention runs sequence by sequence, hyper-connections and experts once over all tokens, so that each
expert's weights are read once a pass. Image tokens have ids from the vocabulary's size on; they are routed by a bias of
their own, and those of a block see all of it. Drafts are verified as chains. A captured layer is the mean over its
streams. Weights arrive from `deepseek_v4_weights`, matrices as [in, out].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.models.deepseek_v4_attention import Attention, Held, as_read
from foveate.models.deepseek_v4_config import V4Config
from foveate.models.deepseek_v4_step import Frequencies, Step, begin_step, ring_len
from foveate.models.interface import NOTHING, Batch, Capture, Forward, Memory, MemorySpec, PagedSpec, StateSpec
from foveate.ops.hyper import Site, gather_streams, head_streams, mix_of, return_streams
from foveate.ops.layers import rms_norm
from foveate.ops.limited_moe import LimitedExperts, limited_experts, limited_product, root_scores, shares_of
from foveate.ops.quant import round_fp8
from foveate.ops.yarn import yarn_frequencies


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts and a shared one.

    router: float32 [hidden, experts]. Text is routed by `table` int64 [vocab, top_k] where token ids choose, else by
    scores plus `bias` float32 [experts]; image tokens by scores plus `image_bias`. shared_in: [hidden, 2 * inner], gate
    columns first; shared_out: [inner, hidden].
    """

    router: Tensor
    table: Tensor | None
    bias: Tensor | None
    image_bias: Tensor | None
    routed: LimitedExperts
    shared_in: Tensor
    shared_out: Tensor

    def forward(self, x: Tensor, ids: Tensor, image: Tensor | None, config: V4Config) -> Tensor:
        """The result [tokens, hidden] for normed x [tokens, hidden]; image: bool [tokens], None without any."""
        scores = root_scores(x, self.router)
        chosen = self._choose(scores, ids, image, config)
        shares = shares_of(scores, chosen, config.experts.scale)
        rounding = round_fp8 if config.simulate_qat else None
        out = limited_experts(x, self.routed, shares, chosen, rounding)
        inner = limited_product(torch.mm(as_read(x, config), self.shared_in), config.experts.limit)
        return out.add_(torch.mm(as_read(inner, config), self.shared_out)).to(x.dtype)

    def _choose(self, scores: Tensor, ids: Tensor, image: Tensor | None, config: V4Config) -> Tensor:
        top_k = config.experts.top_k
        if self.table is not None:
            chosen = self.table[ids.clamp(max=len(self.table) - 1)]
        else:
            assert self.bias is not None
            chosen = (scores + self.bias).topk(top_k, -1).indices
        if image is None or self.image_bias is None:
            return chosen
        return torch.where(image.unsqueeze(1), (scores + self.image_bias).topk(top_k, -1).indices, chosen)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; the norm scales are float32."""

    attention_site: Site
    attention_norm: Tensor
    attention: Attention
    experts_site: Site
    experts_norm: Tensor
    experts: Experts

    def forward(self, streams: Tensor, step: Step, held: Held, config: V4Config) -> Tensor:
        """New streams [tokens, streams, hidden]; writes the layer's memory."""
        mix = mix_of(streams, self.attention_site, config.mixing)
        x = rms_norm(gather_streams(streams, mix.pre), self.attention_norm, config.eps)
        streams = return_streams(streams, self.attention.forward(x, step, held, config), mix)
        return self.feed(streams, step.ids, step.image, config)

    def feed(self, streams: Tensor, ids: Tensor, image: Tensor | None, config: V4Config) -> Tensor:
        """New streams past the experts alone."""
        mix = mix_of(streams, self.experts_site, config.mixing)
        x = rms_norm(gather_streams(streams, mix.pre), self.experts_norm, config.eps)
        return return_streams(streams, self.experts.forward(x, ids, image, config), mix)


@dataclass(frozen=True, slots=True)
class Trunk:
    """All weights. embedding: [vocab, with eyes 5 kinds of image token more, hidden]; head: float32 [hidden, vocab]."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    site: Site
    norm: Tensor
    head: Tensor


class DeepseekV4:
    """The text model as a `LanguageModel`."""

    axes = 1
    verifies_trees = False

    def __init__(self, config: V4Config, trunk: Trunk) -> None:
        self.config, self.trunk = config, trunk
        self.vocab_size, self.hidden_size, self.max_positions = config.vocab, config.hidden, config.max_positions
        self.layer_count = len(trunk.layers)
        device = trunk.embedding.device
        self.frequencies = Frequencies(
            plain=yarn_frequencies(config.theta, config.rotary, None).to(device),
            stretched=yarn_frequencies(config.compress_theta, config.rotary, config.yarn).to(device),
        )

    def memory_spec(self) -> MemorySpec:
        """Per layer the window's rows; where it compresses, the rows of open windows, and entries as tokens come."""
        c, dtype = self.config, self.trunk.embedding.dtype
        paged: list[PagedSpec] = []
        state: list[StateSpec] = []
        for i, kind in enumerate(c.layers):
            state.append(StateSpec(f"window.{i}", (c.window, c.head_dim), dtype))
            if (folding := kind.compression) is None:
                continue
            width = c.head_dim
            paged.append(PagedSpec(f"entries.{i}", (c.head_dim,), dtype, folding.ratio))
            if folding.sparse and c.indexer is not None:
                width = 2 * (c.head_dim + c.indexer.head_dim)
                paged.append(PagedSpec(f"index.{i}", (c.indexer.head_dim,), dtype, folding.ratio))
            state.append(StateSpec(f"open.{i}", (ring_len(folding), 2 * width), torch.float32))
        return MemorySpec(tuple(paged), tuple(state))

    @torch.no_grad()
    def forward(self, batch: Batch, memory: Memory) -> Tensor:
        """Run the step, write its entries and states into memory, and return float32 logits [wanted, vocab]."""
        assert not any(batch.verify), "what is verified must also be committed: use run"
        return self.run(batch, memory).logits

    @torch.no_grad()
    def run(self, batch: Batch, memory: Memory, capture: Capture = NOTHING) -> Forward:
        """Run the step and return what was asked for; states of verified sequences wait for the commit."""
        assert batch.query_lens and min(batch.query_lens) > 0, "every sequence of a step has tokens"
        config, step = self.config, begin_step(batch, memory, self.config, self.frequencies)
        hidden = self.embed(batch.ids)  # [tokens, hidden]
        if batch.image_rows is not None and batch.image_at is not None:
            hidden.index_copy_(0, batch.image_at, batch.image_rows.to(hidden.dtype))
        outputs = {-1: hidden}
        streams = hidden.unsqueeze(1).repeat(1, config.streams, 1)  # [tokens, streams, hidden]
        for i, layer in enumerate(self.trunk.layers):
            streams = layer.forward(streams, step, held_by(i, memory), config)
            if i in capture.layers:
                outputs[i] = streams.float().mean(1).to(streams.dtype)
        read = streams if capture.final else streams[batch.logits_at]
        final = rms_norm(head_streams(read, self.trunk.site, config.mixing), self.trunk.norm, config.eps)
        return Forward(
            logits=self.head(final[batch.logits_at] if capture.final else final),
            features=torch.cat([outputs[i] for i in capture.layers], -1) if capture.layers else None,
            final=final if capture.final else None,
            pending=step.trial,
            streams=streams.flatten(1) if capture.streams else None,
        )

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings [tokens, hidden]; an id beyond the vocabulary is a kind of image token."""
        return F.embedding(ids, self.trunk.embedding)

    def head(self, hidden: Tensor) -> Tensor:
        """Float32 logits [tokens, vocab] of final-normed states [tokens, hidden]."""
        return torch.mm(hidden.float(), self.trunk.head)


def held_by(layer: int, memory: Memory) -> Held:
    """A layer's part of the memory."""
    return Held(
        window=memory.state[f"window.{layer}"],
        open=memory.state.get(f"open.{layer}"),
        entries=memory.paged.get(f"entries.{layer}"),
        index=memory.paged.get(f"index.{layer}"),
    )
