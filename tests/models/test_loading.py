"""Loading by any way gives one model: from one file or shards, on one thread or several, from 8-bit blocks or plain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from foveate.core.errors import CheckpointError
from foveate.models.files import Files, inventory
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_config import text_config
from foveate.models.qwen3_5_weights import load_mtp, load_trunk
from foveate.models.registry import describe, load_text, load_vision
from foveate.models.weights import Place, turned
from foveate.ops.fp8 import Beside, Blocked
from tests.models.oracle import Bench, run_chunks
from tests.support.checkpoints import FP8, KEPT, equal, fp8_folder, quantised
from tests.support.tiny import make_tiny, write_tensors

CPU = torch.device("cpu")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe"])
def test_several_threads_load_what_one_loads(tmp_path: Path, kind: str, threads: None) -> None:
    make_tiny(tmp_path, kind)
    many = load_text(tmp_path, CPU, torch.bfloat16), load_vision(tmp_path, CPU, torch.bfloat16)
    assert torch.get_num_threads() == 3, "the caller's own number is untouched"
    torch.set_num_threads(1)
    one = load_text(tmp_path, CPU, torch.bfloat16), load_vision(tmp_path, CPU, torch.bfloat16)
    assert equal(many[0].trunk, one[0].trunk) and equal(many[1].weights, one[1].weights)  # type: ignore[attr-defined]


def test_an_error_on_a_loading_thread_is_the_callers(
    tmp_path: Path, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny(tmp_path, "dense")
    found = inventory(tmp_path)
    name, last = max((item for item in found.items() if item[0].startswith("model.")), key=lambda item: item[1].start)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(last.start + 1)
    # Cut off after its header was checked.
    monkeypatch.setattr("foveate.models.qwen3_5_weights.inventory", lambda folder: found)
    monkeypatch.setattr("foveate.models.qwen3_5_vision.inventory", lambda folder: found)
    load = load_vision if "visual" in name else load_text
    with pytest.raises(CheckpointError, match=f"{name} in model.safetensors cannot be read: the file ends too early"):
        load(tmp_path, CPU, torch.float32)


@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float64])
def test_reading_in_pieces_changes_nothing(
    tmp_path: Path, wanted: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveate.models.files.PIECE", 64)
    random = torch.Generator().manual_seed(0)
    tensors = {
        "wide": torch.randn(7, 33, generator=random),
        "half": torch.randn(5, 3, 3, generator=random).bfloat16(),
        "eight": torch.randn(9, 20, generator=random).to(torch.float8_e4m3fn),
        "one": torch.tensor(3.5),
        "none": torch.empty(0, 4),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    files = Files(tmp_path)
    for name, found in inventory(tmp_path).items():
        assert torch.equal(files.read(name, found, CPU, wanted), tensors[name].to(wanted)), name


@pytest.mark.parametrize("sizes", [(1, 1), (31, 5), (32, 64, 7), (100,)])
def test_turning_in_strips(sizes: tuple[int, ...]) -> None:
    parts = [torch.randn(size, 11) for size in sizes]
    assert torch.equal(turned(*parts), torch.cat(parts).T) and turned(*parts).is_contiguous()


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe", "moe_fused"])
def test_an_fp8_checkpoint_is_the_model_of_its_numbers(tmp_path: Path, kind: str) -> None:
    stored, plain = quantised(kind, KEPT)
    assert sum(tensor.dtype == torch.float8_e4m3fn for tensor in stored.values()) > 15
    folder = fp8_folder(tmp_path / "eight", kind, stored, modules_to_not_convert=["lm_head", *KEPT])
    make_tiny(tmp_path / "plain", kind)
    (tmp_path / "plain/model.safetensors.index.json").unlink(missing_ok=True)
    write_tensors(tmp_path / "plain", plain)
    want = load_text(tmp_path / "plain", CPU, torch.float32)
    got = load_text(folder, CPU, torch.float32)
    assert isinstance(got, Qwen35) and isinstance(want, Qwen35)
    assert equal(got.trunk, want.trunk), "on a CPU the numbers are unpacked on the way"
    if kind != "dense_tied":
        place = Place(CPU, torch.float32)
        assert equal(*(load_mtp(where, got.config, place) for where in (folder, tmp_path / "plain")))


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe", "moe_fused"])
def test_matrices_that_stay_in_eight_bits_give_the_same_logits(tmp_path: Path, kind: str, oracles: Any) -> None:
    stored, _ = quantised(kind, KEPT)
    folder = fp8_folder(tmp_path, kind, stored, modules_to_not_convert=list(KEPT))
    config = text_config(json.loads((folder / "config.json").read_text()))
    kept = Qwen35(config, load_trunk(folder, config, Place(CPU, torch.float32, eight_bit=True)))
    assert isinstance(kept.trunk.layers[0].mixer.into, Beside) and isinstance(kept.trunk.layers[0].mixer.out, Blocked)  # type: ignore[union-attr]
    case = oracles[kind].case(0)
    plain = load_text(folder, CPU, torch.float32)
    for size in (1000, 7):
        got, want = (run_chunks(Bench(model), case, [], size) for model in (kept, plain))
        assert (got - want).abs().max() < 1e-4, "rounding, blown up by norms of what is small at the start"


def test_modules_that_are_kept_stay_as_they_are(tmp_path: Path) -> None:
    stored, plain = quantised("dense", KEPT)
    folder = fp8_folder(tmp_path, "dense", stored, modules_to_not_convert=list(KEPT))
    config = text_config(json.loads((folder / "config.json").read_text()))
    trunk = load_trunk(folder, config, Place(CPU, torch.float32, eight_bit=True))
    parts = trunk.layers[0].mixer.into.parts  # type: ignore[union-attr]
    assert [type(part) for part in parts] == [Blocked, torch.Tensor]
    small = [plain[f"model.language_model.layers.0.linear_attn.in_proj_{name}.weight"] for name in "zba"]
    assert torch.equal(parts[1], torch.cat(small).T)


@pytest.mark.parametrize("words", [list(KEPT), ["re:.*in_proj_z", KEPT[1]], ["linear_attn.in_proj_z"]])
def test_an_eight_bit_tensor_of_a_kept_module_is_refused(tmp_path: Path, words: list[str]) -> None:
    folder = fp8_folder(tmp_path, "dense", quantised("dense")[0], modules_to_not_convert=words)
    with pytest.raises(CheckpointError, match=r"in_proj_z.weight is F8_E4M3, but quantization_config lists"):
        load_text(folder, CPU, torch.float32)


def test_scales_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    name = "model.language_model.layers.1.mlp.down_proj.weight_scale_inv"
    stored, _ = quantised("dense")
    fp8_folder(tmp_path, "dense", stored | {name: torch.ones(2, 1)})
    with pytest.raises(CheckpointError, match=r"down_proj.weight_scale_inv .* expected \[1, 1\], found \[2, 1\]"):
        load_text(tmp_path, CPU, torch.float32)
    del stored[name]
    write_tensors(tmp_path, stored)
    with pytest.raises(CheckpointError, match=r"down_proj.weight_scale_inv \[1, 1\] is missing"):
        load_text(tmp_path, CPU, torch.float32)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"quant_method": "awq"}, "quant_method 'awq'"),
        ({"quant_method": None}, "quant_method"),
        ({"weight_block_size": [64, 64]}, r"weight_block_size \[64, 64\]"),
        ({"weight_block_size": None}, "weight_block_size"),
        ({"fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"activation_scheme": "static"}, "activation_scheme 'static'"),
        ({"group_size": 32}, "group_size"),
    ],
)
def test_every_other_quantisation_is_refused_by_name(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    folder = make_tiny(tmp_path, "dense")
    config = json.loads((folder / "config.json").read_text())
    given = {name: value for name, value in (FP8 | change).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": given}))
    with pytest.raises(CheckpointError, match=f"quantization_config.{word}"):
        describe(folder)
