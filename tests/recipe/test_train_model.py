"""The trainable model and both drafters compute what the released architectures compute (fp32, CPU, toy size)."""

import json
import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from recipe.accept import Checkpoint, shape_of, tokens_per_step
from recipe.chunks import scan_back, scan_states, solve_inverse
from recipe.draft import DFlash, MtpHead, block_mask
from recipe.encode import Encoder, patchify
from recipe.export import export_draft, export_model, masters_from
from recipe.model import ChartReader, initialise
from recipe.ops import gated_delta
from recipe.packs import PackShape, fill_pack
from recipe.shapes import preset
from recipe.staging import StaticPack
from recipe.tokenizer import special_ids, spelling_tokenizer, train_tokenizer

PACKS = PackShape(rows=3, row=192, patches=512, labels=128, longest_image=64, images=96, segments=64)


def toy_conversation(rng: random.Random) -> Any:
    """Noise for charts, numbers for answers."""
    charts = []
    for _ in range(rng.randint(0, 3)):
        sides = (32 * rng.randint(2, 4), 32 * rng.randint(2, 5), 3)
        pixels = np.random.RandomState(rng.randint(0, 999)).randint(0, 255, sides, dtype=np.uint8)
        charts.append(SimpleNamespace(image=Image.fromarray(pixels), glyphs=[("A", 20, 20), ("b", 24, 21)]))
    turns = [SimpleNamespace(question="value?", answer=str(rng.randint(0, 99)), kind="value") for _ in range(4)]
    parts = [*(("image", i) for i in range(len(charts))), ("text", "value?")]
    return SimpleNamespace(charts=charts, turns=turns, parts=parts)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["What is the value? 1 2 3", "The title is a title."] * 3, 480)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A random toy checkpoint with both drafters, in bf16 files."""
    folder, shape = tmp_path_factory.mktemp("toy"), preset("toy")
    reader, dflash, mtp = ChartReader(shape), DFlash(shape), MtpHead(shape)
    for seed, module in enumerate((reader, dflash, mtp)):
        initialise(module, seed, 8)
    masters = {**reader.state_dict(), **{f"mtp.{k}": v for k, v in mtp.state_dict().items()}}
    export_model(folder, shape, masters, tokenizer)
    export_draft(folder / "dflash", shape, dict(dflash.state_dict()), tokenizer)
    return folder


@pytest.fixture(scope="module")
def static(tokenizer: Any) -> StaticPack:
    buffer = bytearray(PACKS.nbytes)
    fill_pack(PACKS, Encoder(tokenizer), toy_conversation, "0", PACKS.view(buffer))
    out = StaticPack(PACKS, torch.device("cpu"))
    out.load(np.frombuffer(buffer, np.uint8))
    return out


def segments(static: StaticPack) -> list[tuple[int, int]]:
    """First and past-last token of every conversation in the pack."""
    edges, ids = static["edges"].tolist(), static["ids"].flatten()
    return [(a, b) for a, b in pairwise(edges) if a < b and bool(ids[a:b].any())]


def images_of(static: StaticPack, first: int, past: int) -> dict[str, torch.Tensor]:
    """One conversation's images the way transformers wants them."""
    rows = static["source"][first:past] - PACKS.tokens
    rows = rows[rows >= 0].long()
    if not len(rows):
        return {}
    index = (rows[:, None] * 4 + torch.arange(4)).flatten()
    pixels = (static["patches"][index].float() / 127.5 - 1).view(-1, 3, 1, 256).expand(-1, -1, 2, -1)
    cells, grids, at = static["cells"][index], [], 0
    while at < len(index):
        grids.append([1, *cells[at, 2:].tolist()])
        at += int(cells[at, 2] * cells[at, 3])
    return {"pixel_values": pixels.reshape(len(index), -1), "image_grid_thw": torch.tensor(grids)}


