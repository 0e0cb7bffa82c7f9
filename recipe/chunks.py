"""The two sequential pieces of the chunked delta rule: a triangular inverse a chunk, and the states between chunks.

Owns them as differentiable operations with Triton kernels on a GPU and plain torch elsewhere, the reference. Promises
fp32 arithmetic inside, whatever the inputs' dtype. A product form of the inverse (Neumann doubling) was refused: equal
keys, as a chart's plain background gives, make its partial products explode; forward substitution does not care.
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


def scan_states(p: Tensor, b: Tensor, gamma: Tensor) -> Tensor:
    """S[0] = 0, S[n+1] = gamma[n] S[n] - P[n] S[n] + B[n], in plain torch; returns S before each chunk."""
    states = [torch.zeros_like(b[:, :, 0], dtype=torch.float32)]
    for n in range(b.shape[2] - 1):
        now = states[-1]
        states.append(gamma[:, :, n, None, None] * now - p[:, :, n].float() @ now + b[:, :, n].float())
    return torch.stack(states, 2).to(b.dtype)


def scan_back(grad: Tensor, p: Tensor, gamma: Tensor) -> Tensor:
    """The gradient that reaches S[n + 1] for every n, from the gradients of S, in plain torch."""
    after = torch.zeros_like(grad, dtype=torch.float32)
    now = torch.zeros_like(grad[:, :, 0], dtype=torch.float32)
    for n in range(grad.shape[2] - 1, -1, -1):
        after[:, :, n] = now
        pulled = p[:, :, n].float().transpose(-1, -2) @ now
        now = grad[:, :, n].float() + gamma[:, :, n, None, None] * now - pulled
    return after.to(grad.dtype)


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

    @triton.jit
    def _scan(  # noqa: PLR0913 (a kernel takes pointers and sizes)
        p_ptr, b_ptr, gamma_ptr, out_ptr, count: tl.constexpr, dk: tl.constexpr, dv: tl.constexpr, part: tl.constexpr
    ):
        """`part` columns of one sequence's states a program."""
        i, j = tl.arange(0, dk), tl.program_id(1) * part + tl.arange(0, part)
        square, slab = i[:, None] * dk + i[None, :], i[:, None] * dv + j[None, :]
        state = tl.zeros([dk, part], dtype=tl.float32)
        for n in range(count):
            at = tl.program_id(0).to(tl.int64) * count + n
            tl.store(out_ptr + at * dk * dv + slab, state.to(out_ptr.dtype.element_ty))
            p = tl.load(p_ptr + at * dk * dk + square)
            b = tl.load(b_ptr + at * dk * dv + slab).to(tl.float32)
            pushed = tl.dot(p, state.to(p.dtype), input_precision="ieee")
            state = state * tl.load(gamma_ptr + at) + b - pushed

    @triton.jit
    def _scan_back(  # noqa: PLR0913
        grad_ptr, p_ptr, gamma_ptr, out_ptr, count: tl.constexpr, dk: tl.constexpr, dv: tl.constexpr, part: tl.constexpr
    ):
        """The same columns of the gradients, from the last chunk to the first."""
        i, j = tl.arange(0, dk), tl.program_id(1) * part + tl.arange(0, part)
        turned, slab = i[None, :] * dk + i[:, None], i[:, None] * dv + j[None, :]
        now = tl.zeros([dk, part], dtype=tl.float32)
        for back in range(count):
            at = tl.program_id(0).to(tl.int64) * count + count - 1 - back
            tl.store(out_ptr + at * dk * dv + slab, now.to(out_ptr.dtype.element_ty))
            p = tl.load(p_ptr + at * dk * dk + turned)
            grad = tl.load(grad_ptr + at * dk * dv + slab).to(tl.float32)
            pulled = tl.dot(p, now.to(p.dtype), input_precision="ieee")
            now = grad + now * tl.load(gamma_ptr + at) - pulled


@torch.library.custom_op("foveate_recipe::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(a: Tensor) -> Tensor:
    """(I + A)^-1 for strictly lower-triangular A [..., n, n] in fp32; differentiable."""
    if triton is None or not a.is_cuda:
        return solve_inverse(a).contiguous()
    a = a.contiguous()
    out = torch.empty_like(a)
    n = a.shape[-1]
    _substitute[(a.numel() // (n * n),)](a, out, n, num_warps=4)
    return out


@unit_lower_inverse.register_fake
def _(a: Tensor) -> Tensor:
    return torch.empty(a.shape, dtype=a.dtype, device=a.device)


def _save_inverse(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(output)


def _inverse_backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    (inverse,) = ctx.saved_tensors
    turned = inverse.transpose(-1, -2)
    return -(turned @ grad @ turned).tril(-1)


unit_lower_inverse.register_autograd(_inverse_backward, setup_context=_save_inverse)


@torch.library.custom_op("foveate_recipe::chunk_states", mutates_args=())
def chunk_states(p: Tensor, b: Tensor, gamma: Tensor) -> Tensor:
    """The states before each chunk, as `scan_states`; differentiable.

    P [rows, heads, N, Dk, Dk], B [rows, heads, N, Dk, Dv], gamma (fp32) [rows, heads, N]; returns B's shape and dtype.
    """
    if triton is None or not p.is_cuda:
        return scan_states(p, b, gamma).contiguous()
    p, b, gamma = p.contiguous(), b.contiguous(), gamma.contiguous()
    out = torch.empty_like(b)
    count, dk, dv = b.shape[2:]
    part = min(dv, 16)
    _scan[(b.shape[0] * b.shape[1], dv // part)](p, b, gamma, out, count, dk, dv, part, num_warps=4)
    return out


@chunk_states.register_fake
def _(p: Tensor, b: Tensor, gamma: Tensor) -> Tensor:
    return torch.empty(b.shape, dtype=b.dtype, device=b.device)


@torch.library.custom_op("foveate_recipe::chunk_states_back", mutates_args=())
def chunk_states_back(grad: Tensor, p: Tensor, gamma: Tensor) -> Tensor:
    """The gradients that reach each chunk's end, as `scan_back`."""
    if triton is None or not p.is_cuda:
        return scan_back(grad, p, gamma).contiguous()
    grad, p, gamma = grad.contiguous(), p.contiguous(), gamma.contiguous()
    out = torch.empty_like(grad)
    count, dk, dv = grad.shape[2:]
    part = min(dv, 16)
    _scan_back[(grad.shape[0] * grad.shape[1], dv // part)](grad, p, gamma, out, count, dk, dv, part, num_warps=4)
    return out


@chunk_states_back.register_fake
def _(grad: Tensor, p: Tensor, gamma: Tensor) -> Tensor:
    return torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)


def _save_states(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[0], inputs[2], output)


def _states_backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[no-untyped-def]
    p, gamma, states = ctx.saved_tensors
    after = chunk_states_back(grad, p, gamma)
    grad_gamma = (after.float() * states.float()).sum((-1, -2))
    return -(after @ states.transpose(-1, -2)), after, grad_gamma


chunk_states.register_autograd(_states_backward, setup_context=_save_states)
