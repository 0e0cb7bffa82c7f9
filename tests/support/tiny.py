"""Complete tiny checkpoint folders of the Qwen3.5 family, written from nothing but a seed.

Owns four random models that between them cover what released checkpoints vary in: tied and untied embeddings, head
ratios, layer patterns given as a list or as an interval, dense and MoE, both spellings of the experts, one file or
shards. Each folder has config, weights in the official names, a byte-level tokenizer with the family's special
tokens, a chat template and the preprocessor and generation settings. Values are scaled so that logits are not flat
and DeltaNet decays remember. Knows nothing of foveate: what it writes is what a release would hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

KINDS = ("dense", "dense_tied", "moe", "moe_fused")
VOCAB = 512
IMAGE_PAD, VIDEO_PAD, VISION_START, VISION_END, END_OF_TEXT, IM_START, IM_END = range(500, 507)
SPECIAL = {
    "<|image_pad|>": IMAGE_PAD,
    "<|video_pad|>": VIDEO_PAD,
    "<|vision_start|>": VISION_START,
    "<|vision_end|>": VISION_END,
    "<|endoftext|>": END_OF_TEXT,
    "<|im_start|>": IM_START,
    "<|im_end|>": IM_END,
    "<think>": 507,
    "</think>": 508,
    "<tool_call>": 509,
    "</tool_call>": 510,
    "<|mask|>": 511,
}

CHAT_TEMPLATE = r"""
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'text' -%}
{{ part.text }}
{%- elif part.type in ('image', 'image_url') -%}
{%- if message.role == 'system' -%}
{{ raise_exception('System message cannot contain images.') }}
{%- endif -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking -%}
<think>
{% endif -%}
{%- endif -%}
""".lstrip()


def make_tiny(folder: str | Path, kind: str = "dense", seed: int = 0) -> Path:
    """Write the checkpoint folder of a kind (one of KINDS) and return its path; equal arguments give equal files.

    "moe" and "moe_fused" hold the same values in the two spellings of the experts.
    """
    assert kind in KINDS, kind
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(kind)
    _write_json(folder / "config.json", config)
    _write_json(folder / "preprocessor_config.json", _preprocessor())
    ending = {"eos_token_id": [IM_END, END_OF_TEXT], "pad_token_id": END_OF_TEXT}
    sampling = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.95}
    _write_json(folder / "generation_config.json", ending | sampling)
    _write_tokenizer(folder)
    write_tensors(folder, tiny_tensors(kind, seed), shards={"dense_tied": 3, "moe": 2}.get(kind, 1))
    return folder


def tiny_config(kind: str) -> dict[str, Any]:
    """config.json of a kind."""
    moe, tied = kind.startswith("moe"), kind == "dense_tied"
    family = "qwen3_5_moe" if moe else "qwen3_5"
    text = _tied_text() if tied else _text()
    if moe:
        text |= {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
        text |= {"num_experts": 8, "num_experts_per_tok": 2}
        del text["intermediate_size"]
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "num_position_embeddings": 16}
    if tied:
        vision = {"depth": 3, "hidden_size": 48, "intermediate_size": 80, "num_heads": 3, "num_position_embeddings": 36}
    vision |= {"patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3}
    vision |= {"out_hidden_size": text["hidden_size"], "hidden_act": "gelu_pytorch_tanh"}
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration" if moe else "Qwen3_5ForConditionalGeneration"],
        "model_type": family,
        "dtype": "float32",
        "image_token_id": IMAGE_PAD,
        "video_token_id": VIDEO_PAD,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
        "tie_word_embeddings": tied,
        "text_config": text | {"model_type": f"{family}_text", "tie_word_embeddings": tied},
        "vision_config": vision | {"model_type": f"{family}_vision", "deepstack_visual_indexes": []},
    }


def _text() -> dict[str, Any]:
    """Three DeltaNet layers and one full one, given as an interval."""
    return _common() | {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": _rope(0.25, [2, 1, 1]),
    }


def _tied_text() -> dict[str, Any]:
    """Five layers given as a list, one KV head, equal numbers of DeltaNet heads, values wider than keys."""
    return _common() | {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 5,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "mtp_num_hidden_layers": 0,
        "rope_parameters": _rope(0.5, [3, 3, 2]),
    }


def _common() -> dict[str, Any]:
    sizes = {"vocab_size": VOCAB, "head_dim": 32, "linear_conv_kernel_dim": 4, "max_position_embeddings": 4096}
    kinds = {"rms_norm_eps": 1e-6, "attention_bias": False, "attn_output_gate": True, "hidden_act": "silu"}
    return sizes | kinds | {"pad_token_id": None, "eos_token_id": IM_END}


def _rope(share: float, sections: list[int]) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share}
    return rope | {"mrope_section": sections, "mrope_interleaved": True}


def _preprocessor() -> dict[str, Any]:
    """One to sixty-four rows per image."""
    return {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": 32 * 32, "longest_edge": 256 * 256},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def tiny_tensors(kind: str, seed: int = 0) -> dict[str, Tensor]:
    """The random weights of a kind in fp32 by their official names."""
    config = tiny_config(kind)
    random = torch.Generator().manual_seed(seed)
    tensors = {name: _draw(name, shape, random) for name, shape in _shapes(config)}
    _liken_keys(tensors, config["text_config"])
    head = "model.language_model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    # A logit of 0 is never the largest: no greedy answer holds placeholders, for which a reference would want images.
    tensors[head][IMAGE_PAD : VISION_END + 1] = 0
    return _fuse_experts(tensors) if kind == "moe_fused" else tensors


def _liken_keys(tensors: dict[str, Tensor], text: dict[str, Any]) -> None:
    """Make DeltaNet keys resemble queries.

    Unrelated ones have products near 0, hence tiny outputs at the start, which the norm behind them blows up together
    with their rounding errors: comparisons would then measure noise.
    """
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    for name, tensor in tensors.items():
        if name.endswith(("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight")):
            tensor[keys : 2 * keys] = 0.8 * tensor[:keys] + 0.6 * tensor[keys : 2 * keys]


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    text, vision = config["text_config"], config["vision_config"]
    hidden, trunk = text["hidden_size"], "model.language_model."
    yield trunk + "embed_tokens.weight", (VOCAB, hidden)
    yield trunk + "norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCAB, hidden)
    for i in range(text["num_hidden_layers"]):
        full = text["layer_types"][i] == "full_attention" if "layer_types" in text else (i + 1) % 4 == 0
        yield from _layer_shapes(f"{trunk}layers.{i}.", text, full)
    yield from _vision_shapes(vision)
    for _ in range(text["mtp_num_hidden_layers"]):
        yield "mtp.fc.weight", (hidden, 2 * hidden)
        yield from (
            (f"mtp.{name}.weight", (hidden,)) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        )
        yield from _layer_shapes("mtp.layers.0.", text, True)


def _layer_shapes(at: str, text: dict[str, Any], full: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = text["hidden_size"]
    yield at + "input_layernorm.weight", (hidden,)
    yield at + "post_attention_layernorm.weight", (hidden,)
    if full:
        query, kv = text["num_attention_heads"] * text["head_dim"], text["num_key_value_heads"] * text["head_dim"]
        sides = {
            "q_proj": (2 * query, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, query),
        }
        yield from ((f"{at}self_attn.{name}.weight", shape) for name, shape in sides.items())
        yield from ((f"{at}self_attn.{name}_norm.weight", (text["head_dim"],)) for name in "qk")
    else:
        heads, value_size = text["linear_num_value_heads"], text["linear_value_head_dim"]
        value = heads * value_size
        mixed = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + value
        sides = {"in_proj_qkv": (mixed, hidden), "in_proj_z": (value, hidden), "in_proj_b": (heads, hidden)}
        sides |= {"in_proj_a": (heads, hidden), "out_proj": (hidden, value), "norm": (value_size,)}
        yield from ((f"{at}linear_attn.{name}.weight", shape) for name, shape in sides.items())
        yield at + "linear_attn.conv1d.weight", (mixed, 1, text["linear_conv_kernel_dim"])
        yield at + "linear_attn.A_log", (heads,)
        yield at + "linear_attn.dt_bias", (heads,)
    yield from _mlp_shapes(at + "mlp.", text)


def _mlp_shapes(at: str, text: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = text["hidden_size"]

    def gated(prefix: str, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{prefix}gate_proj.weight", (inner, hidden)
        yield f"{prefix}up_proj.weight", (inner, hidden)
        yield f"{prefix}down_proj.weight", (hidden, inner)

    if "num_experts" not in text:
        yield from gated(at, text["intermediate_size"])
        return
    yield at + "gate.weight", (text["num_experts"], hidden)
    for e in range(text["num_experts"]):
        yield from gated(f"{at}experts.{e}.", text["moe_intermediate_size"])
    yield from gated(at + "shared_expert.", text["shared_expert_intermediate_size"])
    yield at + "shared_expert_gate.weight", (1, hidden)


def _vision_shapes(vision: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    at, size, inner = "model.visual.", vision["hidden_size"], vision["intermediate_size"]

    def affine(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{at}{name}.weight", shape
        yield f"{at}{name}.bias", shape[:1]

    yield from affine("patch_embed.proj", size, 3, 2, 16, 16)
    yield at + "pos_embed.weight", (vision["num_position_embeddings"], size)
    for i in range(vision["depth"]):
        for name, shape in (("norm1", (size,)), ("norm2", (size,)), ("attn.qkv", (3 * size, size))):
            yield from affine(f"blocks.{i}.{name}", *shape)
        for name, shape in (
            ("attn.proj", (size, size)),
            ("mlp.linear_fc1", (inner, size)),
            ("mlp.linear_fc2", (size, inner)),
        ):
            yield from affine(f"blocks.{i}.{name}", *shape)
    yield from affine("merger.norm", size)
    yield from affine("merger.linear_fc1", 4 * size, 4 * size)
    yield from affine("merger.linear_fc2", vision["out_hidden_size"], 4 * size)


def _draw(name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Unit-scale products everywhere, nothing left at 0 or 1."""
    noise = torch.randn(shape, generator=random)
    for ending, rule in _RULES:
        if name.endswith(ending):
            return rule(noise)
    if "norm" in name:
        plain = name.endswith("linear_attn.norm.weight") or "visual" in name  # the others are stored as weight - 1
        return 0.1 * noise + (1.0 if plain and name.endswith("weight") else 0.0)
    if len(shape) == 1:
        return 0.1 * noise
    return noise * noise[0].numel() ** -0.5


