"""Complete tiny checkpoint folders of the DeepSeek V4 family, written from nothing but a seed.

Owns random models that between them cover what a release varies in: both spellings of the layers, sliding windows with
CSA and HCA at the released and at other ratios, hash and score routing, numbers of streams and of shared experts, one
file or shards, with eyes and without. Tensors have the official names, logits are not flat, nothing is left at 0 or 1.
Indexers have 32 heads, or their scores would tie at zero. Knows nothing of foveate: what it writes is what a release
would hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from tests.support.tiny import _merges, write_tensors
from tests.support.tiny_v4_vision import vision_fields, vision_tensors

V4_KINDS = ("v4", "v4_official", "v4_wide")  # text only; "v4_vision" is "v4" with eyes
VOCAB = 320
SPECIAL = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
)
SPECIAL += ("</think>", "<｜deepseek_image｜>", "｜DSML｜", "<tool_result>", "</tool_result>", "<｜noise｜>")
PLAIN = ("<think>", "</think>", "｜DSML｜", "<tool_result>", "</tool_result>")  # shown to users by released tokenizers
SLIDING, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"


def make_tiny_v4(folder: str | Path, kind: str = "v4", seed: int = 0) -> Path:
    """Write the checkpoint folder of a kind and return its path; equal arguments give equal files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", tiny_v4_config(kind))
    write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False})
    write_v4_tokenizer(folder)
    write_tensors(folder, tiny_v4_tensors(kind, seed), shards=2 if kind == "v4_official" else 1)
    return folder


def tiny_v4_config(kind: str) -> dict[str, Any]:
    """config.json of a kind."""
    changes = {"v4": _plain, "v4_vision": _plain, "v4_official": _official, "v4_wide": _wide}[kind]()
    return _common() | changes | (vision_fields() if kind == "v4_vision" else {})


def _common() -> dict[str, Any]:
    facts = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "dtype": "float32"}
    facts |= {"vocab_size": VOCAB, "num_key_value_heads": 1, "scoring_func": "sqrtsoftplus", "norm_topk_prob": True}
    facts |= {"topk_method": "noaux_tc", "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False}
    facts |= {"rms_norm_eps": 1e-6, "hc_eps": 1e-6, "swiglu_limit": 10.0, "routed_scaling_factor": 1.5}
    facts |= {"max_position_embeddings": 4096, "rope_theta": 10000.0, "compress_rope_theta": 160000.0}
    return facts | {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "num_nextn_predict_layers": 0}


def _yarn(name: str) -> dict[str, Any]:
    return {name: "yarn", "factor": 16.0, "original_max_position_embeddings": 256, "beta_fast": 32, "beta_slow": 1}


def _plain() -> dict[str, Any]:
    """The library's spelling, free ratios, two hash layers."""
    return {
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "head_dim": 32,
        "q_lora_rank": 32,
        "partial_rotary_factor": 0.5,
        "num_experts_per_tok": 2,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "rope_parameters": _yarn("rope_type"),
        "layer_types": [SLIDING, SLIDING, CSA, HCA, CSA],
        "compress_rates": {CSA: 4, HCA: 8},
        "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe", "moe"],
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "sliding_window": 8,
        "o_groups": 2,
        "o_lora_rank": 16,
        "index_n_heads": 32,
        "index_head_dim": 32,
        "index_topk": 3,
    }


def _official() -> dict[str, Any]:
    """The releases' spelling and ratios, every width another one, one ratio more for a drafter's block."""
    return {
        "hidden_size": 48,
        "moe_intermediate_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "head_dim": 24,
        "q_lora_rank": 40,
        "qk_rope_head_dim": 8,
        "num_experts_per_tok": 3,
        "n_routed_experts": 12,
        "n_shared_experts": 1,
        "rope_scaling": _yarn("type"),
        "compress_ratios": [0, 4, 128, 4, 0],
        "num_hash_layers": 1,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 7,
        "sliding_window": 12,
        "o_groups": 3,
        "o_lora_rank": 8,
        "index_n_heads": 32,
        "index_head_dim": 16,
        "index_topk": 5,
        "swiglu_limit": 0.7,  # small enough that the clamps act
    }


def _wide() -> dict[str, Any]:
    """No indexer and no hash layer, plain rope everywhere, two shared experts, a window wider than its entries."""
    return {
        "hidden_size": 32,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "head_dim": 16,
        "q_lora_rank": 24,
        "partial_rotary_factor": 0.25,
        "num_experts_per_tok": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "layer_types": [HCA, SLIDING, HCA],
        "compress_rates": {CSA: 4, HCA: 5},
        "mlp_layer_types": ["moe"] * 3,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 3,
        "sliding_window": 20,
        "o_groups": 4,
        "o_lora_rank": 8,
        "index_n_heads": 32,
        "index_head_dim": 16,
        "index_topk": 2,
    }


def tiny_v4_tensors(kind: str, seed: int = 0) -> dict[str, Tensor]:
    """The random weights of a kind in fp32 by their official names."""
    config = tiny_v4_config(kind)
    random = torch.Generator().manual_seed(seed)
    tensors = {name: draw(name, shape, config, random) for name, shape in v4_shapes(config)}
    return tensors | (vision_tensors(config, seed) if kind == "v4_vision" else {})


