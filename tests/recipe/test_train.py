"""The training loop at toy size on a CPU: schedule, optimiser, packs, feed, resuming, drafters."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from recipe.draft import Target, draft_loss, sample_blocks
from recipe.encode import Encoder, character_slots, grid_cells, rope_positions
from recipe.feed import FeedPlan, PackFeed, schedule
from recipe.journal import Journal, draw_curve
from recipe.optimizer import MuonAdam, orthogonalise, row_parts
from recipe.packs import PackShape, fill_pack
from recipe.shapes import preset
from recipe.staging import Stager, StaticPack
from recipe.tokenizer import special_ids, train_tokenizer
from recipe.train import Trainer, TrainPlan, rate, saved_step
from recipe.train_draft import DraftPlan, DraftTrainer
from tests.recipe.test_train_model import toy_conversation

PACKS = PackShape(rows=2, row=256, patches=256, labels=128, longest_image=64, images=64, segments=32)
PLAN = TrainPlan(steps=6, warmup=1, log_every=2, save_every=3, lr=1e-2, adam_lr=1e-2)


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    train_tokenizer(["What is the value? 1 2 3", "The title is a title."] * 3, 480).save(str(path))
    return path


def encoder(path: Path) -> Encoder:
    from tokenizers import Tokenizer

    return Encoder(Tokenizer.from_file(str(path)))


def packs(path: Path, count: int) -> list[np.ndarray[Any, Any]]:
    out = []
    for i in range(count):
        buffer = bytearray(PACKS.nbytes)
        fill_pack(PACKS, encoder(path), toy_conversation, str(i), PACKS.view(buffer))
        out.append(np.frombuffer(buffer, np.uint8))
    return out


def fitted(path: Path, folder: Path, steps: int, load: Path | None = None) -> Trainer:
    plan = replace(PLAN, steps=steps)
    trainer = Trainer(preset("toy"), PACKS, plan, torch.device("cpu"))
    buffers = packs(path, steps)
    trainer.prepare(buffers[0])
    if load is not None:
        trainer.load(load)
    trainer.fit(Stager(trainer.static, iter(buffers[trainer.step :])), folder, Journal(folder))
    return trainer


def test_schedule_uses_each_pack_again_after_the_lag() -> None:
    assert schedule(5, 1, 3) == [0, 1, 2, 3, 4]
    assert schedule(8, 2, 2) == [0, 1, 2, 0, 3, 1, 4, 2]


def test_rate_warms_up_stays_and_falls() -> None:
    plan = TrainPlan(steps=1000, warmup=10, flat=0.5, floor=0.01)
    assert rate(plan, 0, 0.0) == pytest.approx(0.1)
    assert rate(plan, 400, 0.4) == 1.0
    assert rate(plan, 999, 1.0) == pytest.approx(0.01)


def test_training_lowers_the_loss_and_leaves_its_figures(tokenizer_file: Path, tmp_path: Path) -> None:
    trainer = fitted(tokenizer_file, tmp_path, 6)
    assert trainer.step == 6 and saved_step(tmp_path / "state.pt") == 6
    rows = (tmp_path / "loss.csv").read_text().splitlines()
    losses = [float(row.split(",")[2]) for row in rows[1:]]
    assert len(losses) == 3 and losses[-1] < losses[0]
    draw_curve(tmp_path / "loss.csv", tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 500


def test_resumed_run_equals_an_unbroken_one(tokenizer_file: Path, tmp_path: Path) -> None:
    whole = fitted(tokenizer_file, tmp_path / "whole", 4)
    plan = replace(PLAN, steps=4)
    first = Trainer(preset("toy"), PACKS, plan, torch.device("cpu"))
    buffers = packs(tokenizer_file, 4)
    first.prepare(buffers[0])
    first.fit(Stager(first.static, iter(buffers[:2])), tmp_path / "part", Journal(tmp_path / "part"))
    second = fitted(tokenizer_file, tmp_path / "part", 4, load=tmp_path / "part" / "state.pt")
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name


def test_feed_hands_out_packs_in_order_whoever_draws_them(tokenizer_file: Path) -> None:
    plan = FeedPlan(seed=5, steps=4, uses=2, lag=1, ahead=2, workers=2)
    feed = PackFeed(PACKS, tokenizer_file, toy_conversation, plan)
    got = [buffer.copy() for buffer in feed.buffers()]
    feed.close()
    for number, buffer in zip(schedule(4, 2, 1), got, strict=True):
        want = bytearray(PACKS.nbytes)
        fill_pack(PACKS, encoder(tokenizer_file), toy_conversation, f"5/{number}", PACKS.view(want))
        assert bytes(buffer) == bytes(want)


def test_a_failing_draw_reaches_the_trainer(tokenizer_file: Path) -> None:
    def broken(rng: random.Random) -> Any:
        raise ValueError("no chart today")

    feed = PackFeed(PACKS, tokenizer_file, broken, FeedPlan(seed=5, steps=1, uses=1, workers=1))
    with pytest.raises(RuntimeError, match="no chart today"):
        next(feed.buffers())
    feed.close()


def test_labels_are_answers_and_their_end_alone(tokenizer_file: Path) -> None:
    words = encoder(tokenizer_file)
    static = StaticPack(PACKS, torch.device("cpu"))
    static.load(packs(tokenizer_file, 1)[0])
    ids, real = static["ids"].flatten(), static["weight"] > 0
    assert torch.equal(ids[static["label_at"][real].long() + 1], static["label"][real])
    said = words.tokenizer.decode(static["label"][real].tolist(), skip_special_tokens=False)
    assert all(part.strip().isdigit() for part in said.split("<|im_end|>")[:-1])


def test_orthogonalised_matrices_have_even_singular_values() -> None:
    torch.manual_seed(0)
    for shape in ((2, 24, 8), (2, 8, 24)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(*shape)))
        assert float(values.min()) > 0.5 and float(values.max()) < 1.5


def test_fused_projections_are_orthogonalised_apart() -> None:
    assert row_parts("model.visual.blocks.0.attn.qkv.weight", torch.zeros(24, 8), 0) == [8, 8, 8]
    assert row_parts("x.linear_attn.in_proj_qkv.weight", torch.zeros(24, 8), 4) == [4, 4, 16]
    layer = nn.Linear(8, 24)
    optimizer = MuonAdam([("attn.qkv.weight", layer.weight), ("attn.qkv.bias", layer.bias)], 0)
    assert optimizer.momenta[(8, 8)].shape == (3, 8, 8)


def test_characters_stand_in_their_patch_in_reading_order() -> None:
    slots = character_slots([("b", 20.0, 4.0), ("a", 17.0, 4.0), ("z", 1.0, 20.0)], 64, 32)
    assert slots.shape == (2, 12)
    assert slots[0, 3:6].tolist() == [ord("a") - 32, ord("b") - 32, 0]
    assert slots[0, 6] == ord("z") - 32


def test_positions_follow_the_merged_grid() -> None:
    where = rope_positions(2 + 6 + 1, [2], [(4, 6)])
    assert where[:, 2:8].tolist() == [[2] * 6, [2, 2, 2, 3, 3, 3], [2, 3, 4, 2, 3, 4]]
    assert where[:, 8].tolist() == [5, 5, 5]
    assert grid_cells(4, 6)[:5].tolist() == [[0, 0, 4, 6], [0, 1, 4, 6], [1, 0, 4, 6], [1, 1, 4, 6], [0, 2, 4, 6]]


def test_blocks_start_inside_answers_and_stop_at_their_end() -> None:
    torch.manual_seed(0)
    ids = torch.arange(32)[None]
    answers = torch.zeros(1, 32, dtype=torch.bool)
    answers[0, 9:14] = True  # tokens 10..14 are an answer
    greedy = ids + 1
    empty = torch.zeros(1, 32, 4)
    target = Target(empty, empty, empty, greedy, answers, empty[0], empty[0])
    blocks = sample_blocks(ids, ids, target, block=4, count=2, mask_id=99)
    for row in range(2):
        anchor = int(blocks.ids[0, row * 4])
        assert 10 <= anchor <= 13 and blocks.ids[0, row * 4 + 1] == 99
        assert blocks.labels[0, row].tolist() == [anchor + 1, anchor + 2, anchor + 3]
        assert (blocks.weights[0, row] > 0).sum() == min(3, 14 - anchor)
        assert blocks.mask[0, 0, row * 4, :32].nonzero().flatten().tolist() == list(range(anchor))


def test_draft_loss_counts_leading_hits() -> None:
    labels = torch.tensor([[[1, 2, 3]]])
    logits = torch.nn.functional.one_hot(torch.tensor([[[1, 0, 3]]]), 4).float()
    _, accepted = draft_loss(logits, labels, torch.ones(1, 1, 3))
    assert accepted == 1


def test_drafters_take_a_step_and_leave_the_model_alone(tokenizer_file: Path) -> None:
    trainer = Trainer(preset("toy"), PACKS, PLAN, torch.device("cpu"))
    before = {k: v.clone() for k, v in trainer.reader.state_dict().items()}
    mask = special_ids(encoder(tokenizer_file).tokenizer)["<|mask|>"]
    drafter = DraftTrainer(preset("toy"), PACKS, DraftPlan(steps=2, blocks=4, log_every=1), trainer.reader, mask)
    buffers = packs(tokenizer_file, 2)
    drafter.prepare(buffers[0])
    start = drafter.mtp.fc.weight.detach().clone()
    for buffer in buffers:
        drafter.static.load(buffer)
        drafter.optimizer.lr.fill_(1e-2)
        drafter.run()
    assert not torch.equal(start, drafter.mtp.fc.weight)
    assert all(torch.equal(before[k], v) for k, v in trainer.reader.state_dict().items())
