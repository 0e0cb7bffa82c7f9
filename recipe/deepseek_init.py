"""Random weights of the DeepSeek V4 chart reader, and which of its parameters which optimiser owns.

Owns both by the parameters' names. Promises the same weights for the same seed, a start at which every layer passes
its streams on nearly as they are and reads one of them more than the others, and a hash table that spreads token ids
evenly over the experts. Knows nothing about training.
"""

import torch
from torch import Tensor, nn

from recipe.deepseek_experts import Gate
from recipe.deepseek_shapes import TrunkShape

WRITES = ("wo_b.weight", "experts.w2", "shared_experts.w2.weight", "attn.wo.weight", "mlp.w2.weight")
ADAM = (".embed.", ".head.", ".hc_", ".gate.weight", ".ape", ".patch_embed.", ".markov_w1.", ".confidence_head.")
KEEP, READ = 5.0, 2.0  # logits by which a stream stays itself, and by which a layer prefers its own
SWAY = 0.1  # how strongly a site follows what it reads, at first


def initialise_sight(module: nn.Module, seed: int, residual_layers: int) -> None:
    """Random weights, the same for the same seed. residual_layers: sublayers that write into the streams."""
    generator = torch.Generator().manual_seed(seed)
    for number, gate in enumerate(part for part in module.modules() if isinstance(part, Gate)):
        if gate.hashed:
            gate.tid2eid.copy_(_table(gate.shape, seed * 1000 + number))
    for name, p in module.named_parameters():
        if name.endswith("scale"):
            p.data.fill_(SWAY)
        elif name.endswith("base"):
            p.data.copy_(_site_base(name, len(p)))
        elif p.ndim == 2 and not name.endswith("ape"):
            std = {"embed": 0.1}.get(name.split(".")[0], (3 * p.shape[-1]) ** -0.5)
            if name.endswith("experts.w2"):  # turned: its inputs are the rows of an expert
                std = (3 * module_inner(module)) ** -0.5
            std *= residual_layers**-0.5 if name.endswith(WRITES) else 1.0
            p.data.copy_(torch.randn(p.shape, generator=generator) * std)
        elif name.startswith("image_"):
            p.data.copy_(torch.randn(p.shape, generator=generator) * 0.1)
        elif name.endswith("bias"):
            p.data.zero_()


def module_inner(module: nn.Module) -> int:
    """Rows of stacked experts that belong to one."""
    return next(part.shape.inner for part in module.modules() if isinstance(part, Gate))


def _table(shape: TrunkShape, seed: int) -> Tensor:
    """[vocab, top_k] different experts for every token id, each expert as often as any other."""
    order = torch.rand(shape.vocab, shape.experts, generator=torch.Generator().manual_seed(seed)).argsort(-1)
    return order[:, : shape.top_k]


def _site_base(name: str, outputs: int) -> Tensor:
    """pre prefers one stream, another for each site; post is 1 for all; comb is nearly the identity."""
    if "hc_head" in name:  # which reads all streams alike
        return torch.zeros(outputs)
    count = next(n for n in range(1, outputs + 1) if (2 + n) * n == outputs)
    layer = next(int(part) for part in name.split(".") if part.isdigit())
    pre = torch.full((count,), -READ)
    pre[(2 * layer + ("ffn" in name)) % count] = READ
    return torch.cat([pre, torch.zeros(count), KEEP * torch.eye(count).flatten()])


def muon_parts(name: str, parameter: Tensor, shape: TrunkShape) -> list[int]:
    """Rows of a matrix that Muon orthogonalises apart; none where Adam owns the parameter."""
    if parameter.ndim != 2 or any(part in f".{name}" for part in ADAM):
        return []
    rows = parameter.shape[0]
    for ending, count in (
        ("wqkv.weight", 3),
        ("mlp.w1.weight", 2),
        ("attn.wo_a.weight", shape.groups),
        (".experts.w1", shape.experts),
        (".experts.w2", shape.experts),
        (".experts.w3", shape.experts),
    ):
        if name.endswith(ending):
            return [rows // count] * count
    return [rows]
