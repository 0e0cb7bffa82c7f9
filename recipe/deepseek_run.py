"""The run of the DeepSeek V4 chart reader: the common stages with this family's parts.

Owns the choice of these parts and the family's default plan; demo-ds4 is meant to be made on one H200 by
`python -m recipe --family deepseek_v4 --out DIR --seconds 900 --draft-seconds 180`. The order of the stages, resuming
and figures are `recipe.run`'s.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from recipe.deepseek_draft import SparkTrainer
from recipe.deepseek_encode import BlockEncoder
from recipe.deepseek_export import export_sight
from recipe.deepseek_packs import block_pack_shape, fill_block_pack, sight_pack
from recipe.deepseek_shapes import SightShape, sight_preset
from recipe.deepseek_tokenizer import SHOWN, SPECIAL
from recipe.deepseek_train import sight_learner
from recipe.feed import Filling
from recipe.packs import Packs
from recipe.run import Run, RunPlan
from recipe.staging import StaticPack
from recipe.tokenizer import special_ids
from recipe.train import Trainer


class SightRun(Run):
    """The stages of one run of this family."""

    flex: bool | None = None  # attention that skips empty tiles; None: on a GPU

    def filling(self) -> Filling:
        """How packs are filled."""
        return Filling(partial(BlockEncoder, shape=self.plan.shape.vision), fill_block_pack)

    def trainer(self) -> Trainer:
        """The model from its seed, with its training step."""
        make = partial(sight_learner, flex=self.flex)
        return Trainer(self.plan.shape, self.plan.packs, self.plan.train, self.device, make)

    def static(self) -> StaticPack:
        """A place for packs beside the trainer's."""
        return StaticPack(self.plan.packs, self.device, sight_pack)

    def drafter(self, trainer: Trainer) -> Any:
        """The drafter from its seed, with its training step."""
        noise = special_ids(self.tokenizer)["<｜noise｜>"]
        return SparkTrainer(self.plan.shape, self.plan.packs, self.plan.draft, trainer.reader, noise)

    def finish_draft(self, state: dict[str, Any]) -> dict[str, torch.Tensor]:
        """All of the drafter belongs into the model's folder."""
        return state["mtp"]  # type: ignore[no-any-return]

    def write(self, masters: dict[str, torch.Tensor]) -> None:
        """Write the checkpoint folder."""
        export_sight(self.plan.out / "model", self.plan.shape, masters, self.tokenizer)


def sight_parts(name: str) -> tuple[SightShape, Packs]:
    """Dimensions and packs of a preset."""
    shape = sight_preset(name)
    if name == "toy":
        return shape, block_pack_shape(shape, rows=4, row=1024, patches=6144, labels=1024, images=96)
    return shape, block_pack_shape(shape)


def sight_plan(plan: RunPlan) -> RunPlan:
    """A plan with this family's special tokens."""
    return replace(plan, special=SPECIAL, shown=SHOWN)
