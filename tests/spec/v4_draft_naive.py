"""DeepSeek V4's drafters written out from the official tensor names, one token at a time, in float64.

The readable statement of their maths: no ring, no batch, no cache. Shares no code with the server. Compared with it in
`test_deepseek_dspark` and `test_deepseek_mtp`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass
class Drafting:
    """All tensors of a folder in float64, and its config."""

    w: Weights
    c: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> Drafting:
        files = sorted(folder.glob("*.safetensors"))
        return cls(
            {name: t.double() if t.is_floating_point() else t for file in files for name, t in load_file(file).items()},
            json.loads((folder / "config.json").read_text()),
        )

    @property
    def streams(self) -> int:
        return int(self.c["hc_mult"])

    @property
    def rotary(self) -> int:
        return int(self.c.get("qk_rope_head_dim") or self.c["head_dim"] * self.c["partial_rotary_factor"])


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def turn(d: Drafting, x: Tensor, at: int, sign: int = 1) -> Tensor:
    """Rotate the last dims of [..., dim] at a position, pair by pair, as complex numbers."""
    width = d.rotary
    out = x.clone()
    for i in range(width // 2):
        angle = sign * at * float(d.c["rope_theta"]) ** (-2 * i / width)
        a, b = x[..., -width + 2 * i], x[..., -width + 2 * i + 1]
        out[..., -width + 2 * i] = a * math.cos(angle) - b * math.sin(angle)
        out[..., -width + 2 * i + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


def site(d: Drafting, at: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """pre, post and the mixing matrix for one token's streams [n, hidden]."""
    n, eps = d.streams, float(d.c["hc_eps"])
    read = d.w[f"{at}_fn"] @ rms(streams.flatten())
    scale, base = d.w[f"{at}_scale"], d.w[f"{at}_base"]
    pre = torch.sigmoid(read[:n] * scale[0] + base[:n]) + eps
    post = 2 * torch.sigmoid(read[n : 2 * n] * scale[1] + base[n : 2 * n])
    table = (read[2 * n :] * scale[2] + base[2 * n :]).view(n, n).softmax(1) + eps
    for turn_at in range(2 * int(d.c["hc_sinkhorn_iters"]) - 1):
        table = table / (table.sum(turn_at % 2, keepdim=True) + eps)
    return pre, post, table


def back(streams: Tensor, y: Tensor, post: Tensor, table: Tensor) -> Tensor:
    return torch.stack([post[k] * y + (table[:, k, None] * streams).sum(0) for k in range(len(streams))])


def row(d: Drafting, at: str, x: Tensor, where: int) -> Tensor:
    """The key and value [head_dim] of one normed token."""
    return turn(d, rms(d.w[at + "wkv.weight"] @ x) * d.w[at + "kv_norm.weight"], where)


def attend(d: Drafting, at: str, x: Tensor, where: int, rows: list[Tensor]) -> Tensor:
    """Attention of one normed token [hidden] at a position over rows."""
    heads, groups = d.c["num_attention_heads"], d.c["o_groups"]
    low = rms(d.w[at + "wq_a.weight"] @ x) * d.w[at + "q_norm.weight"]
    query = turn(d, rms((d.w[at + "wq_b.weight"] @ low).view(heads, -1)), where)
    keys = torch.stack(rows)
    scores = torch.cat([query @ keys.T * d.c["head_dim"] ** -0.5, d.w[at + "attn_sink"][:, None]], 1)
    mixed = turn(d, scores.softmax(1)[:, :-1] @ keys, where, -1)
    parts = mixed.reshape(groups, -1)
    up = d.w[at + "wo_a.weight"].view(groups, -1, parts.shape[1])
    return d.w[at + "wo_b.weight"] @ torch.cat([u @ p for u, p in zip(up, parts, strict=True)])


def feed(d: Drafting, at: str, x: Tensor) -> Tensor:
    """Score-routed experts and the shared one for one normed text token."""
    limit = d.c["swiglu_limit"]

    def expert(name: str) -> Tensor:
        w1, w2, w3 = (d.w[f"{at}{name}.w{i}.weight"] for i in (1, 2, 3))
        return w2 @ (torch.nn.functional.silu((w1 @ x).clamp(max=limit)) * (w3 @ x).clamp(-limit, limit))

    scores = torch.nn.functional.softplus(d.w[at + "gate.weight"] @ x).sqrt()
    chosen = (scores + d.w[at + "gate.bias"]).topk(d.c["num_experts_per_tok"]).indices.tolist()
    total = sum(scores[e] for e in chosen)
    routed = [scores[e] / total * d.c["routed_scaling_factor"] * expert(f"experts.{e}") for e in chosen]
    return torch.stack([*routed, expert("shared_experts")]).sum(0)


def end(d: Drafting, at: str, streams: Tensor) -> Tensor:
    """The state before the final norm."""
    read = d.w[at + "hc_head_fn"] @ rms(streams.flatten()) * d.w[at + "hc_head_scale"] + d.w[at + "hc_head_base"]
    return ((torch.sigmoid(read) + float(d.c["hc_eps"]))[:, None] * streams).sum(0)


