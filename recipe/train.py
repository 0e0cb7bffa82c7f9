"""The training loop of a model: one GPU (or, at toy size, a CPU), from a seed, resumable.

Owns the schedule, the captured step, checkpoints, the progress line and the loss curve. Promises that a run is a
function of its plan (data and initial weights exactly, arithmetic up to the GPU's rounding) and that what was learned
until the last checkpoint survives a kill. Refuses to know what the answers are about.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recipe.journal import Journal
from recipe.losses import CharacterHead, pack_losses
from recipe.model import ChartReader, initialise
from recipe.optimizer import MuonAdam
from recipe.packs import PackShape
from recipe.shapes import Shape
from recipe.staging import Captured, Stager, StaticPack


@dataclass(frozen=True)
class TrainPlan:
    """Everything a run depends on beside the data."""

    steps: int = 20000
    seed: int = 1
    lr: float = 3e-3  # matrices (Muon)
    adam_lr: float = 2e-3
    warmup: int = 150
    flat: float = 0.3  # share of the run at full rate, then a cosine to `floor`
    floor: float = 0.01
    characters: float = 0.5  # weight of the character loss, falling linearly to a tenth of it
    patch_share: float = 0.5  # of the character loss that reads patches rather than rows
    clip: float = 1.0
    seconds: float = 0.0  # 0: no limit; else the schedule follows the clock where the clock is ahead of the steps
    log_every: int = 50
    save_every: int = 4000
    compile: bool = True


def rate(plan: TrainPlan, step: int, done: float) -> float:
    """The learning rate's factor at `step`, `done` of the run being over."""
    warm = min(1.0, (step + 1) / max(plan.warmup, 1))
    if done <= plan.flat:
        return warm
    along = min(1.0, (done - plan.flat) / (1 - plan.flat))
    return warm * (plan.floor + (1 - plan.floor) * 0.5 * (1 + math.cos(math.pi * along)))


@dataclass(frozen=True)
class Learner:
    """What is trained: model, throw-away head, optimiser, the pack they read, and what a step does with these.

    losses: answer loss, character loss and character accuracy of the pack; settle: after a step; regions: compiled
    one by one.
    """

    reader: Any
    head: nn.Module
    optimizer: MuonAdam
    static: StaticPack
    losses: Callable[[], tuple[Tensor, Tensor, Tensor]]
    regions: tuple[nn.Module, ...]
    settle: Callable[[], None] = lambda: None


Make = Callable[[Any, Any, "TrainPlan", torch.device], Learner]


