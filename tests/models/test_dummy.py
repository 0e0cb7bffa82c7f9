"""`--load-format dummy`: a model of a checkpoint's dimensions out of its JSON files alone."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_config import text_config
from foveate.models.qwen3_5_weights import load_mtp, load_trunk
from foveate.models.registry import describe, load_text, load_vision
from foveate.models.weights import Place
from foveate.ops.fp8 import Blocked
from foveate.prompt.tokens import Tokens
from tests.models.oracle import Bench, run_chunks
from tests.support.checkpoints import FP8, bare, equal, tensors_of
from tests.support.tiny import make_tiny

BENCH = Path(__file__).resolve().parents[2] / "bench"
KINDS = ("dense", "dense_tied", "moe")


@pytest.mark.parametrize("kind", KINDS)
def test_a_dummy_is_shaped_like_the_checkpoint_and_equal_each_time(tmp_path: Path, kind: str) -> None:
    folder = bare(tmp_path / "bare", kind)
    real = load_text(make_tiny(tmp_path / "real", kind), "cpu", torch.float32)
    tower = load_vision(tmp_path / "real", "cpu", torch.float32)
    dummy = load_text(folder, "cpu", torch.float32, dummy=True)
    eyes = load_vision(folder, "cpu", torch.float32, dummy=True)
    for one, other in ((real.trunk, dummy.trunk), (tower.weights, eyes.weights)):  # type: ignore[attr-defined]
        shapes = [[(t.shape, t.dtype) for t in tensors_of(part)] for part in (one, other)]
        assert shapes[0] == shapes[1] and not equal(one, other)
    assert equal(dummy.trunk, load_text(folder, "cpu", torch.float32, dummy=True).trunk)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_its_logits_are_finite_and_not_flat_in_bfloat16(tmp_path: Path, kind: str, oracles: Any) -> None:
    folder, case = bare(tmp_path, kind), oracles[kind].case(2)
    model, tower = (load(folder, "cpu", torch.bfloat16, dummy=True) for load in (load_text, load_vision))
    rows = tower.encode(list(case.pictures))
    assert all(part.isfinite().all() for part in rows)
    logits = run_chunks(Bench(model), case, rows, 7)
    assert logits.isfinite().all() and 0.3 < logits.std() < 30
    assert logits[:5].argmax(-1).unique().numel() > 1, "the answer depends on the prompt"


def test_a_deep_dummy_keeps_the_size_of_its_states(tmp_path: Path, oracles: Any) -> None:
    folder = bare(tmp_path, "dense")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    logits = run_chunks(Bench(load_text(folder, "cpu", torch.bfloat16, dummy=True)), oracles["dense"].case(0), [], 1000)
    assert logits.isfinite().all() and 0.3 < logits.std() < 30


def test_a_dummy_of_a_quantised_checkpoint_holds_eight_bits(tmp_path: Path, oracles: Any) -> None:
    kept = ["model.language_model.layers.0.mlp.up_proj"]
    folder = bare(tmp_path, "dense", quantization_config=FP8 | {"modules_to_not_convert": kept})
    config = text_config(json.loads((folder / "config.json").read_text()))
    trunk = load_trunk(folder, config, Place(torch.device("cpu"), torch.float32, dummy=True, eight_bit=True))
    assert isinstance(trunk.layers[0].mixer.out, Blocked) and isinstance(trunk.layers[1].mlp.gate_up, Blocked)  # type: ignore[union-attr]
    assert not isinstance(trunk.layers[0].mlp.gate_up, Blocked), "half of it is kept"  # type: ignore[union-attr]
    got = run_chunks(Bench(Qwen35(config, trunk)), oracles["dense"].case(0), [], 1000)
    plain = load_text(folder, "cpu", torch.float32, dummy=True)
    assert (got - run_chunks(Bench(plain), oracles["dense"].case(0), [], 1000)).abs().max() < 1e-4


def test_the_mtp_head_can_be_a_dummy_too(tmp_path: Path) -> None:
    folder = bare(tmp_path, "dense")
    config = text_config(json.loads((folder / "config.json").read_text()))
    place = Place(torch.device("cpu"), torch.float32, dummy=True)
    real = load_mtp(make_tiny(tmp_path / "real", "dense"), config, Place(torch.device("cpu"), torch.float32))
    shapes = [[t.shape for t in tensors_of(part)] for part in (load_mtp(folder, config, place), real)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(("size", "fp8"), [("4b", False), ("27b", True)])
def test_the_folders_for_benches_are_complete(tmp_path: Path, size: str, fp8: bool) -> None:
    spec = importlib.util.spec_from_file_location("make_dims", BENCH / "make_dims.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.write(tmp_path, size, fp8)
    card, tokens = describe(tmp_path), Tokens.load(tmp_path)
    assert card.vocab_size == 248_320 == tokens.vocab_size and card.image_rules is not None
    assert card.hidden_size == {"4b": 2560, "27b": 5120}[size]
    bundled = Tokens.load(made.DEMO)
    assert all(tokens.raw(token) for token in range(bundled.vocab_size, 248_320)), "an id without a text"
    assert tokens.encode("Compare the charts.") == bundled.encode("Compare the charts.")
    config = text_config(json.loads((tmp_path / "config.json").read_text()))
    assert (config.blocks is not None) == fp8