@dataclass
class Spoken:
    """A block's guesses: tokens, biased logits [block, vocab], confidences, states before the final norm."""

    tokens: list[int]
    logits: Tensor
    sure: Tensor
    states: Tensor


def spark(d: Drafting, features: Tensor, anchor: int, tail: int = 0, block: int | None = None) -> Spoken:
    """DSpark behind the features [P, layers * hidden] of P tokens, of which those before `tail` are not seen."""
    count, width = len(features), d.c["dspark_block_size"] if block is None else block
    stages = 1 + max(int(name.split(".")[1]) for name in d.w if name.startswith("mtp."))
    main = [rms(d.w["mtp.0.main_proj.weight"] @ f.double()) * d.w["mtp.0.main_norm.weight"] for f in features]
    ids = [anchor] + [d.c["dspark_noise_token_id"]] * (width - 1)
    blocks = [d.w["embed.weight"][i].expand(d.streams, -1) for i in ids]
    for stage in range(stages):
        at = f"mtp.{stage}."
        context = range(max(tail, count - d.c["sliding_window"]), count)
        past = [row(d, at + "attn.", main[p], p) for p in context]
        mixes = [site(d, at + "hc_attn", x) for x in blocks]
        read = [rms((pre[:, None] * x).sum(0)) * d.w[at + "attn_norm.weight"]
                for (pre, _, _), x in zip(mixes, blocks, strict=True)]  # fmt: skip
        own = [row(d, at + "attn.", x, count + i) for i, x in enumerate(read)]
        out = [attend(d, at + "attn.", x, count + i, past + own) for i, x in enumerate(read)]
        blocks = [back(x, y, post, table) for x, y, (_, post, table) in zip(blocks, out, mixes, strict=True)]
        blocks = [_fed(d, at, x) for x in blocks]
    return _said(d, f"mtp.{stages - 1}.", torch.stack([end(d, f"mtp.{stages - 1}.", x) for x in blocks]), anchor)


def _fed(d: Drafting, at: str, streams: Tensor) -> Tensor:
    pre, post, table = site(d, at + "hc_ffn", streams)
    x = rms((pre[:, None] * streams).sum(0)) * d.w[at + "ffn_norm.weight"]
    return back(streams, feed(d, at + "ffn.", x), post, table)


def _said(d: Drafting, at: str, states: Tensor, anchor: int) -> Spoken:
    before, tokens, rows, sure = anchor, [], [], []
    for x in states:
        markov = d.w[at + "markov_head.markov_w1.weight"][before]
        logits = d.w["head.weight"] @ (rms(x) * d.w[at + "norm.weight"])
        rows.append(logits + d.w[at + "markov_head.markov_w2.weight"] @ markov)
        confident = d.w[at + "confidence_head.proj.weight"][0] @ torch.cat([x, markov])
        sure.append(torch.sigmoid(confident + d.w.get(at + "confidence_head.proj.bias", torch.zeros(1)).double()[0]))
        before = int(rows[-1].argmax())
        tokens.append(before)
    return Spoken(tokens, torch.stack(rows), torch.stack(sure), states)


def mtp(d: Drafting, ids: list[int], states: list[Tensor], tail: int, depth: int) -> tuple[list[int], Tensor]:
    """The single layer: ids [P + 1], the last one the anchor; states [n, hidden] of P tokens. Tokens and logits."""
    at, ids, states, out = "mtp.0.", list(ids), [s.double() for s in states], []
    for _ in range(depth):
        pairs = []
        for p in range(tail, len(ids) - 1):
            token = d.w["mtp.0.e_proj.weight"] @ (rms(d.w["embed.weight"][ids[p + 1]]) * d.w["mtp.0.enorm.weight"])
            state = [d.w["mtp.0.h_proj.weight"] @ (rms(s) * d.w["mtp.0.hnorm.weight"]) for s in states[p]]
            pairs.append(torch.stack([token + s for s in state]))
        mixes = [site(d, at + "hc_attn", x) for x in pairs]
        read = [rms((pre[:, None] * x).sum(0)) * d.w[at + "attn_norm.weight"]
                for (pre, _, _), x in zip(mixes, pairs, strict=True)]  # fmt: skip
        last = len(ids) - 2
        near = range(max(tail, last - d.c["sliding_window"] + 1), last + 1)
        rows = [row(d, at + "attn.", read[p - tail], p) for p in near]
        y = attend(d, at + "attn.", read[-1], last, rows)
        streams = _fed(d, at, back(pairs[-1], y, *mixes[-1][1:]))
        states.append(streams)
        out.append(d.w["head.weight"] @ (rms(end(d, at, streams)) * d.w[at + "norm.weight"]))
        ids.append(int(out[-1].argmax()))
    return ids[-depth:], torch.stack(out)
