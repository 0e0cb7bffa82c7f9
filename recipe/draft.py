"""The two drafters as trainable modules: a DFlash block drafter and a multi-token-prediction head.

Owns their maths over packs and their losses. Promises the released formats' tensor names and functions: DFlash sees
the target's layer outputs of all earlier tokens of its conversation and fills a block of masks at once; the MTP head
pairs the final-normed state of token p with the embedding of token p + 1. Neither owns an embedding or a head.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe.model import CentredNorm, FullLayer, Mlp
from recipe.ops import plain_rms_norm, rotate
from recipe.shapes import DraftShape, Shape
from recipe.vision import Linear


class Target(NamedTuple):
    """What the frozen model made of a pack; `T` = rows * tokens."""

    features: Tensor  # [rows, tokens, layers * hidden]: outputs of the chosen layers, side by side
    final: Tensor  # [rows, tokens, hidden], after the final norm
    embeds: Tensor  # [rows, tokens, hidden], input embeddings with image rows in place
    greedy: Tensor  # [rows, tokens]: the model's own choice for the next token
    answers: Tensor  # [rows, tokens]: whether the next token belongs to an answer
    cos: Tensor  # [T, rotated dims]: the trunk's rope
    sin: Tensor


class RmsNorm(nn.Module):
    """RMS norm with a plain weight."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalised over the last dim."""
        return plain_rms_norm(x, self.weight, self.eps)


