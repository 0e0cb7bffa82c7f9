"""DeepSeek V4 checkpoints as files: quantised tensors load to exactly what they stand for, wrong ones are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from foveate.core.errors import CheckpointError
from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.deepseek_v4_config import Compression, v4_config
from foveate.models.registry import describe, load_text
from tests.models.v4_bench import Bench, in_chunks
from tests.models.v4_naive import FP4, FP8, Naive, Prompt
from tests.models.v4_release import RELEASE
from tests.support.tiny_v4 import make_tiny_v4, tiny_v4_config, tiny_v4_tensors, write_json

EIGHT = ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "w1", "w2", "w3")
QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
Tensors = dict[str, Tensor]


def bytes_of(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)


def eight_bit(shape: tuple[int, int], random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scale codes, and the float64 values that the format's description gives them, all at random."""
    rows, columns = shape
    codes = bytes_of(random, rows, columns)
    codes[codes % 128 == 127] = 0  # not a number
    scales = torch.randint(118, 125, (-(-rows // 128), -(-columns // 128)), generator=random, dtype=torch.uint8)
    table = [FP8[code] for code in range(127)]
    values = torch.tensor([[table[c % 128] * (-1 if c >= 128 else 1) for c in row] for row in codes.tolist()])
    for r in range(rows):
        for block in range(scales.shape[1]):
            values[r, block * 128 : block * 128 + 128] *= 2.0 ** (int(scales[r // 128, block]) - 127)
    return codes.view(torch.float8_e4m3fn), scales.view(torch.float8_e8m0fnu), values


def four_bit(shape: tuple[int, int], random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The same of packed float4."""
    rows, columns = shape
    packed = bytes_of(random, rows, columns // 2)
    scales = torch.randint(120, 126, (rows, columns // 32), generator=random, dtype=torch.uint8)
    values = torch.zeros(shape)
    for r in range(rows):
        for k in range(columns):
            code = int(packed[r, k // 2]) >> (4 if k % 2 else 0) & 15
            values[r, k] = FP4[code % 8] * (-1 if code >= 8 else 1) * 2.0 ** (int(scales[r, k // 32]) - 127)
    return packed.view(torch.int8), scales.view(torch.float8_e8m0fnu), values


def quantised(kind: str, seed: int = 0) -> tuple[Tensors, Tensors]:
    """A checkpoint's tensors as a release stores them, and plain ones of the same values."""
    random, plain = torch.Generator().manual_seed(seed), tiny_v4_tensors(kind, seed)
    stored = dict(plain)
    for name, tensor in plain.items():
        module = name.split(".")[-2] if name.endswith(".weight") else ""
        if module not in EIGHT or "compressor" in name:
            continue
        make = four_bit if ".experts." in name else eight_bit
        stored[name], stored[name.removesuffix("weight") + "scale"], values = make(tuple(tensor.shape), random)  # type: ignore[arg-type]
        plain[name] = values
    return stored, plain


def write(folder: Path, kind: str, tensors: Tensors, **fields: Any) -> Path:
    make_tiny_v4(folder, kind)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    write_json(folder / "config.json", tiny_v4_config(kind) | fields)
    return folder


def loaded(folder: Path) -> DeepseekV4:
    model = load_text(folder, "cpu", torch.float32)
    assert isinstance(model, DeepseekV4)
    return model


def weights_of(model: DeepseekV4) -> list[Tensor]:
    """Every matrix of the layers that a release quantises."""
    out = []
    for layer in model.trunk.layers:
        attention, experts = layer.attention, layer.experts
        out += [attention.into, attention.up, attention.out_low, attention.out]
        out += [attention.indexer.up] if attention.indexer else []
        out += [experts.routed.gate_up, experts.routed.down, experts.shared_in, experts.shared_out]
    return out


def test_every_code_of_both_formats(tmp_path: Path) -> None:
    """All float8 codes, all float4 pairs, scales over their range, blocks cut off at both edges."""
    from foveate.ops.fp8 import dequantise
    from foveate.ops.quant import unpack_fp4

    random = torch.Generator().manual_seed(0)
    codes, scales, values = eight_bit((130, 300), random)
    assert torch.equal(dequantise(codes, scales), values.float())
    assert len(set(codes.view(torch.uint8).flatten().tolist())) == 254
    packed, scales, values = four_bit((64, 64), random)
    packed.view(torch.uint8)[:8].copy_(torch.arange(256).view(8, 32))
    assert torch.equal(dequantise(unpack_fp4(packed), scales, (1, 32))[8:], values[8:])
    first = unpack_fp4(packed)[0, :32].tolist()
    assert first == [v for low in range(16) for v in ((-1) ** (low // 8) * FP4[low % 8], 0.0)]


def test_quantised_files_load_to_the_exact_values(tmp_path: Path) -> None:
    stored, plain = quantised("v4")
    got = loaded(write(tmp_path / "stored", "v4", stored, quantization_config=QUANTIZATION, expert_dtype="fp4"))
    want = loaded(write(tmp_path / "plain", "v4", plain))
    assert all(torch.equal(a, b) for a, b in zip(weights_of(got), weights_of(want), strict=True))
    assert got.config.simulate_qat and not want.config.simulate_qat


def test_the_switch_is_a_field_of_the_file(tmp_path: Path) -> None:
    stored, plain = quantised("v4")
    fields = {"quantization_config": QUANTIZATION, "expert_dtype": "fp4", "simulate_qat": False}
    ids = list(range(20, 60))
    got = in_chunks(Bench(loaded(write(tmp_path / "stored", "v4", stored, **fields))), ids, [9])
    want = in_chunks(Bench(loaded(write(tmp_path / "plain", "v4", plain))), ids, [9])
    assert torch.equal(got, want)


def test_rounding_where_inference_rounds(tmp_path: Path) -> None:
    """A value at the edge between two codes may fall to either side, so a few numbers differ; the median may not."""
    config = tiny_v4_config("v4") | {"simulate_qat": True}
    ids, tensors = list(range(30, 66)), tiny_v4_tensors("v4")
    got = in_chunks(Bench(loaded(write(tmp_path, "v4", tensors, simulate_qat=True))), ids, [7])
    want = Naive(tensors, config, qat=True, dtype=torch.float32).logits(Prompt(ids))
    unrounded = Naive(tensors, config, dtype=torch.float32).logits(Prompt(ids))
    assert (got - unrounded).abs().median() > 0.03, "the rounding is hardly there"
    assert (got - want).abs().median() < 1e-4
    assert (got[:4] - want[:4]).abs().max() < 1e-3, "before anything can have fallen to the other side"


def refused(make: Callable[[], Any], *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        make()
    for word in words:
        assert word in caught.value.message, caught.value.message


NORM, TABLE = "layers.1.attn.kv_norm.weight", "layers.0.ffn.gate.tid2eid"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(NORM), (NORM, "missing", "[32]")),
        (lambda t: t.update({NORM: torch.zeros(33)}), (NORM, "expected [32]", "found [33]")),
        (lambda t: t.update({"layers.0.ffn.gate.bias": torch.zeros(8)}), ("unexpected", "layers.0.ffn.gate.bias")),
        (lambda t: t.update({TABLE: t[TABLE].float()}), (TABLE, "F32", "integers")),
        (lambda t: t.update({TABLE: t[TABLE] + 1}), (TABLE, "beyond the 8")),
        (lambda t: t.update({NORM: t[NORM].to(torch.float8_e4m3fn)}), (NORM, "F8_E4M3", "not supported")),
        (lambda t: t.update({"head.weight": t["head.weight"].to(torch.int32)}), ("head.weight", "I32")),
    ],
)
def test_wrong_tensors_are_named(tmp_path: Path, change: Callable[[Tensors], Any], words: tuple[str, ...]) -> None:
    tensors = tiny_v4_tensors("v4")
    change(tensors)
    refused(lambda: loaded(write(tmp_path, "v4", tensors)), *words)


def test_wrong_scales_are_named(tmp_path: Path) -> None:
    stored, _ = quantised("v4")
    scale = "layers.1.ffn.experts.3.w2.scale"
    whole = stored.pop(scale)
    refused(lambda: loaded(write(tmp_path / "a", "v4", stored)), scale, "missing", "[64, 1]")
    stored[scale] = whole[:, :0]
    refused(lambda: loaded(write(tmp_path / "b", "v4", stored)), scale, "expected [64, 1]")
    stored[scale] = torch.zeros(64, 1, dtype=torch.int64)
    refused(lambda: loaded(write(tmp_path / "c", "v4", stored)), scale, "I64", "no scale")


def test_tables_of_either_width_of_integers(tmp_path: Path) -> None:
    tensors = tiny_v4_tensors("v4")
    want = loaded(write(tmp_path / "a", "v4", tensors)).trunk.layers[0].experts.table
    tensors[TABLE] = tensors[TABLE].int()
    got = loaded(write(tmp_path / "b", "v4", tensors)).trunk.layers[0].experts.table
    assert got is not None and want is not None and torch.equal(got, want)


def test_a_drafters_tensors_are_left_alone(tmp_path: Path) -> None:
    tensors = tiny_v4_tensors("v4") | {"mtp.0.enorm.weight": torch.ones(64)}
    assert loaded(write(tmp_path, "v4", tensors)).layer_count == 5


def test_the_release_is_understood() -> None:
    config = v4_config(RELEASE)
    kinds = [kind.compression for kind in config.layers]
    assert kinds[:2] == [None, None] and kinds[2::2] == [Compression(4, True)] * 21
    assert kinds[3::2] == [Compression(128, False)] * 20
    assert [kind.hashed for kind in config.layers] == [True] * 3 + [False] * 40
    assert config.rotary == 64 and config.experts.shared_inner == 2048 and config.simulate_qat and not config.seeing
    assert v4_config(RELEASE | {"vision_n_layers": 32}).seeing


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compress_ratios": [0, 16] * 22}, ("compress_ratios", "16")),
        ({"compress_ratios": [0, 4]}, ("2 layer_types", "43 layers")),
        ({"compress_ratios": None}, ("lacks", "compress_ratios")),
        ({"num_hash_layers": None}, ("lacks", "num_hash_layers")),
        ({"qk_rope_head_dim": None, "o_groups": None}, ("lacks", "qk_rope_head_dim", "o_groups")),
        ({"o_groups": 7}, ("o_groups",)),
        ({"scoring_func": "softmax"}, ("scoring_func", "'softmax'")),
        ({"topk_method": "greedy"}, ("topk_method",)),
        ({"tie_word_embeddings": True}, ("tie_word_embeddings",)),
        ({"num_key_value_heads": 2}, ("num_key_value_heads",)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, ("rope_scaling", "'linear'")),
        ({"rope_scaling": {"type": "yarn"}}, ("lacks", "rope_scaling.factor")),
        ({"quantization_config": QUANTIZATION | {"fmt": "e5m2"}}, ("quantization_config.fmt", "e5m2")),
        ({"quantization_config": QUANTIZATION | {"weight_block_size": [64, 64]}}, ("weight_block_size",)),
        ({"expert_dtype": "int4"}, ("expert_dtype", "int4")),
        ({"index_head_dim": 96}, ("index_head_dim", "power of two")),
        ({"index_head_dim": 32}, ("64 rotated", "index_head_dim")),
        ({"hidden_size": "wide"}, ("hidden_size", "'wide'")),
        ({"hidden_size": True}, ("hidden_size",)),
        ({"rms_norm_eps": 0}, ("rms_norm_eps",)),
        ({"num_experts_per_tok": 300}, ("num_experts_per_tok",)),
        ({"layer_types": ["full_attention"] * 43}, ("layer_types", "full_attention")),
    ],
)
def test_unsupported_settings_are_refused_by_name(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(lambda: v4_config(RELEASE | changes), *words)


def test_an_unquantised_description_needs_no_tensor(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", RELEASE)
    card = describe(tmp_path)
    assert card.vocab_size == 129280 and card.max_positions == 1048576 and card.eos_ids == {1}
