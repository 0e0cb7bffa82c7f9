"""Finds the drafter that a checkpoint brings or a setting names.

Owns the order in which `auto` looks: a drafter in a folder inside the checkpoint, then what the checkpoint has under
`mtp.*`, a multi-token-prediction head or DeepSeek's DSpark; and what happens when one does not fit: named, it is an
error; found, it is a warning and the next is tried. Knows no policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from foveate.core.config import Settings
from foveate.core.errors import CheckpointError
from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.deepseek_v4_draft_weights import load_spark, load_v4_mtp, v4_draft_kind
from foveate.models.draft_weights import load_block_drafter
from foveate.models.interface import LanguageModel
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_mtp import MtpDrafter
from foveate.models.qwen3_5_weights import has_mtp, load_mtp
from foveate.models.weights import Place
from foveate.run.draft import Drafter, ModelDrafter, NgramDrafter

log = logging.getLogger(__name__)
DRAFT_WORDS = ("auto", "mtp", "ngram", "none")
FOLDERS = ("dflash", "dspark", "drafter", "draft")
MTP_LEN = 4  # how far the head is fed back when nobody says
NGRAM_LEN = 8


def find_drafter(
    settings: Settings, folder: Path, named: Path | None, model: LanguageModel, place: Place
) -> Drafter | None:
    """The drafter for a model of `folder`, or None for plain decoding; `named` is the folder that the setting names.

    Raises CheckpointError when the setting names one that is missing or does not fit.
    """
    if settings.draft == "none":
        return None
    if settings.draft == "ngram":
        return NgramDrafter(settings.draft_len or NGRAM_LEN)
    if named is not None:
        return _block(settings, named, model, place)
    if settings.draft == "mtp":
        return _mtp(settings, folder, model, place)
    if place.dummy:
        return None  # nothing guesses random weights
    tries: list[tuple[str, Callable[[], Drafter]]] = [
        (str(folder / name), lambda name=name: _block(settings, folder / name, model, place))  # type: ignore[misc]
        for name in FOLDERS
        if (folder / name / "config.json").is_file()
    ]
    if has_mtp(folder) or (isinstance(model, DeepseekV4) and v4_draft_kind(folder)):
        tries.append(("the checkpoint's own drafter", lambda: _mtp(settings, folder, model, place)))
    for what, load in tries:
        try:
            return load()
        except CheckpointError as error:
            log.warning("%s is not used for speculative decoding: %s", what, error.message)
    if tries:
        log.warning("decoding plainly: no drafter of the checkpoint is usable")
    return None


def _block(settings: Settings, folder: Path, model: LanguageModel, place: Place) -> Drafter:
    drafter = load_block_drafter(folder, model, place.device, place.dtype, settings.draft_len)
    log.info("drafter: %s, blocks of %d", folder.name, drafter.config.block)
    return ModelDrafter(folder.name, drafter, str(place.device))


def _mtp(settings: Settings, folder: Path, model: LanguageModel, place: Place) -> Drafter:
    if isinstance(model, DeepseekV4):
        return _v4(settings, folder, model, place)
    if not isinstance(model, Qwen35) or not (place.dummy or has_mtp(folder)):
        raise CheckpointError("the checkpoint has no multi-token-prediction head (mtp.*)")
    weights = load_mtp(folder, model.config, place)
    drafter = MtpDrafter(weights, model, settings.draft_len or MTP_LEN)
    log.info("drafter: the checkpoint's own mtp head, fed back %d times", drafter.most_len - 1)
    return ModelDrafter("mtp", drafter, str(place.device))


def _v4(settings: Settings, folder: Path, model: DeepseekV4, place: Place) -> Drafter:
    kind = v4_draft_kind(folder)
    if kind is None:
        raise CheckpointError("the checkpoint has no drafter of its own (mtp.*)")
    if kind == "mtp":
        single = load_v4_mtp(folder, model, place, settings.draft_len or MTP_LEN)
        log.info("drafter: the checkpoint's own mtp layer, fed back %d times", single.most_len - 1)
        return ModelDrafter("mtp", single, str(place.device))
    spark = load_spark(folder, model, place, settings.draft_len)
    log.info("drafter: the checkpoint's own DSpark, blocks of %d", spark.config.block)
    return ModelDrafter("dspark", spark, str(place.device))
