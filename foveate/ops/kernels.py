"""The operators of a step on the device, in two makes: plain torch, and Triton kernels.

Owns the choice as a value: whoever runs a model is given one `Kernels` and passes it on; nothing here looks at devices
or settings. Both makes compute the same; the torch one takes recorded steps only (lanes of one width), so `runs` is
None there. Triton is imported only when asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from foveate.ops import fp8, lanes
from foveate.ops.fp8 import Matrix
from foveate.ops.lanes import DeltaWeights, HeadSizes, Lanes, Norm, Runs
from foveate.ops.layers import rms_norm, swiglu
from foveate.ops.rope import mrope_cos_sin

Pair = tuple[Tensor, Tensor]
Place = Callable[[Tensor, Tensor, Pair, Pair, Lanes, HeadSizes], Tensor]
Delta = Callable[[Tensor, Tensor, DeltaWeights, Tensor, Lanes, Tensor], None]


@dataclass(frozen=True, slots=True)
class RunKernels:
    """Operators for sequences with many tokens, arguments as of their namesakes in `lanes`.

    block_len: queries that attention takes at once; chunk_len: tokens of a chunk of the delta rule.
    """

    attend: Callable[[Tensor, Tensor, Pair, Runs, Tensor], None]
    convolve: Callable[[Tensor, Tensor, Tensor, Runs, Tensor], None]
    delta: Callable[[Tensor, Tensor, DeltaWeights, Tensor, Runs, Tensor], None]
    block_len: int
    chunk_len: int


@dataclass(frozen=True, slots=True)
class Kernels:
    """One make of every operator.

    project(x, weight, norm): norm(x) @ weight. project_gated: silu(gate) * up of it. add_projected(target, x, weight):
    target += x @ weight. cos_sin: as `rope.mrope_cos_sin`. The others as in `lanes`.
    """

    name: str
    norm: Callable[[Tensor, Norm], Tensor]
    cos_sin: Callable[[Tensor, Tensor, Tensor], Pair]
    glance: Callable[[Tensor], Tensor]
    project: Callable[[Tensor, Matrix, Norm | None], Tensor]
    project_gated: Callable[[Tensor, Matrix, Norm | None], Tensor]
    add_projected: Callable[[Tensor, Tensor, Matrix], None]
    place: Place
    attend: Callable[[Tensor, Tensor, Pair, Lanes, Tensor], None]
    convolve: Callable[[Tensor, Tensor, Tensor, Lanes, Tensor], None]
    keep_conv: Callable[[Tensor, Tensor, Lanes, Tensor], None]
    delta: Delta
    keep_delta: Delta
    runs: RunKernels | None


def torch_kernels() -> Kernels:
    """Plain torch: the reference, and what a CPU runs."""

    def norm(x: Tensor, of: Norm | None) -> Tensor:
        return x if of is None else rms_norm(x, of.scale, of.eps)

    return Kernels(
        name="torch",
        norm=norm,
        cos_sin=mrope_cos_sin,
        glance=lanes.glance,
        project=lambda x, weight, of: fp8.project(norm(x, of), weight),
        project_gated=lambda x, weight, of: swiglu(norm(x, of), weight),
        add_projected=fp8.add_projected,
        place=lanes.place,
        attend=lanes.attend,
        convolve=lanes.convolve,
        keep_conv=lanes.keep_conv,
        delta=lanes.delta,
        keep_delta=lanes.keep_delta,
        runs=None,
    )


def triton_kernels() -> Kernels:
    """Triton for what surrounds products and for products of few rows; cuBLAS for products of many."""
    from foveate.ops import triton_attention, triton_chunks, triton_delta, triton_linear, triton_rows

    def norm(x: Tensor, of: Norm | None) -> Tensor:
        return x if of is None else triton_rows.rms_norm(x, of.scale, of.eps)

    def project(x: Tensor, weight: Matrix, of: Norm | None) -> Tensor:
        if isinstance(weight, Tensor) and triton_linear.fits(x, weight):
            return triton_linear.project(x, weight, of)
        return fp8.project(norm(x, of), weight)

    def project_gated(x: Tensor, weight: Matrix, of: Norm | None) -> Tensor:
        if isinstance(weight, Tensor) and triton_linear.fits(x, weight):
            return triton_linear.project_gated(x, weight, of)
        return triton_rows.gated_product(fp8.project(norm(x, of), weight))

    def add_projected(target: Tensor, x: Tensor, weight: Matrix) -> None:
        if isinstance(weight, Tensor) and triton_linear.fits(x, weight):
            triton_linear.add_projected(target, x, weight)
        else:
            fp8.add_projected(target, x, weight)

    return Kernels(
        name="triton",
        norm=norm,
        cos_sin=triton_rows.cos_sin,
        glance=triton_rows.glance,
        project=project,
        project_gated=project_gated,
        add_projected=add_projected,
        place=triton_rows.place,
        attend=triton_attention.attend,
        convolve=triton_delta.convolve,
        keep_conv=triton_delta.keep_conv,
        delta=triton_delta.delta,
        keep_delta=triton_delta.keep_delta,
        runs=RunKernels(
            attend=triton_attention.attend_runs,
            convolve=triton_chunks.convolve_runs,
            delta=triton_chunks.delta_runs,
            block_len=triton_attention.QUERY_BLOCK,
            chunk_len=triton_chunks.CHUNK_LEN,
        ),
    )