def dtype_on(device: torch.device) -> torch.dtype:
    """What a device computes in."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def chart_learner(shape: Shape, packs: PackShape, plan: TrainPlan, device: torch.device) -> Learner:
    """The Qwen chart reader from its seed."""
    reader = ChartReader(shape)
    head = CharacterHead(shape.text.hidden, shape.vision.hidden, plan.patch_share)
    initialise(reader, plan.seed, 2 * shape.text.layers)
    initialise(head, plan.seed + 1, 1)
    reader.to(device)
    head.to(device)
    named = [*reader.named_parameters(), *(("head." + n, p) for n, p in head.named_parameters())]
    static, visual = StaticPack(packs, device), reader.model.visual
    return Learner(
        reader=reader,
        head=head,
        optimizer=MuonAdam(named, shape.text.key_heads * shape.text.key_dim),
        static=static,
        losses=lambda: pack_losses(reader, head, static, dtype_on(device)),
        # Attention, the triangular inverse and the state scan stay their own kernels.
        regions=(*reader.model.language_model.layers, *visual.blocks, visual.merger),
    )


class Trainer:
    """A learner and the captured step."""

    def __init__(
        self, shape: Any, packs: Any, plan: TrainPlan, device: torch.device, make: Make = chart_learner
    ) -> None:
        self.plan, self.device, self.step = plan, device, 0
        self.dtype, self.learner = dtype_on(device), make(shape, packs, plan, device)
        self.reader, self.head = self.learner.reader, self.learner.head
        self.optimizer, self.static = self.learner.optimizer, self.learner.static
        self.sums = torch.zeros(4, device=device)  # answer loss, character loss, characters read, norm
        self.characters = torch.tensor(plan.characters, device=device)

    def prepare(self, buffer: object) -> None:
        """Compile and capture the step on a pack that is then forgotten."""
        self.static.load(buffer)  # type: ignore[arg-type]
        cuda = self.device.type == "cuda"
        if cuda and self.plan.compile:
            for region in self.learner.regions:
                region.compile(dynamic=False)
            self.head.compile(dynamic=False)
        before = [buffer.clone() for buffer in self.reader.buffers()]
        self.run = Captured(self._train_step, capture=cuda)
        self.optimizer.reset()
        self.sums.zero_()
        for held, value in zip(self.reader.buffers(), before, strict=True):
            held.copy_(value)

    def _train_step(self) -> None:
        for p in self.optimizer.parameters:
            p.grad = None
        answer, characters, accuracy = self.learner.losses()
        (answer + self.characters * characters).backward()
        norm = self.optimizer.clip(self.plan.clip)
        self.optimizer.step()
        self.learner.settle()
        self.sums += torch.stack([answer.detach(), characters.detach(), accuracy, norm])

    def fit(self, stager: Stager, folder: Path, journal: Journal) -> None:
        """Train to the end of the plan, saving into `folder` as it goes."""
        began, waited, mark = time.monotonic(), 0.0, time.monotonic()
        while self.step < self.plan.steps:
            elapsed = time.monotonic() - began
            done = max(self.step / self.plan.steps, elapsed / self.plan.seconds if self.plan.seconds else 0.0)
            asked = time.monotonic()
            if done >= 1.0 or not stager.advance():
                break
            waited += time.monotonic() - asked
            factor = rate(self.plan, self.step, done)
            self.optimizer.lr.fill_(self.plan.lr * factor)
            self.optimizer.adam_lr.fill_(self.plan.adam_lr * factor)
            self.characters.fill_(self.plan.characters * (1 - 0.9 * done))
            self.run()
            self.step += 1
            if self.step % self.plan.log_every == 0:
                self._report(journal, time.monotonic() - mark, waited, factor)
                waited, mark = 0.0, time.monotonic()
            if self.step % self.plan.save_every == 0:
                self.save(folder / "state.pt")
        self.save(folder / "state.pt")

    def _report(self, journal: Journal, seconds: float, waited: float, factor: float) -> None:
        count = self.plan.log_every
        answer, characters, accuracy, norm = (self.sums / count).tolist()
        self.sums.zero_()
        if not math.isfinite(answer):
            raise FloatingPointError(f"the loss is not finite at step {self.step}")
        figures = {"loss": answer, "characters": characters, "read": accuracy, "norm": norm, "rate": factor}
        journal.point(self.step, figures | {"ms": seconds / count * 1e3, "waited": waited / seconds})

    def tensors(self) -> dict[str, Tensor]:
        """Model and head under one namespace, not copied."""
        return {**self.reader.state_dict(), **{f"character.{k}": v for k, v in self.head.state_dict().items()}}

    def save(self, path: Path) -> None:
        """Write everything a later run needs to go on, replacing the old file in one move."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "step": self.step,
            "plan": asdict(self.plan),
            "tensors": self.tensors(),
            "optimizer": self.optimizer.state(),
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Continue from a saved state; addresses stay, so a captured step stays valid."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(state["tensors"][name])
        self.optimizer.load(state["optimizer"])
        self.step = state["step"]


def saved_step(path: Path) -> int:
    """The step a saved state continues from; 0 where there is none."""
    if not path.exists():
        return 0
    return int(torch.load(path, map_location="cpu", weights_only=True, mmap=True)["step"])


def write_figures(path: Path, figures: dict[str, object]) -> None:
    """One JSON object, indented."""
    path.write_text(json.dumps(figures, indent=1) + "\n")
