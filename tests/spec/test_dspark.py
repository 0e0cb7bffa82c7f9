"""DSpark's heads against their formulas written out, in DeepSpec's and in speculators' format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foveate.core.errors import CheckpointError
from foveate.models.draft_config import draft_config
from foveate.models.draft_weights import load_block_drafter
from foveate.run.cache import allocate
from tests.spec.test_dflash import PAGE, argmax, asked_of, config_of, oracle_of, pair, reference, seen_of, write
from tests.support.harness import tiny

RANK, DRAFT_VOCAB = 6, 90


def foreign(config: dict[str, Any], own_vocab: bool) -> dict[str, Any]:
    """The same drafter in speculators' words."""
    inner = config.pop("dflash_config")
    trunk = {name: config.pop(name) for name in list(config) if name not in HEADS}
    return config | {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "transformer_layer_config": trunk,
        "draft_vocab_size": DRAFT_VOCAB if own_vocab else 512,
        "block_size": inner["block_size"],
        "mask_token_id": inner["mask_token_id"],
        "aux_hidden_state_layer_ids": [i + 1 for i in inner["target_layer_ids"]],
    }


HEADS = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")


def tensors_of(config: dict[str, Any], kind: str, vocab: int) -> dict[str, Tensor]:
    tensors = {name: t.clone() for name, t in oracle_of(config, 3).state_dict().items()}
    gen = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=gen) * shape[-1] ** -0.5

    tensors |= {
        "markov_head.markov_w1.weight": 2 * draw(512, RANK),
        "markov_head.markov_w2.weight": 4 * draw(vocab, RANK),
    }
    if kind == "gated":
        tensors |= {"markov_head.gate_proj.weight": draw(RANK, 64 + RANK), "markov_head.gate_proj.bias": draw(RANK)}
    if kind == "rnn":
        tensors |= {"markov_head.joint_proj.weight": draw(3 * RANK, 64 + 2 * RANK)}
        tensors |= {"markov_head.joint_proj.bias": draw(3 * RANK)}
    return tensors | {"confidence_head.proj.weight": draw(1, 64 + RANK), "confidence_head.proj.bias": draw(1)}


def walk(t: dict[str, Tensor], kind: str, hidden: Tensor, logits: Tensor, anchor: int, d2t: Tensor | None) -> Any:
    """The formulas, one slot after another: tokens, biased logits and confidences."""
    previous, state, tokens, rows, sure = anchor, torch.zeros(RANK), [], [], []
    for h, row in zip(hidden, logits, strict=True):
        before = t["markov_head.markov_w1.weight"][previous]
        inner = before
        if kind == "gated":
            weight, bias = t["markov_head.gate_proj.weight"], t["markov_head.gate_proj.bias"]
            inner = torch.sigmoid(weight @ torch.cat([h, before]) + bias) * before
        if kind == "rnn":
            weight, bias = t["markov_head.joint_proj.weight"], t["markov_head.joint_proj.bias"]
            gate, new, out = (weight @ torch.cat([state, before, h]) + bias).chunk(3)
            state = torch.sigmoid(gate) * state + (1 - torch.sigmoid(gate)) * torch.tanh(new)
            inner = torch.tanh(out)
        row = row + t["markov_head.markov_w2.weight"] @ inner
        sure.append(
            torch.sigmoid(
                t["confidence_head.proj.weight"][0] @ torch.cat([h, before]) + t["confidence_head.proj.bias"][0]
            )
        )
        best = int(row.argmax())
        previous = best if d2t is None else best + int(d2t[best])
        tokens.append(previous)
        rows.append(row)
    return tokens, torch.stack(rows), torch.stack(sure)


@pytest.mark.parametrize("form", ["deepspec", "speculators", "own vocabulary"])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_heads_equal_their_formulas(kind: str, form: str, tmp_path: Path) -> None:
    plain = config_of("dflash")
    own = form == "own vocabulary"
    config = config_of("dflash", architectures=["Qwen3DSparkModel"], markov_rank=RANK, markov_head_type=kind)
    config |= {"enable_confidence_head": True, "confidence_head_with_markov": True}
    tensors = tensors_of(plain, kind, DRAFT_VOCAB if own else 512)
    d2t = None
    if own:
        d2t = torch.randint(0, 512 - DRAFT_VOCAB, (DRAFT_VOCAB,), generator=torch.Generator().manual_seed(1))
        tensors |= {
            "d2t": d2t,
            "t2d": torch.zeros(512, dtype=torch.bool),
            "lm_head.weight": torch.randn(DRAFT_VOCAB, 64),
        }
    folder = write(tmp_path, config if form == "deepspec" else foreign(config, own), tensors)
    drafter = load_block_drafter(folder, tiny("dense")[0], torch.device("cpu"), torch.float32)
    assert drafter.most_len == 6 and drafter.capture.layers == (1, 3), "the anchor's slot guesses too"
    memory, pages = allocate(drafter.memory_spec(), 24, PAGE, 2, "cpu"), torch.arange(24).view(2, 12)
    features = [torch.randn(17, 128), torch.randn(5, 128)]
    drafter.observe(seen_of(features, (0, 0), pages), memory)
    asked = asked_of([9, 70], (17, 5), pages, 6)
    states, guesses = drafter.block_states(asked, memory), drafter.propose(asked, memory, argmax)
    for row, anchor in enumerate((9, 70)):
        tokens, rows, sure = walk(tensors, kind, states[row], drafter.logits(states[row]), anchor, d2t)
        assert guesses.tokens[row].tolist() == tokens
        assert (guesses.confidence[row] - sure).abs().max() < 1e-5
        best = rows.log_softmax(-1).topk(guesses.ids.shape[-1])
        assert (guesses.logprobs[row] - best.values).abs().max() < 1e-4
        assert torch.equal(guesses.ids[row], best.indices if d2t is None else best.indices + d2t[best.indices])


def test_the_backbone_is_dflashs(tmp_path: Path) -> None:
    """The same tensors as DFlash give the same hidden states, which the package computes."""
    oracle, _ = pair("dflash", tmp_path / "plain", seed=3)
    config = config_of("dflash", architectures=["Qwen3DSparkModel"])
    folder = write(tmp_path / "spark", config, oracle.state_dict())
    drafter = load_block_drafter(folder, tiny("dense")[0], torch.device("cpu"), torch.float32)
    memory, pages = allocate(drafter.memory_spec(), 12, PAGE, 1, "cpu"), torch.arange(12)[None]
    features = torch.randn(9, 128)
    drafter.observe(seen_of([features], (0,), pages), memory)
    states = drafter.block_states(asked_of([5], (9,), pages, 6), memory)
    assert (states[0] - reference(oracle, features, 5)[0]).abs().max() < 1e-5


def test_speculators_dflash_keeps_its_anchor_and_may_see_both_ways() -> None:
    config = foreign(config_of("sliding"), False) | {"speculators_model_type": "dflash"}
    got = draft_config(config)
    assert not got.from_anchor and got.markov is None and got.causal == (True, False) and got.layers == (1, 3)
    assert draft_config(config | {"sliding_window_non_causal": True}).causal == (False, False)
    with pytest.raises(CheckpointError, match="eagle3"):
        draft_config(config | {"speculators_model_type": "eagle3"})
