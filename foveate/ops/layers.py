"""The small pieces every layer is made of: RMS norms and the SwiGLU product.

Norms compute in float32 and return the dtype that came in, whatever the weights are kept in. Zero-centred weights (the
checkpoint stores w, the layer multiplies by 1 + w) are turned into plain scales where they are loaded, so that these
functions know one kind of scale only. Knows nothing of models, batches or memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.ops.fp8 import Matrix, project


def rms_norm(x: Tensor, scale: Tensor | None, eps: float) -> Tensor:
    """`x / rms(x) * scale` over the last axis; `scale` is float32 [x's last side], or None for ones."""
    if x.dtype == torch.float32:
        return F.rms_norm(x, x.shape[-1:], scale, eps)
    wide = x if x.dtype == torch.float64 else x.float()
    return F.rms_norm(wide, x.shape[-1:], scale, eps).to(x.dtype)


def unit_scale(weight: Tensor) -> Tensor:
    """The plain scale of a zero-centred norm weight, in float32."""
    return weight.float() + 1.0


def gated_rms_norm(x: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
    """`rms_norm(x) * scale * silu(gate)` over the last axis, in x's dtype: the output norm of gated DeltaNet."""
    return rms_norm(x, scale, eps).mul_(F.silu(gate.to(x.dtype)))


def swiglu(x: Tensor, gate_up: Matrix) -> Tensor:
    """`silu(gate x) * (up x)` for one weight [hidden, 2 * inner] with the gate's columns first."""
    gate, up = project(x, gate_up).chunk(2, -1)  # [tokens, inner] each
    return F.silu(gate).mul_(up)
