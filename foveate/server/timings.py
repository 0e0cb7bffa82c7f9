"""foveate's own `timings` object, the same beside every API's usage and in the live state.

Owns its JSON: seconds by stage, what the overlap hid, and each image's way through the stages. Refuses to know how
they were measured.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from foveate.core.values import ImageTiming, Timings


def timings_object(timings: Timings, tokens: int) -> dict[str, Any]:
    """`tokens` is the length of the output; the rate counts those after the first and is None without any."""
    rate = (tokens - 1) / timings.generation_s if tokens > 1 and timings.generation_s > 0 else None
    out = {name: _rounded(value) for name, value in asdict(timings).items() if name != "images"}
    return out | {
        "accepted": sum(timings.accepted),
        "accepted_at": timings.accepted,
        "tokens_per_step": round(timings.tokens_per_step, 3),
        "tokens_per_second": None if rate is None else round(rate, 3),
        "images": [image_object(image) for image in timings.images],
    }


def image_object(image: ImageTiming) -> dict[str, Any]:
    """One image's windows, in seconds since its request arrived; its key is nobody's business."""
    return {name: _rounded(value) for name, value in asdict(image).items() if name != "key"}


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
