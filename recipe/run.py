"""One run from nothing to a checkpoint folder: tokenizer, model, drafters, export, figures.

Owns the order of the stages and where each leaves its files (`OUT/work` for what a resumed run needs, `OUT/model` for
the checkpoint). Promises that a run started again in the same folder goes on where it was, stage by stage. Refuses to
hold any of the stages' own work.
"""

import dataclasses
import json
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from recipe.export import export_draft, export_model
from recipe.feed import FeedPlan, Filling, PackFeed
from recipe.journal import Journal, draw_curve
from recipe.losses import exact_answers
from recipe.mix import test_draw, train_draw
from recipe.packs import Draw, PackShape
from recipe.shapes import Shape
from recipe.staging import Stager, StaticPack
from recipe.tokenizer import PLAIN, SPECIAL, special_ids, spelling_tokenizer, train_tokenizer
from recipe.train import Trainer, TrainPlan, saved_step, write_figures
from recipe.train_draft import DraftPlan, DraftTrainer, save_draft
from recipe.warm import carry_over

TEXTS = 4000  # conversations the tokenizer learns from


@dataclass(frozen=True)
class RunPlan:
    """A whole run."""

    out: Path
    shape: Any = field(default_factory=Shape)
    packs: Any = field(default_factory=PackShape)
    train: TrainPlan = field(default_factory=TrainPlan)
    draft: DraftPlan = field(default_factory=DraftPlan)
    workers: int = 15
    uses: int = 2
    lag: int = 96
    held_out: int = 6  # packs of the test split scored after training
    texts: int = TEXTS
    spell: bool = False  # a tokenizer that spells a chart's own words
    special: tuple[str, ...] = SPECIAL
    shown: tuple[str, ...] = PLAIN
    start: Path | None = None  # a checkpoint to begin from
    device: str = "cuda"


def texts_of(job: tuple[int, int]) -> list[list[str]]:
    """Every question and answer of `count` conversations from one seed; job = (seed, count)."""
    rng = random.Random(f"texts/{job[0]}")
    drawn = [train_draw(rng).turns for _ in range(job[1])]
    return [[text for turn in turns for text in (turn.question, turn.answer)] for turns in drawn]


