"""The MTP head against transformers' MtpLayer: in pieces, in batches, behind images' positions, fed back."""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from foveate.models.drafting import Asked, Seen
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_mtp import MtpDrafter
from foveate.models.qwen3_5_weights import has_mtp, load_mtp
from foveate.models.weights import Place
from foveate.run.cache import allocate
from tests.support.harness import tiny

PAGE = 4
NAMES = {"enorm.": "pre_fc_norm_embedding.", "hnorm.": "pre_fc_norm_hidden.", "eh_proj.": "fc."}
NAMES |= {"mtp_block.": "layers.0.", "post_norm.": "norm."}


def drafter_of(kind: str) -> tuple[MtpDrafter, Qwen35, Path]:
    model, _, folder = tiny(kind)
    assert isinstance(model, Qwen35) and has_mtp(folder)
    weights = load_mtp(folder, model.config, Place(torch.device("cpu"), torch.float32))
    return MtpDrafter(weights, model, 4), model, folder


def oracle_of(folder: Path) -> tuple[nn.Module, nn.Module]:
    """transformers' layer with the checkpoint's own tensors, and its rotary embedding."""
    from transformers import AutoConfig
    from transformers.modeling_layers import MtpLayer

    config = deepcopy(AutoConfig.from_pretrained(folder).text_config)
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    code = import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    layer = MtpLayer(config, code.Qwen3_5DecoderLayer, code.Qwen3_5RMSNorm, 0).float().eval()
    stored = load_file(folder / "model.safetensors")
    names = {name: next(new + name.removeprefix(old) for old, new in NAMES.items() if name.startswith(old))
             for name in layer.state_dict()}  # fmt: skip
    layer.load_state_dict({name: stored["mtp." + official] for name, official in names.items()})
    return layer, code.Qwen3_5TextRotaryEmbedding(config)


@torch.no_grad()
def reference(folder: Path, model: Qwen35, ids: Tensor, states: Tensor, positions: Tensor) -> Tensor:
    """The layer's outputs for the pairs (state p, token p + 1): ids [pairs + 1], states [pairs, hidden]."""
    layer, rotary = oracle_of(folder)
    embeds = model.embed(ids[1:])[None]
    where = positions[:, None]
    count = len(states)
    mask = torch.full((1, 1, count, count), float("-inf")).triu(1)
    return layer(
        embeds,
        states[None],
        position_ids=where[0],
        past_key_values=None,
        position_embeddings=rotary(embeds, where),
        attention_mask=mask,
    )[0]


def argmax(logits: Tensor, depth: int) -> Tensor:
    return logits.argmax(-1)


def place(length: int, seed: int) -> Tensor:
    """Positions as around an image: the axes part in the middle and go on from a lower number."""
    gen = torch.Generator().manual_seed(seed)
    line = torch.arange(length).expand(3, -1).clone()
    line[:, 5:9] = 5 + torch.randint(0, 3, (3, 4), generator=gen)
    line[:, 9:] = torch.arange(8, 8 + length - 9)
    return line


def test_outputs_equal_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, model, folder = drafter_of("dense")
    memory = allocate(drafter.memory_spec(), 40, PAGE, 3, "cpu")
    for tensor in (*memory.paged.values(), *memory.state.values()):
        tensor.fill_(float("nan"))
    gen = torch.Generator().manual_seed(0)
    lens, pages = (23, 12), torch.randperm(36, generator=gen).view(3, 12)[:2]
    ids = [torch.randint(0, 256, (n + 1,), generator=gen) for n in lens]
    states = [torch.randn(n, model.hidden_size, generator=gen) for n in lens]
    positions = [place(n + 4, seed) for seed, n in enumerate(lens)]
    cuts = {0: [0, 1, 2, 11, 23], 1: [0, 7, 7, 8, 12]}
    for at in range(4):  # in unequal pieces, one of them a single first token, one empty for the second sequence
        rows = [row for row in range(2) if cuts[row][at] < cuts[row][at + 1]]
        spans = [slice(cuts[row][at], cuts[row][at + 1]) for row in rows]
        parts = list(zip(rows, spans, strict=True))
        drafter.observe(
            Seen(
                ids=torch.cat([ids[row][span] for row, span in parts]),
                positions=torch.cat([positions[row][:, span] for row, span in parts], 1),
                past_lens=tuple(span.start for span in spans),
                lens=tuple(span.stop - span.start for span in spans),
                pages=pages[rows],
                slots=torch.tensor([2, 0])[rows],
                features=None,
                final=torch.cat([states[row][span] for row, span in parts]),
            ),
            memory,
        )
    heads: list[Tensor] = []
    head = model.head
    monkeypatch.setattr(model, "head", lambda hidden: heads.append(hidden.clone()) or head(hidden))
    depth_positions = torch.stack([positions[row][:, n - 1 : n + 3] for row, n in enumerate(lens)], 1)
    anchors = torch.stack([one[-1] for one in ids])
    asked = Asked(anchors, lens, depth_positions, pages, torch.tensor([2, 0]), 3)
    guesses = drafter.propose(asked, memory, argmax)
    for row, n in enumerate(lens):
        seen, known = states[row], ids[row]
        for depth in range(3):  # an output takes the place of the state that does not exist yet
            want = reference(folder, model, known, seen, positions[row][:, : n + depth])[-1]
            assert (heads[depth][row] - want).abs().max() < 1e-5
            assert int(guesses.tokens[row, depth]) == int(head(want[None]).argmax())
            seen, known = torch.cat([seen, want[None]]), torch.cat([known, guesses.tokens[row, depth : depth + 1]])