@torch.no_grad()
def test_packed_model_equals_transformers(checkpoint: Path, static: StaticPack, tokenizer: Any) -> None:
    from transformers import Qwen3_5ForConditionalGeneration

    theirs = Qwen3_5ForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ours = Checkpoint(checkpoint).reader
    hidden, *_ = ours(static.pack(), PACKS.longest_image, torch.float32)
    logits = ours.logits(hidden)
    pad, seen = tokenizer.token_to_id("<|image_pad|>"), 0
    for first, past in segments(static):
        ids = static["ids"].flatten()[first:past].long()[None]
        images = images_of(static, first, past)
        seen += len(images.get("image_grid_thw", ()))
        theirs.model.rope_deltas = None
        out = theirs(input_ids=ids, mm_token_type_ids=(ids == pad).int(), use_cache=False, **images).logits[0]
        assert (out - logits[first:past]).abs().max() < 1e-4, "a packed conversation differs from the same one alone"
    assert seen > 2


@torch.no_grad()
def test_mtp_equals_transformers_layer(checkpoint: Path) -> None:
    from transformers import Qwen3_5TextConfig
    from transformers.modeling_layers import MtpLayer
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

    config = json.loads((checkpoint / "config.json").read_text())["text_config"]
    config["layer_types"], config["num_hidden_layers"] = ["full_attention"], 1
    text = Qwen3_5TextConfig(**config)
    text._attn_implementation = "eager"
    theirs = MtpLayer(text, Qwen3_5DecoderLayer, Qwen3_5RMSNorm, 0)
    ours = Checkpoint(checkpoint).mtp
    assert ours is not None
    names = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "post_norm"}
    state = {}
    for name, tensor in ours.state_dict().items():
        top = name.split(".")[0]
        state[name.replace("layers.0", "mtp_block") if top == "layers" else name.replace(top, names[top], 1)] = tensor
    theirs.load_state_dict(state)
    embeds, hidden = torch.randn(1, 64, 64), torch.randn(1, 64, 64)
    rope = ChartReader(shape_of(checkpoint)).rope(torch.arange(64).expand(3, -1), torch.float32)
    mask = torch.full((64, 64), float("-inf")).triu(1)[None, None]
    want = theirs(embeds, hidden, (rope[0][None], rope[1][None]), mask, None, None)
    got = ours(embeds, hidden, rope, torch.tensor([0, 64], dtype=torch.int32))
    assert (got - want).abs().max() < 1e-4


@torch.no_grad()
def test_dflash_equals_the_released_package(checkpoint: Path) -> None:
    model = pytest.importorskip("dflash.model")
    theirs = model.DFlashDraftModel.from_pretrained(checkpoint / "dflash", dtype=torch.float32).eval()
    ours = Checkpoint(checkpoint).dflash
    assert ours is not None
    context, block = 20, 8
    features, words = torch.randn(1, context, 128), torch.randn(1, block, 64)
    want = theirs(torch.arange(context + block)[None], noise_embedding=words, target_hidden=features)
    age = torch.arange(context + block)[None]  # the trunk's row goes on behind the anchor
    padded = torch.cat([features, torch.randn(1, block, 128)], 1)
    mask = block_mask(torch.tensor([[context]]), age, block)
    got = ours(words, padded, (age, age[:, context:]), mask)
    assert (got - want).abs().max() < 1e-4


