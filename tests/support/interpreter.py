"""Lets kernel tests run where there is no GPU: in Triton's interpreter, on the CPU.

Imported before any kernel is. With a GPU the same tests run there, compiled. `DEVICE` is where their tensors go. Mends
two faults of the interpreter of Triton 3.6: it hands one-element arrays to `int`, which numpy 2.4 refuses, and it
multiplies bfloat16 matrices as if their bits were integers.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _mend_interpreter() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    language = interpreter.tl
    patch, multiply = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def create_dot(builder: Any, a: Any, b: Any, *others: Any) -> Any:
        wide = [builder.cast_impl(x, language.float32) if x.dtype.scalar == language.bfloat16 else x for x in (a, b)]
        return multiply(builder, *wide, *others)

    interpreter._patch_lang_tensor = patch_tensor
    interpreter.InterpreterBuilder.create_dot = create_dot


if DEVICE == "cpu":
    _mend_interpreter()
else:
    pytest.importorskip("triton")


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    """Assert that two tensors agree to a relative error of the whole, and that none of it is NaN."""
    got, want = got.double(), want.double()
    assert got.shape == want.shape and torch.isfinite(got).all(), "another shape, or values that are not finite"
    error = float((got - want).norm() / want.norm().clamp(min=1e-12))
    assert error <= tolerance, f"relative error {error:.2e}"
