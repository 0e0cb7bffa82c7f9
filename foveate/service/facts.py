"""What is served and how, in plain words for people and programs that ask: sizes, limits, devices, defaults.

Owns the choice of what may be told. Promises nothing secret in it: no keys, no paths. JSON-ready throughout.
"""

from __future__ import annotations

from typing import Any

from foveate.core.config import Config
from foveate.core.images import BlockRules
from foveate.core.values import ImageRules, ModelCard


def facts_of(config: Config, card: ModelCard) -> dict[str, Any]:
    """The facts of a running engine."""
    sampling, rules = card.sampling, card.image_rules
    return {
        "model": {
            "name": config.name,
            "type": card.model_type,
            "vocabulary": card.vocab_size,
            "max_positions": card.max_positions,
            "end_tokens": sorted(card.eos_ids),
        },
        "images": None
        if rules is None
        else _sizes(rules)
        | {
            "per_request": config.pictures.images,
            "max_bytes": config.pictures.image_bytes,
            "max_source_pixels": config.pictures.image_pixels,
        },
        "limits": {
            "context": config.max_ctx,
            "requests_at_once": config.slots,
            "requests_waiting": config.settings.queue_requests,
            "body_bytes": config.settings.max_body_mib * 2**20,
        },
        "runtime": {
            "device": config.device,
            "encoder_device": config.encoder_device,
            "encoder": config.encoder_worker,
            "encoder_stream": config.settings.encoder_stream,
            "dtype": config.dtype,
            "kv_tokens": config.pages * config.page_len,
            "step_tokens": config.step_tokens,
        },
        "default_generation_settings": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
        },
    }


def _sizes(rules: ImageRules | BlockRules) -> dict[str, int]:
    """Which sizes a picture is given, and for blocks the most tokens that one takes."""
    if isinstance(rules, BlockRules):
        side = rules.patch * rules.cell
        return {"pixels_per_row_side": side, "min_pixels": rules.min_pixels, "max_tokens": rules.largest_block}
    side = rules.patch * rules.merge
    return {"pixels_per_row_side": side, "min_pixels": rules.min_pixels, "max_pixels": rules.max_pixels}
