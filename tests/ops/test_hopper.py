"""Every kernel launch compiles for a Hopper GPU at real models' sizes and fits it; none is needed here.

Owns the check of what an interpreter cannot see: shared memory, sides of grids, and what the compiler refuses.
`support.hopper` compiles in processes of its own, as kernels are interpreted in this one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import hopper

ROOT = Path(__file__).resolve().parents[2]
TOO_LARGE = "attend 16/4 width 33"  # once its queries are no longer taken in pieces
UNCUT = f"""
import sys
from foveate.ops import triton_attention
from tests.support import hopper
triton_attention.FEW_ROWS = 512
sys.exit(hopper.main(["{TOO_LARGE}"]))
"""
Said = dict[str, Any]


def reports(*words: str) -> tuple[int, dict[str, Said], str]:
    """Exit status, reports by name and errors of a Python process with these words."""
    if reason := hopper.missing():
        pytest.skip(reason)
    compiling = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, env=compiling, capture_output=True, text=True, timeout=600)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {report["name"]: report for report in said}, done.stderr


@pytest.fixture(scope="module")
def compiled() -> dict[str, Said]:
    _, found, errors = reports("-m", "tests.support.hopper")
    assert set(found) == set(hopper.LAUNCHES), errors
    return found


@pytest.mark.parametrize("name", hopper.LAUNCHES)
def test_a_launch_compiles_and_fits(compiled: dict[str, Said], name: str) -> None:
    report = compiled[name]
    assert report["error"] is None
    assert report["kernels"], "nothing was launched"
    for kernel in report["kernels"]:
        assert kernel["shared"] <= hopper.SHARED_LIMIT, kernel
        assert all(0 < side <= most for side, most in zip(kernel["grid"], hopper.GRID_LIMITS, strict=True)), kernel
    assert report["misfits"] == []


def test_no_kernel_is_left_out(compiled: dict[str, Said]) -> None:
    sources = sorted((ROOT / "foveate/ops").glob("triton_*.py"))
    there = {f"{p.stem}.{name}" for p in sources for name in re.findall(r"^def (_\w+_kernel)\(", p.read_text(), re.M)}
    assert there == {kernel["name"] for report in compiled.values() for kernel in report["kernels"]}


def test_a_launch_that_is_too_large_is_reported() -> None:
    status, found, errors = reports("-c", UNCUT)
    assert status == 1 and set(found) == {TOO_LARGE}, errors
    assert found[TOO_LARGE]["error"] is None
    assert any("_few_kernel" in line and "shared memory" in line for line in found[TOO_LARGE]["misfits"])


def test_a_grid_that_is_too_long_is_reported() -> None:
    longest = hopper.Kernel("fits", hopper.SHARED_LIMIT, hopper.GRID_LIMITS, None, None)
    beyond = hopper.Kernel("longer", 0, (1, hopper.GRID_LIMITS[1] + 1, 1), None, None)
    assert hopper.misfits([longest, beyond]) == ["longer: a grid of (1, 65536, 1)"]
