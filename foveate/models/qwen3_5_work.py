"""What a Qwen3.5 model's steps cost by arithmetic, counted over the shapes of its official tensors.

Owns the counting: which matrices every token passes, of how many experts, in how many bytes a number is kept. Softmax,
norms and the convolution are left out: they are below one part in a hundred, and a floor may only err downwards.
"""

from __future__ import annotations

from math import prod

from foveate.core.work import Work
from foveate.models.qwen3_5_config import FULL, TextConfig, VisionConfig
from foveate.models.qwen3_5_vision import vision_shapes
from foveate.models.qwen3_5_weights import QUANTISED, text_shapes

STATE_BYTES = 4  # the recurrent state is float32 whatever the weights are


def work_of(text: TextConfig, vision: VisionConfig | None, item_bytes: int) -> Work:
    """The costs of a model whose numbers take `item_bytes` each where they are not quantised."""
    shapes = {name: shape for name, shape in text_shapes(text, fused=True).items() if len(shape) > 1}
    share = 1.0 if text.moe is None else text.moe.top_k / text.moe.experts
    weights, moved = 0.0, 0.0
    for name, shape in shapes.items():
        if "embed_tokens" in name or name.startswith("lm_head"):
            continue
        count = prod(shape) * (share if ".experts." in name else 1.0)
        eight = text.blocks is not None and name.endswith(QUANTISED) and not text.blocks.keeps(name)
        weights += count
        moved += count * (1 if eight else item_bytes)
    full = sum(kind == FULL for kind in text.layer_types)
    states = (len(text.layer_types) - full) * text.value_heads * text.key_dim * text.value_dim
    head = text.vocab * text.hidden
    work = Work(
        weight_bytes=moved + head * item_bytes,
        token_flops=2 * weights + 6 * states,  # decay, write, read: a product and a sum each (arXiv 2412.06464)
        head_flops=2 * head,
        pair_flops=4 * full * text.heads * text.head_dim,
        context_bytes=2 * full * text.kv_heads * text.head_dim * item_bytes,
        state_bytes=2 * states * STATE_BYTES,
    )
    return work if vision is None else _with_tower(work, vision, item_bytes)


def _with_tower(work: Work, vision: VisionConfig, item_bytes: int) -> Work:
    shapes = {name: shape for name, shape in vision_shapes(vision).items() if len(shape) > 1}
    merged = sum(prod(shape) for name, shape in shapes.items() if ".merger." in name)
    # A still fills all temporal slots alike: their weights are added up beforehand.
    first = vision.hidden * 3 * vision.patch**2
    blocks = sum(prod(shape) for name, shape in shapes.items() if ".blocks." in name)
    return Work(
        weight_bytes=work.weight_bytes,
        token_flops=work.token_flops,
        head_flops=work.head_flops,
        pair_flops=work.pair_flops,
        context_bytes=work.context_bytes,
        state_bytes=work.state_bytes,
        patch_flops=2 * (first + blocks + merged / vision.merge**2),
        patch_pair_flops=4 * vision.depth * vision.hidden,
        tower_bytes=(first + blocks + merged) * item_bytes,
    )
