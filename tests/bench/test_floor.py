"""The floor by arithmetic: its formulas on round numbers, and its counts against what is published of the models."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from foveate.core.work import Peak, Work, encode_s, first_token_s, overlapped_s, peak_of, prefill_s, step_s
from foveate.models.qwen3_5_config import text_config, vision_config
from foveate.models.qwen3_5_weights import text_shapes
from foveate.models.qwen3_5_work import work_of
from tests.support.tiny import tiny_config

WORK = Work(
    weight_bytes=1000,
    token_flops=10,
    head_flops=50,
    pair_flops=2,
    context_bytes=3,
    state_bytes=7,
    patch_flops=4,
    patch_pair_flops=1,
    tower_bytes=600,
)
BY_BYTES, BY_FLOPS = Peak(bytes_s=100, flops_s=1e9), Peak(bytes_s=1e9, flops_s=10)


def test_a_decode_step_reads_weights_once_and_memory_for_each_stream() -> None:
    assert step_s(WORK, BY_BYTES, 1) == (1000 + 7) / 100
    assert step_s(WORK, BY_BYTES, 4, 20) == (1000 + 4 * (20 * 3 + 7)) / 100
    assert step_s(WORK, BY_FLOPS, 4, 20) == 4 * (10 + 50 + 20 * 2) / 10


def test_prefill_pays_for_tokens_pairs_and_one_head() -> None:
    assert prefill_s(WORK, BY_FLOPS, 3) == (3 * 10 + 6 * 2 + 50) / 10
    assert prefill_s(WORK, BY_BYTES, 3) == 10


def test_images_pay_for_patches_and_pairs_inside_each() -> None:
    assert encode_s(WORK, BY_FLOPS, [2, 3]) == (5 * 4 + 4 + 9) / 10
    assert encode_s(WORK, BY_BYTES, [2]) == 6 and encode_s(WORK, BY_BYTES, []) == 0


def test_one_device_adds_up_and_two_overlap() -> None:
    assert overlapped_s(1, 5.0, 3.0) == 8.0, "one image has nothing to hide behind"
    assert overlapped_s(4, 8.0, 4.0) == 2 + 3 * 2 + 1 and overlapped_s(4, 4.0, 8.0) == 1 + 3 * 2 + 2
    both = encode_s(WORK, BY_FLOPS, [4, 4]) + prefill_s(WORK, BY_FLOPS, 9)
    assert first_token_s(WORK, BY_FLOPS, 9, [4, 4]) == both
    assert first_token_s(WORK, BY_FLOPS, 9, [4, 4], apart=True) < both
    assert first_token_s(WORK, BY_FLOPS, 9, [], apart=True) == prefill_s(WORK, BY_FLOPS, 9)


def test_devices_are_known_by_their_makers_names() -> None:
    assert peak_of("NVIDIA H200") == Peak(4.8e12, 989e12) and peak_of("NVIDIA H100 80GB HBM3") is not None
    assert peak_of("cpu") is None and peak_of("NVIDIA GeForce GTX 1080") is None


@pytest.mark.parametrize(
    ("size", "gigabytes", "decode", "prefill", "tower"), [("4b", 8.5, 470, 66, 25), ("27b", 50.5, 79, 446, 32)]
)
def test_counts_agree_with_those_of_the_peer_comparison(
    size: str, gigabytes: float, decode: float, prefill: float, tower: float
) -> None:
    """Counted by others for these dimensions: bytes, TFLOP of 8257 prompt tokens and of 16 charts; their rates are at
    a measured 4.0 to 4.3 TB/s."""
    spec = importlib.util.spec_from_file_location(
        "make_dims", Path(__file__).resolve().parents[2] / "bench" / "make_dims.py"
    )
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    config = json.loads(json.dumps(made.config_of(size, False)))
    work = work_of(text_config(config), vision_config(config), 2)
    one = Peak(1.0, 1.0)
    assert work.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.03)
    assert 1 / step_s(work, Peak(4.1e12, 1e18), 1) == pytest.approx(decode, rel=0.06)
    assert prefill_s(work, Peak(1e18, 1.0), 8257) / 1e12 == pytest.approx(prefill, rel=0.1)
    assert encode_s(work, Peak(1e18, 1.0), [2052] * 16) / 1e12 == pytest.approx(tower, rel=0.15)
    eight = work_of(text_config(made.config_of(size, True)), None, 2)
    assert 0.5 < eight.weight_bytes / work.weight_bytes < 0.66, "all but the head and the small projections is halved"
    assert step_s(work, one, 1) > step_s(eight, one, 1)


def test_of_experts_only_the_chosen_ones_count() -> None:
    config = tiny_config("moe")
    text = text_config(config)
    shapes = text_shapes(text, fused=True)
    assert text.moe is not None
    layer = {name: shape for name, shape in shapes.items() if "layers.0.mlp.experts." in name}
    routed = sum(shape[0] * shape[1] * shape[2] for shape in layer.values()) * len(text.layer_types)
    dense = config | {"text_config": config["text_config"] | {"num_experts_per_tok": text.moe.experts}}
    saved = work_of(text_config(dense), None, 4).weight_bytes - work_of(text, None, 4).weight_bytes
    assert saved == 4 * routed * (1 - text.moe.top_k / text.moe.experts)