def test_gradients_reach_every_parameter(static: StaticPack) -> None:
    reader = ChartReader(preset("toy"))
    initialise(reader, 0, 8)
    hidden, rows, patches = reader(static.pack(), PACKS.longest_image, torch.float32)
    (reader.logits(hidden).logsumexp(-1).mean() + rows.square().mean() + patches.mean()).backward()
    for name, parameter in reader.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_chunked_delta_rule_equals_the_recurrence_and_its_gradient() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 128, 2, 8, dtype=torch.float32) for _ in range(3))
    decay, beta = -torch.rand(1, 128, 2), torch.rand(1, 128, 2)
    inputs = [t.requires_grad_() for t in (q, k, v, decay, beta)]
    state, outs = torch.zeros(2, 8, 8), []
    unit = [t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k)]
    for t in range(128):
        state = decay[0, t].exp()[:, None, None] * state
        key = unit[1][0, t]
        wrote = beta[0, t][:, None] * (v[0, t] - torch.einsum("hkv,hk->hv", state, key))
        state = state + key[..., None] * wrote[:, None]
        outs.append(torch.einsum("hkv,hk->hv", state, unit[0][0, t] * 8**-0.5))
    want = torch.stack(outs)[None]
    got = gated_delta(*inputs)
    assert (got - want).abs().max() < 1e-5
    weight = torch.randn_like(want)
    ours = torch.autograd.grad((got * weight).sum(), inputs)
    theirs = torch.autograd.grad((want * weight).sum(), inputs)
    assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) < 1e-4


def test_inverse_survives_equal_keys() -> None:
    a = torch.ones(1, 64, 64).tril(-1)  # a plain background: every key the same, nothing forgotten
    inverse = solve_inverse(a)
    assert ((torch.eye(64) + a) @ inverse - torch.eye(64)).abs().max() < 1e-4


def test_scan_and_its_gradient_agree() -> None:
    p, b, gamma = torch.randn(1, 1, 3, 4, 4) * 0.2, torch.randn(1, 1, 3, 4, 4), torch.rand(1, 1, 3)
    b.requires_grad_()
    grad = torch.randn(1, 1, 3, 4, 4)
    (want,) = torch.autograd.grad((scan_states(p, b, gamma) * grad).sum(), b)
    assert (scan_back(grad, p, gamma) - want).abs().max() < 1e-5


def test_export_round_trip(checkpoint: Path) -> None:
    official = {k: v for file in checkpoint.glob("model*.safetensors") for k, v in load_file(file).items()}
    patch = official["model.visual.patch_embed.proj.weight"]
    assert patch.shape == (64, 3, 2, 16, 16)
    assert set(masters_from(official)) == set(ChartReader(shape_of(checkpoint)).state_dict())
    assert any(name.startswith("mtp.layers.0.self_attn") for name in official)


def test_patches_match_the_image_processor() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    pixels = np.random.RandomState(0).randint(0, 255, (256, 288, 3), dtype=np.uint8)
    folder = {"patch_size": 16, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": 65536, "longest_edge": 1048576}, **folder)
    want = processor(images=[Image.fromarray(pixels)], return_tensors="pt")["pixel_values"]
    got = torch.from_numpy(patchify(pixels)).float() / 127.5 - 1
    assert (got.view(-1, 3, 1, 256).expand(-1, -1, 2, -1).flatten(1) - want).abs().max() < 1e-5


def test_tokens_per_step_counts_the_bonus() -> None:
    assert tokens_per_step([[False]] * 4) == 1.0
    assert tokens_per_step([[True, False], [False], [True], [False]]) == 2.0


def test_special_ids_stand_behind_the_learned_ones(tokenizer: Any) -> None:
    ids = special_ids(tokenizer)
    assert ids["<|endoftext|>"] == 480 and ids["<|image_pad|>"] == 486 and ids["<|mask|>"] == 494
    text = "Größe 12.5 %\n→ 3"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_spelling_keeps_wording_whole_and_spells_the_rest() -> None:
    talks = [[f"What is the value of {name}?", "12"] for name in ("Bakery", "Manganese", "Oslo")]
    tokens = spelling_tokenizer(talks, learned=480, share=0.5)
    assert tokens.encode("What is the value of Oslo?").tokens[5:] == ["Ġ", "O", "s", "l", "o", "?"]
    assert tokens.token_to_id("<|endoftext|>") == 480
    assert tokens.decode(tokens.encode("Größe 12.5 %\n→ 3").ids) == "Größe 12.5 %\n→ 3"