_RULES: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("A_log", lambda noise: (0.5 + 3.5 * torch.sigmoid(noise)).log()),
    ("dt_bias", lambda noise: noise - 3.0),
    ("embed_tokens.weight", lambda noise: 0.3 * noise),
    ("lm_head.weight", lambda noise: noise * 2.0 * noise.shape[1] ** -0.5),
    ("pos_embed.weight", lambda noise: 0.5 * noise),
)


def _fuse_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The other released spelling: gate rows above up rows, experts stacked."""
    kept = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for at in sorted({name.partition(".experts.")[0] + ".experts." for name in tensors if ".experts." in name}):
        count = sum(name.startswith(at) and name.endswith("down_proj.weight") for name in tensors)
        parts = [[tensors[f"{at}{e}.{part}_proj.weight"] for e in range(count)] for part in ("gate", "up", "down")]
        gate, up, down = (torch.stack(part) for part in parts)
        kept |= {at + "gate_up_proj": torch.cat([gate, up], 1), at + "down_proj": down}
    return kept


def write_tensors(folder: Path, tensors: dict[str, Tensor], shards: int = 1) -> None:
    """model.safetensors, or several files and their index."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, where = list(tensors), {}
    for n in range(shards):
        file = f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[n::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": where})


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(islice(_merges(), IMAGE_PAD - len(alphabet)))
    vocab = {token: i for i, token in enumerate(alphabet + [a + b for a, b in merges])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # shown to users by the released tokenizers too
    tokenizer.add_tokens([AddedToken(text, special=text not in words, normalized=False) for text in SPECIAL])
    assert all(tokenizer.token_to_id(text) == i for text, i in SPECIAL.items()) and tokenizer.get_vocab_size() == VOCAB
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    facts |= {"clean_up_tokenization_spaces": False, "model_max_length": 4096}
    _write_json(folder / "tokenizer_config.json", facts)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _merges() -> Iterator[tuple[str, str]]:
    """Syllables and word starts, enough to fill the ids below the special tokens; `Ġ` is a space."""
    vowels, consonants = "aeiou", "tnshrdlcmfpgwybvkjxqz"
    yield from product(consonants, vowels)
    yield from product(vowels, consonants)
    yield from product("Ġ", "tasiwocbpmfdhlrnegyukvjqxz")
    yield from product("Ġ", "0123456789ABC")


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n")
