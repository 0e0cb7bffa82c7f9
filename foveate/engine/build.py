"""Composes an engine from a checkpoint and settings: facts, config, weights, scheduler, loop, client.

Owns the order in which these come to be and go. Raises CheckpointError or ConfigError with the reason; when anything
fails half-way, what was opened is closed again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from foveate.core.config import Config, ModelFacts, Settings, resolve
from foveate.core.images import BlockRules
from foveate.core.plan import StepPlan
from foveate.core.values import ModelCard
from foveate.core.work import Work
from foveate.engine.checkpoint import BUNDLED, locate
from foveate.engine.client import EngineClient
from foveate.engine.loop import EngineLoop
from foveate.run.draft import Drafter
from foveate.run.drafters import DRAFT_WORDS
from foveate.run.open import (
    describe,
    device_facts,
    device_name,
    measure,
    open_drafter,
    open_encoder,
    open_grammars,
    open_model,
    open_runner,
    open_tower,
    use_device,
    work_of,
)
from foveate.sched.scheduler import Limits, Scheduler
from foveate.sched.speculate import DraftLimits, Speculation

log = logging.getLogger(__name__)
Progress = Callable[[int, int], None]
OnStep = Callable[[StepPlan, float], None]


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine. `close` ends it; afterwards nothing of it is left."""

    folder: Path
    card: ModelCard
    config: Config
    loop: EngineLoop
    client: EngineClient

    def close(self) -> None:
        self.loop.close()


def read_model(model: str, settings: Settings) -> tuple[Path, ModelCard, Config]:
    """Everything that is known before any weight is read; enough for `--print-config`."""
    folder = locate(model)
    card = describe(folder)
    return folder, card, resolve(settings, facts_of(model, card), device_facts())


def costs(model: str, settings: Settings) -> tuple[Work | None, str]:
    """What the model's steps cost at least, if that has been counted for its family; and the name of its device."""
    folder, _, config = read_model(model, settings)
    return work_of(folder, config), device_name(config.device)


def facts_of(model: str, card: ModelCard) -> ModelFacts:
    """The plain numbers of a checkpoint that settings are resolved against."""
    rules = card.image_rules
    if isinstance(rules, BlockRules):
        largest = rules.largest_block
    else:
        largest = 0 if rules is None else rules.max_pixels // (rules.patch * rules.merge) ** 2
    name = model if model in BUNDLED or not Path(model).expanduser().exists() else Path(model).resolve().name
    return ModelFacts(name, card.max_positions, rules is not None, largest)


def open_engine(
    model: str, settings: Settings, progress: Progress | None = None, on_step: OnStep | None = None
) -> Engine:
    """Load a model and start its engine. `progress(done_bytes, total_bytes)` follows the weights."""
    folder, card, config = read_model(model, settings)
    use_device(config)
    with ThreadPoolExecutor(1, "foveate-open") as beside:
        words = beside.submit(open_grammars, folder, card)  # of a large vocabulary it takes seconds
        weights = open_model(folder, config, progress)
        drafter = open_drafter(folder, _draft_folder(settings.draft), weights, config)
        grammars = words.result()
    sees = card.image_rules is not None
    tower = open_tower(folder, config) if sees else None
    measured = measure(weights, drafter, config, sees)
    if measured is not None:
        config = resolve(settings, facts_of(model, card), device_facts(measured))
    limits = None if drafter is None else draft_limits(drafter, weights.verifies_trees, settings)
    loop = EngineLoop(
        Scheduler(limits_of(config), None if limits is None else Speculation(limits)),
        open_runner(weights, drafter, grammars, config),
        partial(open_encoder, folder, config, tower) if sees else _no_encoder,
        on_step or (lambda plan, seconds: None),
        partial(use_device, config),
    )
    _log_split(config, card)
    loop.start()
    return Engine(folder, card, config, loop, EngineClient(loop))


def limits_of(config: Config) -> Limits:
    """The scheduler's numbers."""
    settings = config.settings
    return Limits(
        slots=config.slots,
        pages=config.pages,
        page_len=config.page_len,
        max_ctx=config.max_ctx,
        step_tokens=config.step_tokens,
        mixed_tokens=config.mixed_tokens,
        image_rows=config.image_rows,
        stream=settings.encoder_stream,
        queue_requests=settings.queue_requests,
        queue_image_rows=settings.queue_image_rows,
        queue_bytes=settings.queue_mib * 2**20,
        bypass=settings.bypass,
        keep_images=settings.image_cache,
    )


def draft_limits(drafter: Drafter, trees: bool, settings: Settings) -> DraftLimits:
    """How much may be guessed: what the settings wish and the drafter can do; trees if the model verifies them."""
    draft_len = min(settings.draft_len or drafter.most_len, drafter.most_len)
    tree = settings.draft_tree if trees else 0
    if settings.draft_tree and not trees:
        log.warning("draft-tree is left at 0: this model verifies chains only")
    return DraftLimits(draft_len, tree, drafter.lookback, settings.draft_adaptive)


def _draft_folder(wish: str) -> Path | None:
    """Where a drafter that is named by a path or hub id lies; None for the words that name a kind."""
    return None if wish in DRAFT_WORDS else locate(wish)


def _no_encoder(nudge: Callable[[], None]) -> None:
    return None


def _log_split(config: Config, card: ModelCard) -> None:
    if card.image_rules is None:
        return
    if isinstance(card.image_rules, BlockRules) and config.step_tokens < card.image_rules.largest_block:
        log.warning(
            "step-tokens is %d, but an image of this model may need %d tokens in one step: such images will be refused",
            config.step_tokens,
            card.image_rules.largest_block,
        )
    if config.encoder_apart and config.encoder_device == config.device == "cpu":
        log.info(
            "one CPU for both: %d thread(s) to the language model, %d to the vision encoder (%s)",
            config.model_threads,
            config.encoder_threads,
            config.encoder_worker,
        )
    else:
        log.info(
            "language model on %s, vision encoder on %s (%s)",
            config.device,
            config.encoder_device,
            config.encoder_worker,
        )
