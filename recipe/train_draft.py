"""Trains both drafters on the finished model's own answers.

Owns the second stage: a frozen pass of the model over a pack, the features and greedy choices it leaves, and the two
drafters' step on them. Promises that the target never changes and that labels are what the target itself would say
next, answer by answer. Knows nothing about verification.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from recipe.draft import DFlash, MtpHead, Target, draft_loss, sample_blocks
from recipe.journal import Journal
from recipe.model import ChartReader, initialise
from recipe.optimizer import MuonAdam
from recipe.packs import PackShape
from recipe.shapes import Shape
from recipe.staging import Captured, Stager, StaticPack
from recipe.train import TrainPlan, rate


@dataclass(frozen=True)
class DraftPlan:
    """Everything the second stage depends on beside the model and the data."""

    steps: int = 4000
    seed: int = 7
    lr: float = 3e-3
    adam_lr: float = 2e-3
    blocks: int = 48  # sampled in each row
    seconds: float = 0.0
    log_every: int = 50
    compile: bool = True


def observe(reader: ChartReader, static: StaticPack, layers: tuple[int, ...], dtype: torch.dtype) -> Target:
    """One frozen pass of the model over a pack; detached, so that the layers compiled for training serve here too."""
    pack = static.pack()
    x, *_ = reader.embeddings(pack, static.shape.longest_image, dtype)
    states = reader.states(x, pack)
    final = reader.model.language_model.norm(states[-1]).detach()
    greedy = reader.logits(final.flatten(0, 1)).argmax(-1).view_as(pack.ids)
    answers = torch.zeros(pack.ids.numel(), device=x.device)
    answers.index_add_(0, static["label_at"].long(), static["weight"])
    features = torch.cat([states[i].detach() for i in layers], -1)
    inside = (answers > 0).view_as(pack.ids)
    return Target(features, final, x.detach(), greedy, inside, *reader.rope(pack.where, dtype))


class Drafts(Protocol):
    """Drafters in training; sums: figures of the steps since they were last told, by `names`."""

    plan: DraftPlan
    optimizer: MuonAdam
    names: tuple[str, ...]
    sums: Tensor
    step: int
    run: Callable[[], None]


def fit_drafts(drafts: Drafts, stager: Stager, journal: Journal) -> None:
    """Train to the end of the plan."""
    plan, schedule = drafts.plan, TrainPlan(steps=drafts.plan.steps, warmup=100, flat=0.3)
    began = mark = time.monotonic()
    while drafts.step < plan.steps:
        elapsed = time.monotonic() - began
        done = max(drafts.step / plan.steps, elapsed / plan.seconds if plan.seconds else 0.0)
        if done >= 1.0 or not stager.advance():
            break
        factor = rate(schedule, drafts.step, done)
        drafts.optimizer.lr.fill_(plan.lr * factor)
        drafts.optimizer.adam_lr.fill_(plan.adam_lr * factor)
        drafts.run()
        drafts.step += 1
        if drafts.step % plan.log_every == 0:
            figures = dict(zip(drafts.names, (drafts.sums / plan.log_every).tolist(), strict=True))
            drafts.sums.zero_()
            figures["ms"] = (time.monotonic() - mark) / plan.log_every * 1e3
            mark = time.monotonic()
            journal.point(drafts.step, figures, "draft")


class DraftTrainer:
    """Both drafters, one optimiser, one captured step."""

    names = ("dflash", "accepted", "mtp", "right")

    def __init__(self, shape: Shape, packs: PackShape, plan: DraftPlan, reader: ChartReader, mask_id: int) -> None:
        self.shape, self.plan, self.reader, self.mask_id = shape, plan, reader, mask_id
        self.device = next(reader.parameters()).device
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.dflash, self.mtp = DFlash(shape), MtpHead(shape)
        initialise(self.dflash, plan.seed, 2 * shape.draft.layers)
        initialise(self.mtp, plan.seed + 1, 2)
        self.dflash.to(self.device)
        self.mtp.to(self.device)
        self.static = StaticPack(packs, self.device)
        named = [(f"dflash.{n}", p) for n, p in self.dflash.named_parameters()]
        named += [(f"mtp.{n}", p) for n, p in self.mtp.named_parameters()]
        self.optimizer = MuonAdam(named, 0)
        self.sums = torch.zeros(4, device=self.device)  # DFlash loss and accepted, MTP loss and share right
        self.step = 0

    def prepare(self, buffer: object) -> None:
        """Compile and capture the step on a pack that is then forgotten."""
        self.static.load(buffer)  # type: ignore[arg-type]
        cuda = self.device.type == "cuda"
        if cuda and self.plan.compile:
            for layer in [*self.dflash.layers, *self.mtp.layers]:
                layer.compile(dynamic=False)
        self.run: Callable[[], None] = Captured(self._train_step, capture=cuda)
        self.optimizer.reset()
        self.sums.zero_()

    def _train_step(self) -> None:
        for p in self.optimizer.parameters:
            p.grad = None
        target = observe(self.reader, self.static, self.shape.draft.target_layers, self.dtype)
        block_loss, accepted = self._dflash(target)
        mtp_loss, right = self._mtp(target)
        (block_loss + mtp_loss).backward()
        self.optimizer.clip(1.0)
        self.optimizer.step()
        self.sums += torch.stack([block_loss.detach(), accepted, mtp_loss.detach(), right])

    def _table(self) -> Tensor:
        return self.reader.model.language_model.embed_tokens.weight.detach().to(self.dtype)

    def _dflash(self, target: Target) -> tuple[Tensor, Tensor]:
        ids, age = self.static["ids"].long(), self.static["age"].long()
        size = self.shape.draft.block
        blocks = sample_blocks(ids, age, target, size, self.plan.blocks, self.mask_id)
        words = self._table().index_select(0, blocks.ids.flatten()).view(*blocks.ids.shape, -1)
        hidden = self.dflash(words, target.features, (age, blocks.where), blocks.mask)
        hidden = hidden.view(*blocks.labels.shape[:2], size, -1)[:, :, 1:]
        return draft_loss(hidden @ self._table().T, blocks.labels, blocks.weights)

    def _mtp(self, target: Target) -> tuple[Tensor, Tensor]:
        hidden = self.mtp(target.embeds.roll(-1, 1), target.final, (target.cos, target.sin), self.static["edges"])
        at = self.static["label_at"].long()
        before = (at - 1).clamp(min=0)  # token p, where p + 1 predicts the label
        inside = target.answers.flatten().index_select(0, before)  # the label's own predecessor is of the answer
        weights = (inside & (self.static["weight"] > 0)).float()[:, None]
        logits = hidden.flatten(0, 1).index_select(0, before) @ self._table().T
        return draft_loss(logits[:, None], target.greedy.flatten().index_select(0, at)[:, None], weights)

    def fit(self, stager: Stager, journal: Journal) -> None:
        """Train to the end of the plan."""
        fit_drafts(self, stager, journal)

    def masters(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The DFlash drafter's tensors, and the MTP head's with the checkpoint's prefix."""
        mtp = {f"mtp.{name}": tensor for name, tensor in self.mtp.state_dict().items()}
        return dict(self.dflash.state_dict()), mtp


def save_draft(trainer: DraftTrainer, path: Path) -> None:
    """Keep both drafters' fp32 masters."""
    dflash, mtp = trainer.masters()
    torch.save({"step": trainer.step, "dflash": dflash, "mtp": mtp}, path)
