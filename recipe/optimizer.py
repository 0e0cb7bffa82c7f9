"""Muon for the matrices and Adam for everything else, with all state in fixed buffers.

Owns the split of parameters between the two, the batched orthogonalisation and the state that a resumed run needs.
Promises a step without host synchronisation (learning rates are device scalars), so that it can be part of a CUDA
graph. Refuses to know the schedule. Sources: Muon (Jordan et al. 2024), its RMS matching and decay (arXiv 2502.16982).
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

ADAM_NAMES = ("embed_tokens", "pos_embed", "patch_embed", "conv1d", "in_proj_a", "in_proj_b", "head.")
BETAS, EPS = (0.9, 0.95), 1e-8
MOMENTUM, DECAY = 0.95, 0.1
Parts = Callable[[str, Tensor], list[int]]


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon owns the parameter: matrices inside the layers."""
    return parameter.ndim == 2 and not any(part in name for part in ADAM_NAMES)


def row_parts(name: str, parameter: Tensor, key_rows: int) -> list[int]:
    """Rows of a fused projection that are orthogonalised apart: queries, keys and values."""
    rows = parameter.shape[0]
    if name.endswith("attn.qkv.weight"):
        return [rows // 3] * 3
    if name.endswith("in_proj_qkv.weight"):
        return [key_rows, key_rows, rows - 2 * key_rows]
    return [rows]


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration on a stack of matrices [n, rows, columns], in bf16 on a GPU."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16() if g.is_cuda else g
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.transpose(1, 2) if tall else x).float()


class MuonAdam:
    """Both optimisers over named parameters; `lr` and `adam_lr` are 0-dim tensors that the caller overwrites."""

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], key_rows: int = 0, parts: Parts | None = None
    ) -> None:
        """parts: what `row_parts` says for other names, empty for Adam's; key_rows: for `row_parts` itself."""
        parts = parts or (lambda name, p: row_parts(name, p, key_rows) if is_matrix(name, p) else [])
        named = [(name, p) for name, p in named if p.requires_grad]
        self.stacks: dict[tuple[int, int], list[tuple[nn.Parameter, int, int]]] = {}
        self.rest: list[nn.Parameter] = []
        for name, p in named:
            apart = parts(name, p)
            if not apart:
                self.rest.append(p)
            first = 0
            for rows in apart:
                self.stacks.setdefault((rows, p.shape[1]), []).append((p, first, first + rows))
                first += rows
        device = named[0][1].device
        self.momenta = {k: torch.zeros(len(v), *k, device=device) for k, v in self.stacks.items()}
        self.first = [torch.zeros_like(p) for p in self.rest]
        self.second = [torch.zeros_like(p) for p in self.rest]
        self.count = torch.zeros((), device=device)
        self.lr, self.adam_lr = torch.zeros((), device=device), torch.zeros((), device=device)
        self.parameters = [p for _, p in named]

    @torch.no_grad()
    def clip(self, limit: float) -> Tensor:
        """Scale all gradients so that their joint norm is at most `limit`; returns the norm before."""
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        torch._foreach_mul_(grads, (limit / (norm + 1e-6)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def step(self) -> None:
        """One update from the parameters' gradients."""
        for key, members in self.stacks.items():
            grads = torch.stack([p.grad[a:b] for p, a, b in members])  # type: ignore[index]
            momentum = self.momenta[key]
            momentum.lerp_(grads, 1 - MOMENTUM)
            update = orthogonalise(grads.lerp(momentum, MOMENTUM)) * (0.2 * max(key) ** 0.5 * self.lr)
            views = [p.data[a:b] for p, a, b in members]
            torch._foreach_mul_(views, 1 - DECAY * self.lr)
            torch._foreach_sub_(views, list(update.unbind(0)))
        self._adam()

    def _adam(self) -> None:
        grads = [p.grad for p in self.rest]
        self.count += 1
        torch._foreach_lerp_(self.first, grads, 1 - BETAS[0])
        torch._foreach_mul_(self.second, BETAS[1])
        torch._foreach_addcmul_(self.second, grads, grads, 1 - BETAS[1])
        scale = self.adam_lr / (1 - BETAS[0] ** self.count)
        roots = torch._foreach_sqrt(self.second)
        torch._foreach_mul_(roots, (1 - BETAS[1] ** self.count).rsqrt())
        torch._foreach_add_(roots, EPS)
        updates = torch._foreach_div(self.first, roots)
        torch._foreach_mul_(updates, scale)
        torch._foreach_sub_([p.data for p in self.rest], updates)

    def state(self) -> dict[str, Tensor]:
        """Every buffer by name, not copied."""
        out = {f"momentum.{rows}x{columns}": t for (rows, columns), t in self.momenta.items()}
        out |= {f"first.{i}": t for i, t in enumerate(self.first)}
        out |= {f"second.{i}": t for i, t in enumerate(self.second)}
        return out | {"count": self.count}

    def load(self, state: dict[str, Tensor]) -> None:
        """Copy a saved state into the buffers, which keep their addresses."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def reset(self) -> None:
        """Forget everything, as at the start."""
        for tensor in self.state().values():
            tensor.zero_()
