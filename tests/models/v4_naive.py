"""DeepSeek V4's text model as its description reads, one token after another: a second opinion for tests.

Owns whole prompts only: no memory, no chunks, no batch. Image tokens have ids from the vocabulary's size on, blocks are
[start, end) of tokens that see each other both ways. With `qat` every value is rounded where DeepSeek's inference
rounds it, by looking for the nearest number that the type has. Nothing of foveate is imported. Numbers are float64
unless told otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

SLIDING, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FP8 = sorted({(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)} | {m / 8 * 2.0**-6 for m in range(8)})
FP8 = [value for value in FP8 if value <= 448]


@dataclass
class Prompt:
    """Token ids, the embedding rows that replace some of them, and the blocks."""

    ids: list[int]
    rows: dict[int, Tensor] = field(default_factory=dict)
    blocks: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Naive:
    """tensors: by official name; config: config.json."""

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    qat: bool = False
    dtype: torch.dtype = torch.float64

    def w(self, name: str) -> Tensor:
        tensor = self.tensors[name]
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def logits(self, prompt: Prompt) -> Tensor:
        """[tokens, vocab]."""
        return torch.stack([self.w("head.weight") @ x for x in self.states(prompt)[-1]])

    def states(self, prompt: Prompt) -> list[Tensor]:
        """What goes in, the mean over the streams after each layer, and what the final norm gives, [tokens, hidden]."""
        c = self.config
        learned = ["image_start", "image_pad", "", "image_newline", "image_end"]
        embedded = []
        for at, token in enumerate(prompt.ids):
            if at in prompt.rows:
                embedded.append(prompt.rows[at].to(self.dtype))
            elif token >= c["vocab_size"]:
                embedded.append(self.w(learned[token - c["vocab_size"]]))
            else:
                embedded.append(self.w("embed.weight")[token])
        streams = [[x.clone() for _ in range(c["hc_mult"])] for x in embedded]
        out = [torch.stack(embedded)]
        for i in range(c["num_hidden_layers"]):
            self.layer(i, streams, prompt)
            out.append(torch.stack([sum(x) / len(x) for x in streams]))
        final = []
        for x in streams:
            mixed = self.w("hc_head_fn") @ self.normed(torch.cat(x)) * self.w("hc_head_scale") + self.w("hc_head_base")
            weights = mixed.sigmoid() + c["hc_eps"]
            final.append(self.normed(sum(weights[j] * x[j] for j in range(len(x)))) * self.w("norm.weight"))
        return [*out, torch.stack(final)]

    # --- the pieces ---

    def normed(self, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean() + self.config["rms_norm_eps"]).sqrt()

    def layer(self, i: int, streams: list[list[Tensor]], prompt: Prompt) -> None:
        for site in ("attn", "ffn"):
            mixes = [self.mix(f"layers.{i}.hc_{site}", x) for x in streams]
            inputs = [
                self.normed(sum(pre[j] * x[j] for j in range(len(x)))) * self.w(f"layers.{i}.{site}_norm.weight")
                for (pre, _, _), x in zip(mixes, streams, strict=True)
            ]
            if site == "attn":
                outputs = self.attention(i, inputs, prompt)
            else:
                outputs = [self.experts(i, x, token) for x, token in zip(inputs, prompt.ids, strict=True)]
            for (_, post, comb), x, y in zip(mixes, streams, outputs, strict=True):
                x[:] = [post[k] * y + sum(comb[j, k] * x[j] for j in range(len(x))) for k in range(len(x))]

    def mix(self, at: str, x: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        n, eps = len(x), self.config["hc_eps"]
        m = self.w(f"{at}_fn") @ self.normed(torch.cat(x))
        base, scale = self.w(f"{at}_base"), self.w(f"{at}_scale")
        pre = (m[:n] * scale[0] + base[:n]).sigmoid() + eps
        post = 2 * (m[n : 2 * n] * scale[1] + base[n : 2 * n]).sigmoid()
        comb = (m[2 * n :] * scale[2] + base[2 * n :]).view(n, n).softmax(1) + eps
        comb = comb / (comb.sum(0, keepdim=True) + eps)
        for _ in range(self.config["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(1, keepdim=True) + eps)
            comb = comb / (comb.sum(0, keepdim=True) + eps)
        return pre, post, comb

    def kind(self, i: int) -> tuple[int, bool]:
        """The layer's ratio, and whether it is a sparse one."""
        c = self.config
        ratios = {SLIDING: 0, CSA: 4, HCA: 128} | c.get("compress_rates", {})
        names = {0: SLIDING, 4: CSA, 128: HCA}
        name = c["layer_types"][i] if "layer_types" in c else names[c["compress_ratios"][i]]
        return ratios[name], name == CSA

    def rope(self, x: Tensor, position: int, compressed: bool, sign: float = 1.0) -> Tensor:
        """Turn the last dimensions of [..., dim] by pairs."""
        c = self.config
        width = c.get("qk_rope_head_dim") or int(c["head_dim"] * c["partial_rotary_factor"])
        angles = [sign * position * self.frequency(j, width, compressed) for j in range(width // 2)]
        cos, sin = (torch.tensor([f(angle) for angle in angles], dtype=x.dtype) for f in (math.cos, math.sin))
        a, b = x[..., x.shape[-1] - width :: 2], x[..., x.shape[-1] - width + 1 :: 2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        return torch.cat([x[..., : x.shape[-1] - width], turned], -1)

    def frequency(self, j: int, width: int, compressed: bool) -> float:
        c = self.config
        base = c["compress_rope_theta"] if compressed else c["rope_theta"]
        plain = base ** (-2 * j / width)
        yarn = c.get("rope_scaling") or c.get("rope_parameters")
        if not compressed or not yarn:
            return plain

        original = yarn["original_max_position_embeddings"]

        def corr(turns: float) -> float:
            return width * math.log(original / (2 * math.pi * turns)) / 2 / math.log(base)

        low, high = max(0, math.floor(corr(yarn["beta_fast"]))), min(width - 1, math.ceil(corr(yarn["beta_slow"])))
        ramp = min(1.0, max(0.0, (j - low) / (high - low)))
        return plain / yarn["factor"] * ramp + plain * (1 - ramp)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """A product with a matrix that releases quantise."""
        return self.w(name) @ (blockwise(x, 128, FP8, 1e-4) if self.qat else x)

    def stored(self, row: Tensor) -> Tensor:
        c = self.config
        fixed = c["head_dim"] - (c.get("qk_rope_head_dim") or int(c["head_dim"] * c["partial_rotary_factor"]))
        return torch.cat([blockwise(row[:fixed], 64, FP8, 1e-4), row[fixed:]]) if self.qat else row

    def indexed(self, x: Tensor) -> Tensor:
        if not self.qat:
            return x
        n = len(x)
        signs = torch.tensor([[(-1.0) ** bin(i & j).count("1") for j in range(n)] for i in range(n)], dtype=self.dtype)
        return blockwise(signs @ x / math.sqrt(n), 32, FP4, 6 * 2.0**-126)

    def compressed(self, at: str, xs: list[Tensor], ratio: int, sparse: bool) -> list[Tensor]:
        """Normed and rotated entries, one for each whole window."""
        a = [self.w(at + "wkv.weight") @ x for x in xs]
        s = [self.w(at + "wgate.weight") @ x + self.w(at + "ape")[t % ratio] for t, x in enumerate(xs)]
        dim, out = len(self.w(at + "norm.weight")), []
        for window in range(len(xs) // ratio):
            own = range(window * ratio, (window + 1) * ratio)
            before = range((window - 1) * ratio, window * ratio) if sparse and window else range(0)
            values = [a[t][:dim] for t in before] + [a[t][-dim:] for t in own]
            gates = torch.stack([s[t][:dim] for t in before] + [s[t][-dim:] for t in own]).softmax(0)
            entry = self.normed((torch.stack(values) * gates).sum(0)) * self.w(at + "norm.weight")
            out.append(self.rope(entry, window * ratio, True))
        return out

    def attention(self, i: int, xs: list[Tensor], prompt: Prompt) -> list[Tensor]:
        c, at = self.config, f"layers.{i}.attn."
        ratio, sparse = self.kind(i)
        low = [self.normed(self.linear(at + "wq_a.weight", x)) * self.w(at + "q_norm.weight") for x in xs]
        rows = []
        for t, x in enumerate(xs):
            row = self.normed(self.linear(at + "wkv.weight", x)) * self.w(at + "kv_norm.weight")
            rows.append(self.stored(self.rope(row, t, ratio > 0)))
        entries = [self.stored(e) for e in self.compressed(at + "compressor.", xs, ratio, sparse)] if ratio else []
        keys = [self.indexed(e) for e in self.compressed(at + "indexer.compressor.", xs, ratio, True)] if sparse else []
        out = []
        for t, x in enumerate(xs):
            seen = {p for p in range(t + 1) if p > t - c["sliding_window"]}
            for start, end in prompt.blocks:
                if start <= t < end:
                    seen |= set(range(start, end))
            far = list(range((t + 1) // ratio)) if ratio else []
            if sparse and far:
                scores = self.scores(at + "indexer.", x, low[t], t, torch.stack([keys[w] for w in far])).tolist()
                far = sorted(far, key=lambda w: -scores[w])[: c["index_topk"]]
            visible = torch.stack([rows[p] for p in sorted(seen)] + [entries[w] for w in far])
            out.append(self.mixed(at, low[t], t, visible, ratio > 0))
        return out

    def scores(self, at: str, x: Tensor, low: Tensor, t: int, keys: Tensor) -> Tensor:
        c = self.config
        weights = self.w(at + "weights_proj.weight") @ x * c["index_n_heads"] ** -0.5
        queries = self.rope(self.linear(at + "wq_b.weight", low).view(c["index_n_heads"], -1), t, True)
        turned = torch.stack([self.indexed(query) for query in queries])
        per_head = torch.clamp(turned @ keys.T, min=0) * c["index_head_dim"] ** -0.5  # [heads, entries]
        return weights @ per_head

    def mixed(self, at: str, low: Tensor, t: int, visible: Tensor, compressed: bool) -> Tensor:
        c, heads = self.config, []
        for h, query in enumerate(self.linear(at + "wq_b.weight", low).view(c["num_attention_heads"], -1)):
            query = self.rope(self.normed(query), t, compressed)
            scores = torch.cat([visible @ query * c["head_dim"] ** -0.5, self.w(at + "attn_sink")[h : h + 1]])
            heads.append(self.rope(scores.softmax(0)[:-1] @ visible, t, compressed, -1.0))
        groups = torch.cat(heads).view(c["o_groups"], -1)
        down = self.w(at + "wo_a.weight").view(c["o_groups"], c["o_lora_rank"], -1)
        return self.linear(at + "wo_b.weight", torch.cat([down[g] @ groups[g] for g in range(c["o_groups"])]))

    def experts(self, i: int, x: Tensor, token: int) -> Tensor:
        c, at = self.config, f"layers.{i}.ffn."
        scores = torch.log1p((self.w(at + "gate.weight") @ x).exp()).sqrt()
        if token >= c["vocab_size"]:
            chosen = (scores + self.w(at + "gate.bias_vl")).topk(c["num_experts_per_tok"]).indices
        elif at + "gate.tid2eid" in self.tensors:
            chosen = self.w(at + "gate.tid2eid")[token]
        else:
            chosen = (scores + self.w(at + "gate.bias")).topk(c["num_experts_per_tok"]).indices
        total = sum(scores[e] for e in chosen) + 1e-20
        out = self.expert(at + "shared_experts.", x, 1.0)
        for e in chosen.tolist():
            out = out + self.expert(f"{at}experts.{e}.", x, scores[e] / total * c["routed_scaling_factor"])
        return out

    def expert(self, at: str, x: Tensor, share: Tensor | float) -> Tensor:
        limit = self.config["swiglu_limit"]
        gate = torch.clamp(self.linear(at + "w1.weight", x), max=limit)
        up = torch.clamp(self.linear(at + "w3.weight", x), -limit, limit)
        return self.linear(at + "w2.weight", gate * gate.sigmoid() * up * share)


def blockwise(x: Tensor, block: int, numbers: list[float], floor: float) -> Tensor:
    """Each block of x over its power of two, at the nearest of the type's numbers; of two the one with an even code."""
    table, out = torch.tensor(numbers, dtype=x.dtype), []
    for part in x.split(block):
        scale = 2.0 ** math.ceil(math.log2(max(float(part.abs().max()), floor) / numbers[-1]))
        away = (part.abs()[:, None] / scale - table).abs()
        best = away.min(1, keepdim=True).values
        ties = [row.nonzero()[:, 0].tolist() for row in away <= best]
        codes = [max(codes, key=lambda code: code % 2 == 0) for codes in ties]
        out.append(part.sign() * table[codes] * scale)
    return torch.cat(out)
