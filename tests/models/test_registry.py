"""What a checkpoint says of itself, and how loading reports on the way."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from foveate.core.values import ImageRules, Sampling
from foveate.models.registry import default_sampling, describe, load_text, load_vision
from tests.support.tiny import END_OF_TEXT, IM_END, IMAGE_PAD, make_tiny, tiny_tensors


def test_describe_reads_no_tensor(tmp_path: Path) -> None:
    make_tiny(tmp_path, "moe")
    for file in tmp_path.glob("*.safetensors*"):
        file.unlink()
    card = describe(tmp_path)
    assert (card.model_type, card.max_positions, card.vocab_size, card.hidden_size) == ("qwen3_5_moe", 4096, 512, 64)
    assert card.axes == 3 and card.image_token_id == IMAGE_PAD
    assert card.image_rules == ImageRules(16, 2, 1024, 65536, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert card.eos_ids == {IM_END, END_OF_TEXT}
    assert card.sampling == Sampling(temperature=0.8, top_p=0.95, top_k=20)


def test_a_checkpoint_without_a_tower(tmp_path: Path) -> None:
    make_tiny(tmp_path, "dense")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["vision_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    card = describe(tmp_path)
    assert card.image_rules is None and card.image_token_id is None


def test_stop_ids_come_from_the_config_when_generation_is_silent(tmp_path: Path) -> None:
    make_tiny(tmp_path, "dense")
    (tmp_path / "generation_config.json").unlink()
    card = describe(tmp_path)
    assert card.eos_ids == {IM_END}, "text_config names one"
    assert card.sampling == Sampling()


def test_recommended_sampling() -> None:
    assert default_sampling({"do_sample": False, "temperature": 0.7}) == Sampling(temperature=0.0)
    assert default_sampling({"temperature": 0.7, "top_p": None, "repetition_penalty": 1.1}) == Sampling(
        temperature=0.7, repetition_penalty=1.1
    )


def test_progress_counts_the_bytes_of_each_half(tmp_path: Path) -> None:
    make_tiny(tmp_path, "dense_tied")
    sizes = {name: tensor.numel() * 4 for name, tensor in tiny_tensors("dense_tied").items()}
    vision = sum(size for name, size in sizes.items() if name.startswith("model.visual."))
    for load, want in ((load_vision, vision), (load_text, sum(sizes.values()) - vision)):
        seen: list[tuple[int, int]] = []
        load(tmp_path, "cpu", torch.bfloat16, lambda done, total, seen=seen: seen.append((done, total)))
        assert seen[-1] == (want, want)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen) and len(seen) > 10
