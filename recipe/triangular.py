"""The inverse of I + A for strictly lower-triangular A, many small matrices at once.

Owns one differentiable operation and its two forward forms: forward substitution in a Triton kernel on a GPU (fp32,
64 rows in registers) and torch's triangular solve elsewhere. Promises the same result to rounding; a product form
(Neumann doubling) was refused because equal keys, a chart's plain background, make its partial products explode.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU-only machine
    triton = None


def solve_inverse(a: Tensor) -> Tensor:
    """(I + A)^-1 by torch's solver; A [..., n, n], strictly lower."""
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)
    return torch.linalg.solve_triangular(eye + a, eye, upper=False, unitriangular=True)


if triton is not None:

    @triton.jit
    def _substitute(a_ptr, out_ptr, n: tl.constexpr):
        """One matrix a program: row i of the inverse is e_i - sum over j < i of A[i, j] times row j."""
        base = tl.program_id(0).to(tl.int64) * n * n
        index = tl.arange(0, n)
        inverse = tl.where(index[:, None] == index[None, :], 1.0, 0.0)
        for i in range(1, n):
            row = tl.load(a_ptr + base + i * n + index)
            update = tl.sum(row[:, None] * inverse, axis=0)
            inverse = tl.where(index[:, None] == i, inverse - update[None, :], inverse)
        tl.store(out_ptr + base + index[:, None] * n + index[None, :], inverse)


@torch.library.custom_op("foveate_recipe::unit_lower_inverse", mutates_args=())
def _inverse(a: Tensor) -> Tensor:
    if triton is None or not a.is_cuda:
        return solve_inverse(a).contiguous()
    a = a.contiguous()
    out = torch.empty_like(a)
    n = a.shape[-1]
    _substitute[(a.numel() // (n * n),)](a, out, n, num_warps=4)
    return out


@_inverse.register_fake
def _inverse_fake(a: Tensor) -> Tensor:
    return torch.empty(a.shape, dtype=a.dtype, device=a.device)


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output)


def _backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    (inverse,) = ctx.saved_tensors
    turned = inverse.transpose(-1, -2)
    return -(turned @ grad @ turned).tril(-1)


_inverse.register_autograd(_backward, setup_context=_setup)


def unit_lower_inverse(a: Tensor) -> Tensor:
    """(I + A)^-1 for strictly lower-triangular A [..., n, n]; differentiable."""
    return _inverse(a)