class BlockAttention(nn.Module):
    """Queries of the blocks over the context and their own block."""

    def __init__(self, shape: DraftShape, hidden: int, eps: float) -> None:
        super().__init__()
        self.shape, dim = shape, shape.head_dim
        self.q_proj = Linear(hidden, shape.heads * dim, bias=False)
        self.k_proj = Linear(hidden, shape.kv_heads * dim, bias=False)
        self.v_proj = Linear(hidden, shape.kv_heads * dim, bias=False)
        self.o_proj = Linear(shape.heads * dim, hidden, bias=False)
        self.q_norm, self.k_norm = RmsNorm(dim, eps), RmsNorm(dim, eps)

    def forward(self, x: Tensor, context: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """x [rows, n, hidden] (normed); context [rows, t, hidden]; tables [rows, t + n, dim]; mask [.., n, t + n]."""
        s, rows, n = self.shape, *x.shape[:2]
        both = torch.cat([context, x], 1)
        cos, sin = tables
        q = self.q_norm(self.q_proj(x).view(rows, n, s.heads, -1))
        k = self.k_norm(self.k_proj(both).view(rows, both.shape[1], s.kv_heads, -1))
        v = self.v_proj(both).view(rows, both.shape[1], s.kv_heads, -1)
        q, k = rotate(q, cos[:, -n:], sin[:, -n:]), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(s.heads // s.kv_heads, 2) for t in (k, v))
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class BlockLayer(nn.Module):
    """A Qwen3 layer whose keys include the context."""

    def __init__(self, shape: DraftShape, hidden: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(hidden, eps), RmsNorm(hidden, eps)
        self.self_attn, self.mlp = BlockAttention(shape, hidden, eps), Mlp(hidden, shape.ffn)

    def forward(self, x: Tensor, context: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """x [rows, n, hidden], same shape out."""
        x = x + self.self_attn(self.input_layernorm(x), context, tables, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlash(nn.Module):
    """The block drafter; `state_dict()` has the released names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, eps = shape.text.hidden, shape.text.eps
        self.shape = shape.draft
        self.fc = Linear(len(shape.draft.target_layers) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = RmsNorm(hidden, eps), RmsNorm(hidden, eps)
        self.layers = nn.ModuleList(BlockLayer(shape.draft, hidden, eps) for _ in range(shape.draft.layers))

    def forward(self, x: Tensor, features: Tensor, where: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Final-normed states of the blocks.

        x [rows, n, hidden] embeddings; features [rows, t, m * hidden]; `where` the index positions of the context
        [rows, t] and of the blocks [rows, n]; mask [rows, 1, n, t + n].
        """
        context = self.hidden_norm(self.fc(features))
        tables = self.tables(torch.cat(where, 1), x.dtype)
        for layer in self.layers:
            x = layer(x, context, tables, mask)
        return self.norm(x)

    def tables(self, where: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin [rows, n, head dim] of plain index positions."""
        dim = self.shape.head_dim
        steps = torch.arange(0, dim, 2, device=where.device, dtype=torch.float32) / dim
        angles = (where.float().unsqueeze(-1) * (1.0 / self.shape.theta**steps)).repeat(1, 1, 2)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class MtpHead(nn.Module):
    """One full-attention layer that predicts the token after next; names as below `mtp.`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        text = shape.text
        self.fc = Linear(2 * text.hidden, text.hidden, bias=False)
        self.pre_fc_norm_embedding = CentredNorm(text.hidden, text.eps)
        self.pre_fc_norm_hidden = CentredNorm(text.hidden, text.eps)
        self.layers = nn.ModuleList([FullLayer(text)])
        self.norm = CentredNorm(text.hidden, text.eps)

    def forward(self, embeds: Tensor, final: Tensor, rope: tuple[Tensor, Tensor], edges: Tensor) -> Tensor:
        """embeds of token p + 1 and final-normed states of p, both [rows, tokens, hidden]; rope of p."""
        both = torch.cat([self.pre_fc_norm_embedding(embeds), self.pre_fc_norm_hidden(final)], -1)
        return self.norm(self.layers[0](self.fc(both), *rope, edges))


class Blocks(NamedTuple):
    """Sampled blocks of a pack: anchors and what a drafter should say after them."""

    ids: Tensor  # [rows, count * block]: anchor, then masks
    where: Tensor  # [rows, count * block]: index positions
    mask: Tensor  # [rows, 1, count * block, tokens + count * block]: True where a key is seen
    labels: Tensor  # [rows, count, block - 1]
    weights: Tensor  # [rows, count, block - 1]: decaying, zero beyond the answer


def sample_blocks(ids: Tensor, age: Tensor, target: Target, block: int, count: int, mask_id: int) -> Blocks:
    """`count` random anchors a row among answer tokens; random numbers from the device's generator."""
    rows, tokens = ids.shape
    inside = target.answers & target.answers.roll(1, 1)  # this token and the next are of the answer
    inside[:, 0] = False
    inside[:, tokens - block :] = False
    anchors = (torch.rand(rows, tokens, device=ids.device) + inside).topk(count, 1).indices.sort(1).values
    steps = torch.arange(block, device=ids.device)
    places = (anchors[..., None] + steps).clamp(max=tokens - 1)  # [rows, count, block]
    flat = places.flatten(1)
    ok = inside.gather(1, anchors)
    alive = target.answers.gather(1, flat).view_as(places)[..., :-1].long().cumprod(-1) * ok[..., None]
    labels = target.greedy.gather(1, flat).view_as(places)[..., :-1]
    weights = alive * torch.exp(-steps[:-1] / 4.0)
    words = torch.where(steps == 0, ids.gather(1, flat).view_as(places), mask_id).flatten(1)
    where = age.gather(1, anchors)[..., None] + steps
    return Blocks(words, where.flatten(1), block_mask(anchors, age, block), labels, weights)


def block_mask(anchors: Tensor, age: Tensor, block: int) -> Tensor:
    """What each block sees: its conversation before the anchor, and itself; [rows, 1, n, tokens + n]."""
    rows, tokens = age.shape
    count = anchors.shape[1]
    key = torch.arange(tokens, device=age.device)
    start = anchors - age.gather(1, anchors)
    context = (key < anchors[..., None]) & (key >= start[..., None])  # [rows, count, tokens]
    context = context.repeat_interleave(block, 1)
    own = torch.arange(count * block, device=age.device) // block
    same = (own[:, None] == own[None, :]).expand(rows, -1, -1)
    return torch.cat([context, same], 2).unsqueeze(1)


def draft_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted cross entropy and the mean number of leading drafts that are right; logits [..., block - 1, vocab]."""
    losses = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="none").view_as(weights)
    right = (logits.argmax(-1) == labels) & (weights > 0)
    run = right.long().cumprod(-1).sum(-1)
    counted = weights[..., 0] > 0
    return (losses * weights).sum() / weights.sum().clamp(min=1.0), (run * counted).sum() / counted.sum().clamp(min=1)
