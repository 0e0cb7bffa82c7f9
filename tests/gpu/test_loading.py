"""Loading, 8-bit matrices and frames on a GPU: equal to what the CPU makes of the same files and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from foveate.core.values import Frame, ImageRules
from foveate.models.files import Files, inventory
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_config import text_config
from foveate.models.qwen3_5_weights import load_trunk
from foveate.models.registry import load_text, load_vision
from foveate.models.weights import Place
from foveate.ops.fp8 import Blocked, numbers, project
from foveate.ops.frames import frames_on
from foveate.prompt.pixels import measure
from foveate.run.encoder import reader
from tests.prompt.drawings import LIMITS
from tests.support.checkpoints import FP8, KEPT, bare, equal, fp8_folder, quantised, tensors_of
from tests.support.engines import png
from tests.support.tiny import make_tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
GPU, CPU = torch.device("cuda:0"), torch.device("cpu")


def on_cpu(value: object) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.cpu() for tensor in tensors_of(value))


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe", "moe_fused"])
def test_weights_arrive_as_they_do_on_a_cpu(tmp_path: Path, kind: str) -> None:
    make_tiny(tmp_path, kind)
    for dtype in (torch.float32, torch.bfloat16):
        there, here = (load_text(tmp_path, device, dtype) for device in (GPU, CPU))
        assert isinstance(there, Qwen35) and isinstance(here, Qwen35)
        assert equal(on_cpu(there.trunk), on_cpu(here.trunk))
        towers = [load_vision(tmp_path, device, dtype) for device in (GPU, CPU)]
        assert equal(*(on_cpu(tower.weights) for tower in towers))  # type: ignore[attr-defined]


def test_tensors_larger_than_the_pinned_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foveate.models.files.PIECE", 4096)
    make_tiny(tmp_path, "dense")
    files = Files(tmp_path)
    for name, found in inventory(tmp_path).items():
        assert torch.equal(
            files.read(name, found, GPU, torch.bfloat16).cpu(), files.read(name, found, CPU, torch.bfloat16)
        )


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_eight_bit_matrices_stay_so_and_multiply_alike(tmp_path: Path, kind: str) -> None:
    folder = fp8_folder(tmp_path, kind, quantised(kind, KEPT)[0], modules_to_not_convert=list(KEPT))
    config = text_config(json.loads((folder / "config.json").read_text()))
    there = load_trunk(folder, config, Place(GPU, torch.bfloat16))
    out = there.layers[0].mixer.out
    assert isinstance(out, Blocked) and out.values.is_cuda and out.values.dtype == torch.float8_e4m3fn
    plain = load_trunk(folder, config, Place(CPU, torch.float32)).layers[0].mixer.out
    assert isinstance(plain, torch.Tensor) and torch.equal(numbers(out, torch.float32).cpu(), plain)
    for tokens in (1, 64, 65, 200):
        x = torch.randn(tokens, plain.shape[0], device=GPU, dtype=torch.bfloat16)
        got, want = project(x, out).float().cpu(), x.float().cpu() @ plain
        assert (got - want).norm() / want.norm() < 8e-3


def test_a_dummy_is_made_where_it_lives_and_soon(tmp_path: Path) -> None:
    folder = bare(tmp_path, "dense", quantization_config=FP8)
    model = load_text(folder, GPU, torch.bfloat16, dummy=True)
    assert isinstance(model, Qwen35)
    found = list(tensors_of(model.trunk))
    assert all(tensor.is_cuda and tensor.float().isfinite().all() for tensor in found)
    assert any(tensor.dtype == torch.float8_e4m3fn for tensor in found)


def test_frames_come_pinned_and_are_resized_there() -> None:
    rules = ImageRules(16, 2, 1024, 65_536, (0.5,) * 3, (0.5,) * 3)
    picture = measure(png(3, 200, 150), rules, LIMITS, "p")
    decoded = reader("cuda:0", "thread")(picture)
    assert isinstance(decoded, Frame) and decoded.pixels.is_pinned()
    moved = reader("cuda:0", "process")(picture)
    assert isinstance(moved, Frame) and isinstance(moved.pixels, np.ndarray)
    for one in (decoded, moved):
        assert np.array_equal(frames_on([one], GPU)[0].cpu().numpy(), picture.pixels())
