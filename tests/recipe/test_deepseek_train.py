"""Training the DeepSeek V4 reader and its drafter at toy size on a CPU: loss, resuming, determinism, the whole run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recipe.run
from foveate.models.deepseek_v4_draft_weights import v4_draft_kind
from foveate.models.registry import describe, load_text
from recipe.__main__ import parse, run_of
from recipe.deepseek_draft import SparkTrainer, sample_blocks, spark_loss, watch
from recipe.deepseek_experts import Gate, balance
from recipe.deepseek_init import muon_parts
from recipe.deepseek_packs import fill_block_pack
from recipe.deepseek_run import SightRun, sight_plan
from recipe.deepseek_train import sight_learner
from recipe.feed import FeedPlan, PackFeed
from recipe.journal import Journal
from recipe.run import RunPlan
from recipe.staging import Stager
from recipe.train import Trainer, TrainPlan, saved_step
from recipe.train_draft import DraftPlan
from tests.recipe.sights import CPU, SHAPE, buffer, exported, filled, noise, packs, tokenizer

PLAN = TrainPlan(steps=6, warmup=1, log_every=2, save_every=3, lr=1e-2, adam_lr=1e-2)


def fitted(folder: Path, steps: int, load: Path | None = None, first: int = 0) -> Trainer:
    trainer = Trainer(SHAPE, packs(), replace(PLAN, steps=steps), CPU, sight_learner)
    buffers = [buffer(str(i), packs()) for i in range(steps)]
    trainer.prepare(buffers[0])
    if load is not None:
        trainer.load(load)
    trainer.fit(Stager(trainer.static, iter(buffers[trainer.step : first or None])), folder, Journal(folder))
    return trainer


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    trainer = fitted(tmp_path, 6)
    assert trainer.step == 6 and saved_step(tmp_path / "state.pt") == 6
    losses = [float(row.split(",")[2]) for row in (tmp_path / "loss.csv").read_text().splitlines()[1:]]
    assert len(losses) == 3 and losses[-1] < losses[0]


def test_a_resumed_run_equals_an_unbroken_one_and_a_second_one(tmp_path: Path) -> None:
    whole, again = fitted(tmp_path / "whole", 4), fitted(tmp_path / "again", 4)
    fitted(tmp_path / "part", 4, first=2)
    assert saved_step(tmp_path / "part" / "state.pt") == 2
    resumed = fitted(tmp_path / "part", 4, load=tmp_path / "part" / "state.pt")
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, again.tensors()[name]), name
        assert torch.equal(tensor, resumed.tensors()[name]), name
    moved = [name for name, held in whole.reader.named_buffers() if name.endswith("bias_vl") and held.any()]
    assert len(moved) == len(SHAPE.text.layers), "routers' biases are part of what is kept"


def test_biases_move_towards_even_use() -> None:
    gate = Gate(SHAPE.text, hashed=False)
    x, image = torch.randn(64, SHAPE.text.hidden), torch.arange(64) < 20
    gate.weight.data[0] = 5 * x.mean(0)
    gate.weight.data[1:] = 0.1 * torch.randn(SHAPE.text.experts - 1, SHAPE.text.hidden)
    shares = gate(x, torch.zeros(64, dtype=torch.int64), image)
    assert torch.equal(gate.load[0] + gate.load[1], (shares > 0).sum(0).float()) and gate.load[1].sum() == 20 * 2
    balance(gate)
    busiest, idlest = int(gate.load[0].argmax()), int(gate.load[0].argmin())
    assert gate.bias[busiest] < 0 < gate.bias[idlest]


@pytest.mark.skipif(shutil.which("g++") is None, reason="nothing to compile with")
def test_a_compiled_gate_chooses_as_it_does_uncompiled() -> None:
    """Two scatters into zeros once came out of the compiler as one."""
    gate = exported()[1].layers[-1].ffn.gate
    x, ids, image = torch.randn(96, SHAPE.text.hidden), torch.zeros(96, dtype=torch.int64), torch.arange(96) % 3 == 0
    compiled = torch.compile(gate, dynamic=False)(x, ids, image)
    assert (compiled - gate(x, ids, image)).abs().max() < 1e-5


def test_matrices_are_orthogonalised_part_by_part() -> None:
    text, trainer = SHAPE.text, Trainer(SHAPE, packs(), PLAN, CPU, sight_learner)
    parts = {name: muon_parts(name, p, text) for name, p in trainer.reader.named_parameters()}
    assert parts["layers.0.ffn.experts.w2"] == [text.inner] * text.experts
    assert parts["layers.1.attn.wo_a.weight"] == [text.group_rank] * text.groups
    assert parts["sight.vision.blocks.0.attn.wqkv.weight"] == [SHAPE.vision.hidden] * 3
    for name in ("embed.weight", "head.weight", "layers.0.hc_attn_fn", "layers.2.ffn.gate.weight", "hc_head.fn"):
        assert parts[name] == [], f"{name} is Adam's"


def test_feed_fills_this_familys_packs(tmp_path: Path) -> None:
    run = SightRun(RunPlan(tmp_path, SHAPE, packs()))
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    feed = PackFeed(packs(), tmp_path / "tokenizer.json", noise, FeedPlan(5, 2, uses=1, workers=1), run.filling())
    got = [one.copy() for one in feed.buffers()]
    feed.close()
    assert [bytes(one) for one in got] == [bytes(buffer(f"5/{i}", packs())) for i in range(2)]
    assert run.filling().fill is fill_block_pack


def test_blocks_begin_inside_answers_and_see_no_image() -> None:
    torch.manual_seed(0)
    static, trainer = filled("2"), Trainer(SHAPE, packs(), PLAN, CPU, sight_learner)
    trainer.static.load(buffer("2", packs()))
    watched = watch(trainer.reader, trainer.static, SHAPE.draft.target_layers, torch.float32)
    pack, size = static.pack(), SHAPE.draft.block
    blocks = sample_blocks(pack, watched, SHAPE, count=3, noise_id=500)
    assert watched.features.shape[-1] == 2 * SHAPE.text.hidden and (blocks.weights[..., 0] > 0).any()
    for row in range(len(pack.ids)):
        for number, anchor in enumerate(blocks.anchors[row].tolist()):
            mine = slice(number * size, (number + 1) * size)
            seen = blocks.seen[row, number * size]
            assert seen[: 3 * size].nonzero().flatten().tolist() == list(range(mine.start, mine.stop))
            context = seen[3 * size :].nonzero().flatten()
            assert not pack.image[row, context].any() and (context < anchor).all()
            assert (context >= pack.spans.start[row, anchor]).all() and len(context) <= SHAPE.text.window
            assert blocks.ids[row, mine].tolist() == [int(pack.ids[row, anchor]), *[500] * (size - 1)]
            if blocks.weights[row, number, 0] > 0:
                assert watched.answers[row, anchor - 1] and watched.answers[row, anchor]


def test_loss_counts_leading_guesses_and_teaches_confidence() -> None:
    labels, weights = torch.tensor([[[1, 2, 3]]]), torch.ones(1, 1, 3)
    logits = 20 * torch.nn.functional.one_hot(torch.tensor([[[1, 0, 3]]]), 4).float()
    good, figures = spark_loss(logits, torch.tensor([[[9.0, -9.0, 9.0]]]), labels, weights)
    bad, _ = spark_loss(logits, torch.tensor([[[-9.0, 9.0, -9.0]]]), labels, weights)
    assert figures[1] == 1 and good < bad


def test_the_drafter_learns_and_leaves_the_model_alone(tmp_path: Path) -> None:
    trainer = Trainer(SHAPE, packs(), PLAN, CPU, sight_learner)
    before = {name: tensor.clone() for name, tensor in trainer.reader.state_dict().items()}
    drafter = SparkTrainer(SHAPE, packs(), DraftPlan(steps=8, blocks=6, log_every=4, lr=1e-2), trainer.reader, 500)
    torch.manual_seed(1)
    drafter.prepare(buffer("0", packs()))
    drafter.fit(Stager(drafter.static, iter([buffer("0", packs())] * 8)), Journal(tmp_path))
    assert drafter.step == 8
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.reader.state_dict().items())
    static_loss = [float(drafter.loss()[1][0]) for _ in range(4)]
    fresh = SparkTrainer(SHAPE, packs(), DraftPlan(blocks=6), trainer.reader, 500)
    fresh.static.load(buffer("0", packs()))
    assert np.mean(static_loss) < np.mean([float(fresh.loss()[1][0]) for _ in range(4)])


def test_the_whole_run_leaves_a_folder_that_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizer, model, figures, drafter, export; started again it has nothing left to do."""
    monkeypatch.setattr(recipe.run, "train_draw", noise)
    monkeypatch.setattr(recipe.run, "test_draw", noise)
    train = replace(PLAN, steps=2, log_every=1)
    plan = RunPlan(tmp_path, SHAPE, packs(), train, DraftPlan(steps=1, blocks=2, log_every=1), device="cpu")
    plan = sight_plan(replace(plan, workers=1, lag=1, held_out=1, texts=40))
    for _ in range(2):
        SightRun(plan).all()
    folder = tmp_path / "model"
    assert describe(folder).image_rules is not None and v4_draft_kind(folder) == "dspark"
    assert load_text(folder, "cpu", torch.float32).layer_count == len(SHAPE.text.layers)
    assert (tmp_path / "figures.json").is_file() and "finished" in (tmp_path / "run.log").read_text()


def test_the_command_line_knows_both_families(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*words: str) -> Any:
        monkeypatch.setattr("sys.argv", ["recipe", "--out", str(tmp_path / "x"), *words])
        return run_of(parse())

    one, two = run("--shape", "toy"), run("--family", "deepseek_v4", "--shape", "toy", "--dense-attention")
    assert not isinstance(one, SightRun) and isinstance(two, SightRun) and two.flex is False
    assert two.plan.special != one.plan.special and two.plan.packs.align == 8
    big = run("--family", "deepseek_v4", "--seconds", "900")
    assert big.plan.packs.row % big.plan.shape.text.align == 0 and big.plan.train.seconds == 900.0
