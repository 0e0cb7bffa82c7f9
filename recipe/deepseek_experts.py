"""The trainable experts of DeepSeek V4: a gate that chooses, all routed experts as three products, a shared one.

Owns these modules under the released names (experts stacked: `w1`, `w2`, `w3` of all of them in one matrix each) and
the balancing of the gate's biases, which are no parameters. Promises fixed shapes: every expert computes every token,
and shares of 0 drop what was not chosen; at this size that is faster than sorting. Knows no attention.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe.deepseek_ops import expert_shares, given_shares, limited_product
from recipe.deepseek_shapes import TrunkShape
from recipe.vision import Linear

BALANCE = 1e-3  # how far a step moves an expert's bias towards even use


class Gate(nn.Module):
    """Chooses experts: by a table of token ids or by scores and a bias; by a bias of its own for image tokens.

    The biases are no parameters: `balance` moves them a little after a step, by the loads that the step left here.
    """

    def __init__(self, shape: TrunkShape, hashed: bool) -> None:
        super().__init__()
        self.shape, self.hashed = shape, hashed
        self.weight = nn.Parameter(torch.zeros(shape.experts, shape.hidden))
        self.register_buffer("bias_vl", torch.zeros(shape.experts))
        self.register_buffer("load", torch.zeros(2, shape.experts), persistent=False)  # of text and image tokens
        if hashed:
            self.register_buffer("tid2eid", torch.zeros(shape.vocab, shape.top_k, dtype=torch.int64))
        else:
            self.register_buffer("bias", torch.zeros(shape.experts))

    def forward(self, x: Tensor, ids: Tensor, image: Tensor) -> Tensor:
        """Shares [n, experts] for x [n, hidden], ids [n] and image [n]."""
        s = self.shape
        scores = F.softplus(F.linear(x.float(), self.weight)).sqrt()
        seen = expert_shares(scores, self.bias_vl, s.top_k, s.scale)
        if self.hashed:
            text = given_shares(scores, self.tid2eid[ids], s.scale)
        else:
            text = expert_shares(scores, self.bias, s.top_k, s.scale)
        shares = torch.where(image[:, None], seen, text)
        with torch.no_grad():
            used, kinds = (shares > 0).float(), torch.stack([~image, image]).float()
            self.load.copy_(kinds @ used)
        return shares


@torch.no_grad()
def balance(module: nn.Module) -> None:
    """Auxiliary-loss-free balancing (arXiv 2408.15664): a bias falls where an expert had more than its share."""
    for gate in module.modules():
        if isinstance(gate, Gate):
            step = BALANCE * torch.sign(gate.load - gate.load.mean(1, keepdim=True))
            gate.bias_vl.sub_(step[1])
            if not gate.hashed:
                gate.bias.sub_(step[0])


class SwiGlu(nn.Module):
    """The shared expert."""

    def __init__(self, shape: TrunkShape) -> None:
        super().__init__()
        self.w1, self.w3 = (Linear(shape.hidden, shape.inner, bias=False) for _ in range(2))
        self.w2, self.limit = Linear(shape.inner, shape.hidden, bias=False), shape.limit

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out."""
        return self.w2(limited_product(self.w1(x), self.w3(x), self.limit))


class Experts(nn.Module):
    """All routed experts.

    w1, w3: [experts * inner, hidden], one expert after another; w2: the same shape, each expert's turned.
    """

    def __init__(self, shape: TrunkShape) -> None:
        super().__init__()
        self.shape = shape
        sides = (shape.experts * shape.inner, shape.hidden)
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.zeros(sides)) for _ in range(3))

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        """x [n, hidden], shares [n, experts]; same shape as x out."""
        gate, up = (F.linear(x, weight.to(x.dtype)) for weight in (self.w1, self.w3))
        inner = limited_product(gate, up, self.shape.limit).unflatten(-1, (self.shape.experts, -1))
        return (inner * shares.unsqueeze(-1).to(x.dtype)).flatten(1) @ self.w2.to(x.dtype)


class Feed(nn.Module):
    """Routed experts and the shared one."""

    def __init__(self, shape: TrunkShape, hashed: bool) -> None:
        super().__init__()
        self.gate, self.experts, self.shared_experts = Gate(shape, hashed), Experts(shape), SwiGlu(shape)

    def forward(self, x: Tensor, ids: Tensor, image: Tensor) -> Tensor:
        """x [rows, tokens, hidden] (normed), ids and image [rows, tokens]; same shape as x out."""
        flat = x.flatten(0, 1)
        shares = self.gate(flat, ids.flatten(), image.flatten())
        return (self.experts(flat, shares) + self.shared_experts(flat)).view_as(x)