def v4_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the text model."""
    hidden, streams = config["hidden_size"], config["hc_mult"]
    yield "embed.weight", (VOCAB, hidden)
    yield "head.weight", (VOCAB, hidden)
    yield "norm.weight", (hidden,)
    yield "hc_head_fn", (streams, streams * hidden)
    yield "hc_head_base", (streams,)
    yield "hc_head_scale", (1,)
    ratios = {SLIDING: 0, CSA: 4, HCA: 128} | config.get("compress_rates", {})
    for i in range(config["num_hidden_layers"]):
        if "layer_types" in config:
            kind, hashed = config["layer_types"][i], config["mlp_layer_types"][i] == "hash_moe"
        else:
            kind = {0: SLIDING, 4: CSA, 128: HCA}[config["compress_ratios"][i]]
            hashed = i < config["num_hash_layers"]
        yield from v4_layer_shapes(f"layers.{i}.", config, ratios[kind], kind == CSA, hashed)


def v4_layer_shapes(
    at: str, config: dict[str, Any], ratio: int = 0, sparse: bool = False, hashed: bool = False
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one layer below a prefix; without a ratio a block as drafters have it."""
    hidden, streams, dim, rank = (config[n] for n in ("hidden_size", "hc_mult", "head_dim", "q_lora_rank"))
    heads, groups, low = config["num_attention_heads"], config["o_groups"], config["o_lora_rank"]
    outputs = streams * (2 + streams)
    for name in ("attn", "ffn"):
        yield f"{at}{name}_norm.weight", (hidden,)
        yield f"{at}hc_{name}_fn", (outputs, streams * hidden)
        yield f"{at}hc_{name}_base", (outputs,)
        yield f"{at}hc_{name}_scale", (3,)
    yield at + "attn.wq_a.weight", (rank, hidden)
    yield at + "attn.q_norm.weight", (rank,)
    yield at + "attn.wq_b.weight", (heads * dim, rank)
    yield at + "attn.wkv.weight", (dim, hidden)
    yield at + "attn.kv_norm.weight", (dim,)
    yield at + "attn.attn_sink", (heads,)
    yield at + "attn.wo_a.weight", (groups * low, heads * dim // groups)
    yield at + "attn.wo_b.weight", (hidden, groups * low)
    if ratio:
        yield from _compressor(at + "attn.compressor.", hidden, ratio, dim, sparse)
    if sparse:
        index_heads, index_dim = config["index_n_heads"], config["index_head_dim"]
        yield at + "attn.indexer.wq_b.weight", (index_heads * index_dim, rank)
        yield at + "attn.indexer.weights_proj.weight", (index_heads, hidden)
        yield from _compressor(at + "attn.indexer.compressor.", hidden, ratio, index_dim, True)
    count, inner = config["n_routed_experts"], config["moe_intermediate_size"]
    yield at + "ffn.gate.weight", (count, hidden)
    if hashed:
        yield at + "ffn.gate.tid2eid", (VOCAB, config["num_experts_per_tok"])
    else:
        yield at + "ffn.gate.bias", (count,)
    if config.get("vision_n_layers"):
        yield at + "ffn.gate.bias_vl", (count,)
    for expert in [f"experts.{e}" for e in range(count)] + ["shared_experts"]:
        for name in ("w1", "w3"):
            yield f"{at}ffn.{expert}.{name}.weight", (inner, hidden)
        yield f"{at}ffn.{expert}.w2.weight", (hidden, inner)


def _compressor(at: str, hidden: int, ratio: int, dim: int, sparse: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    wide = 2 * dim if sparse else dim
    yield at + "wkv.weight", (wide, hidden)
    yield at + "wgate.weight", (wide, hidden)
    yield at + "ape", (ratio, wide)
    yield at + "norm.weight", (dim,)


def draw(name: str, shape: tuple[int, ...], config: dict[str, Any], random: torch.Generator) -> Tensor:
    """Unit-scale products, and nothing at rest."""
    if name.endswith("tid2eid"):
        count = config["n_routed_experts"]
        return torch.rand(shape[0], count, generator=random).argsort(-1)[:, : shape[1]].contiguous()
    noise = torch.randn(shape, generator=random)
    if "norm" in name.rsplit(".", 2)[-2:][0]:
        return 1.0 + 0.1 * noise
    if name.endswith("_scale"):
        return 0.5 + torch.rand(shape, generator=random)
    if name.endswith(("_base", "attn_sink", "ape")):
        return 0.5 * noise
    if name.endswith("embed.weight"):
        return noise
    if len(shape) == 1:
        return (0.3 if name.endswith("bias_vl") else 0.1) * noise
    return noise * shape[-1] ** -0.5


def write_v4_tokenizer(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json; the family's template is not in the folder, as in the releases."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(islice(_merges(), VOCAB - len(SPECIAL) - len(alphabet)))
    words = [*alphabet, *(a + b for a, b in merges)]
    vocab = {token: len(SPECIAL) + i for i, token in enumerate(words)} | {token: i for i, token in enumerate(SPECIAL)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=text not in PLAIN, normalized=False) for text in SPECIAL])
    assert tokenizer.get_vocab_size() == VOCAB and tokenizer.token_to_id("<｜User｜>") == 3
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    facts |= {"pad_token": SPECIAL[2], "clean_up_tokenization_spaces": False, "model_max_length": 4096}
    write_json(folder / "tokenizer_config.json", facts)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """A file as releases have it."""
    path.write_text(json.dumps(data, indent=2) + "\n")
