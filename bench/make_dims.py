"""Writes folders with the real dimensions of Qwen3.5 models and no weights, for `--load-format dummy`.

Owns the dimensions (the released config.json files' values). The tokenizer, its special tokens and the chat template
are the bundled model's, filled up with made-up words to the released size: every id that random weights come up with
has a text to stream, and the file takes about as long to load as a real one.

    python bench/make_dims.py /tmp/qwen3_5-4b 4b
    python bench/make_dims.py /tmp/qwen3_5-27b-fp8 27b --fp8
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

DEMO = Path(__file__).resolve().parent.parent / "foveate" / "demo"
VOCAB = 248_320
SHARED = ("tokenizer_config.json", "chat_template.jinja", "generation_config.json")
# hidden, layers, heads, kv heads, inner, DeltaNet value heads, tied; vision depth, hidden, inner, heads.
SIZES: dict[str, tuple[int, ...]] = {
    "0.8b": (1024, 24, 8, 2, 3584, 16, True, 12, 768, 3072, 12),
    "2b": (2048, 24, 8, 2, 6144, 16, True, 24, 1024, 4096, 16),
    "4b": (2560, 32, 16, 4, 9216, 32, True, 24, 1024, 4096, 16),
    "9b": (4096, 32, 16, 4, 12288, 32, False, 27, 1152, 4304, 16),
    "27b": (5120, 64, 24, 4, 17408, 48, False, 27, 1152, 4304, 16),
}
PICTURES = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
    "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.language_model.embed_tokens", "model.visual"],
}


def config_of(size: str, fp8: bool) -> dict[str, Any]:
    """config.json of a size; special tokens are the bundled model's."""
    hidden, layers, heads, kv_heads, inner, value_heads, tied, *vision = SIZES[size]
    demo = json.loads((DEMO / "config.json").read_text("utf-8"))
    text = {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attn_output_gate": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "full_attention_interval": 4,
        "max_position_embeddings": 262_144,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": bool(tied),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    }
    sides = dict(zip(("depth", "hidden_size", "intermediate_size", "num_heads"), vision, strict=True))
    tower = demo["vision_config"] | sides | {"out_hidden_size": hidden, "num_position_embeddings": 2304}
    config = demo | {"tie_word_embeddings": bool(tied), "text_config": text, "vision_config": tower}
    return config | ({"quantization_config": FP8} if fp8 else {})


def tokenizer() -> dict[str, Any]:
    """The bundled tokenizer with words up to the released size; no merge leads to them, so prompts stay as they are."""
    spec: dict[str, Any] = json.loads((DEMO / "tokenizer.json").read_text("utf-8"))
    taken = {*spec["model"]["vocab"].values(), *(token["id"] for token in spec["added_tokens"])}
    words = ("Ġ" + "".join(letters) for letters in itertools.product("qxzjvkwybdfghclmnprstaeiou", repeat=4))
    fresh = (word for word in words if word not in spec["model"]["vocab"])
    spec["model"]["vocab"] |= {next(fresh): token for token in range(VOCAB) if token not in taken}
    return spec


def write(folder: Path, size: str, fp8: bool = False) -> None:
    """Write everything but weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        shutil.copyfile(DEMO / name, folder / name)
    files = {"config.json": config_of(size, fp8), "preprocessor_config.json": PICTURES, "tokenizer.json": tokenizer()}
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a folder of a model's dimensions, without weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--fp8", action="store_true", help="with matrices in the fp8 format of the official releases")
    options = parser.parse_args()
    write(options.folder, options.size, options.fp8)