def make_tokenizer(plan: RunPlan, path: Path) -> Tokenizer:
    """The run's tokenizer, learned once and kept at `path`."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        jobs = [(plan.train.seed * 1000 + i, plan.texts // 40) for i in range(40)]
        with ProcessPoolExecutor(plan.workers, get_context("fork")) as pool:
            texts = list(chain.from_iterable(pool.map(texts_of, jobs)))
        learned = plan.shape.text.vocab - 16
        words = (plan.special, plan.shown)
        if plan.spell:
            spelling_tokenizer(texts, learned, 0.01, *words).save(str(path))
        else:
            train_tokenizer(chain.from_iterable(texts), learned, *words).save(str(path))
    return Tokenizer.from_file(str(path))


class Run:
    """The stages of one run, in order; what differs between families are the methods up to `export`."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan, self.work = plan, plan.out / "work"
        self.journal = Journal(plan.out)
        self.device = torch.device(plan.device)
        self.figures: dict[str, Any] = {"plan": json.loads(json.dumps(dataclasses.asdict(plan), default=str))}

    def filling(self) -> Filling:
        """How packs are filled."""
        return Filling()

    def trainer(self) -> Trainer:
        """The model from its seed, with its training step."""
        return Trainer(self.plan.shape, self.plan.packs, self.plan.train, self.device)

    def static(self) -> StaticPack:
        """A place for packs beside the trainer's."""
        return StaticPack(self.plan.packs, self.device)

    def drafter(self, trainer: Trainer) -> Any:
        """The drafters from their seed, with their training step."""
        mask = special_ids(self.tokenizer)["<|mask|>"]
        return DraftTrainer(self.plan.shape, self.plan.packs, self.plan.draft, trainer.reader, mask)

    def finish_draft(self, state: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Write what has a folder of its own; returns the tensors that belong into the model's."""
        export_draft(self.plan.out / "model" / "dflash", self.plan.shape, state["dflash"], self.tokenizer)
        return state["mtp"]  # type: ignore[no-any-return]

    def write(self, masters: dict[str, torch.Tensor]) -> None:
        """Write the checkpoint folder."""
        export_model(self.plan.out / "model", self.plan.shape, masters, self.tokenizer)

    def all(self) -> None:
        """Every stage that is not done yet."""
        self.tokenizer = make_tokenizer(self.plan, self.work / "tokenizer.json")
        self.journal.say(f"tokenizer: {self.tokenizer.get_vocab_size()} ids")
        self.open_feeds()
        trainer = self.train()
        self.export(trainer, {})
        self.score(trainer)
        mtp = self.draft(trainer)
        self.export(trainer, mtp)
        self.journal.say("finished")

    def open_feeds(self) -> None:
        """Start drawing for both stages, before the GPU is touched: the drawing processes are forked."""
        train, draft = self.plan.train, self.plan.draft
        self.begin = saved_step(self.work / "state.pt")
        self.train_feed = self._feed(train.seed, train.steps, self.begin) if self.begin < train.steps else None
        done = (self.work / "draft.pt").exists()
        self.draft_feed = None if done else self._feed(draft.seed, draft.steps, 0)

    def _feed(self, seed: int, steps: int, begin: int) -> PackFeed:
        p = self.plan
        feed = FeedPlan(seed, steps, begin, p.uses, p.lag, ahead=3 * p.workers, workers=p.workers)
        return PackFeed(p.packs, self.work / "tokenizer.json", train_draw, feed, self.filling())

    def _sample(self, seed: str, draw: Draw) -> tuple[Any, list[str]]:
        buffer = bytearray(self.plan.packs.nbytes)
        filling = self.filling()
        encoder = filling.encoder(self.tokenizer)
        kinds = filling.fill(self.plan.packs, encoder, draw, seed, self.plan.packs.view(buffer))
        return np.frombuffer(buffer, np.uint8), kinds

    def train(self) -> Trainer:
        """The model, trained to the end of its plan."""
        plan, state = self.plan.train, self.work / "state.pt"
        first, _ = self._sample("warm-up", train_draw)
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
            self.journal.say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        trainer = self.trainer()
        trainer.prepare(first)
        if self.plan.start is not None:
            carry_over(self.plan.start, self.tokenizer, trainer.reader)
        if self.begin:
            trainer.load(state)
        self.journal.say(f"ready to train from step {trainer.step} of {plan.steps}")
        if self.train_feed is not None:
            trainer.fit(Stager(trainer.static, self.train_feed.buffers()), self.work, self.journal)
            self.train_feed.close()
        self.figures["train"] = {"steps": trainer.step, "seconds": round(self.journal.seconds, 1)}
        if (self.plan.out / "loss.csv").exists():
            draw_curve(self.plan.out / "loss.csv", self.plan.out / "loss.png")
        self.journal.say(f"trained for {trainer.step} steps")
        return trainer

    def score(self, trainer: Trainer) -> None:
        """Share of held-out answers that greedy decoding would give exactly, by kind."""
        right, total = Counter[str](), Counter[str]()
        static = self.static()
        for i in range(self.plan.held_out):
            buffer, kinds = self._sample(f"held-out/{i}", test_draw)
            static.load(buffer)
            with torch.compiler.set_stance("force_eager"):
                exact = exact_answers(trainer.reader, static, trainer.dtype)[: len(kinds)].tolist()
            for kind, ok in zip(kinds, exact, strict=True):
                total[kind] += 1
                right[kind] += ok
        table = {kind: [right[kind], total[kind]] for kind in sorted(total)}
        share = sum(right.values()) / max(sum(total.values()), 1)
        self.figures["held_out"] = {"share": share, "kinds": table}
        self.journal.say(f"held-out answers exactly right: {share:.4f} of {sum(total.values())}")
        for kind, (good, n) in table.items():
            self.journal.say(f"  {kind:24s} {good / n:.3f} of {n}")
        write_figures(self.plan.out / "figures.json", self.figures)

    def draft(self, trainer: Trainer) -> dict[str, torch.Tensor]:
        """Both drafters, trained on the model's answers; returns the MTP head's tensors."""
        path = self.work / "draft.pt"
        if self.draft_feed is not None:
            drafter = self.drafter(trainer)
            drafter.prepare(self._sample("warm-up", train_draw)[0])
            self.journal.say("drafters: ready to train")
            drafter.fit(Stager(drafter.static, self.draft_feed.buffers()), self.journal)
            self.draft_feed.close()
            save_draft(drafter, path)
            self.journal.say(f"drafters: trained for {drafter.step} steps")
        return self.finish_draft(torch.load(path, map_location="cpu", weights_only=True))

    def export(self, trainer: Trainer, mtp: dict[str, torch.Tensor]) -> None:
        """The checkpoint folder, with or without the MTP head."""
        self.write({**trainer.reader.state_dict(), **mtp})
        write_figures(self.plan.out / "figures.json", self.figures)
        self.journal.say("checkpoint written")
