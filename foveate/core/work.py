"""What a model's answers cost at least, by arithmetic: bytes and operations, and their seconds at a device's peak.

Owns the peaks of known GPUs (their makers' data sheets: memory bandwidth, and dense bfloat16 products) and the formulas
of the floor. A floor counts what no implementation can leave out, each piece at full speed, nothing else in the way:
weights are read once a step, products cost two operations per weight, attention four per pair of positions and channel,
what fits beside something else is free. Knows no model and no measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Peak:
    """A device: bytes its memory moves in a second, and operations of dense bfloat16 products in a second."""

    bytes_s: float
    flops_s: float


# By the part of the device's name that tells it apart; the first that fits counts.
PEAKS: Mapping[str, Peak] = MappingProxyType(
    {
        "B200": Peak(8.0e12, 2250e12),
        "H200": Peak(4.8e12, 989e12),
        "H100": Peak(3.35e12, 989e12),
        "A100": Peak(2.04e12, 312e12),
        "L40S": Peak(0.864e12, 362e12),
        "RTX 4090": Peak(1.008e12, 165e12),
    }
)


def peak_of(name: str) -> Peak | None:
    """The peaks of a device by its name; None for one that is not known, a CPU among them."""
    return next((peak for known, peak in PEAKS.items() if known in name), None)


@dataclass(frozen=True, slots=True)
class Work:
    """A model's costs.

    weight_bytes: read for a step, however many tokens it has (of experts: those of one token). token_flops: of layers,
    per token. head_flops: per sampled token. pair_flops: per query and each key before it. context_bytes: keys and
    values read per decoded token and token of context. state_bytes: fixed-size state read and written per decoded
    token. patch_flops, patch_pair_flops, tower_bytes: the same of the vision tower, per patch and pair of patches.
    """

    weight_bytes: float
    token_flops: float
    head_flops: float
    pair_flops: float
    context_bytes: float
    state_bytes: float
    patch_flops: float = 0.0
    patch_pair_flops: float = 0.0
    tower_bytes: float = 0.0


def step_s(work: Work, peak: Peak, streams: int, context_len: float = 0.0) -> float:
    """Least seconds of a step that decodes one token for each of `streams` sequences of that many tokens."""
    moved = work.weight_bytes + streams * (context_len * work.context_bytes + work.state_bytes)
    flops = streams * (work.token_flops + work.head_flops + context_len * work.pair_flops)
    return max(moved / peak.bytes_s, flops / peak.flops_s)


def prefill_s(work: Work, peak: Peak, prompt_len: int) -> float:
    """Least seconds of the language model from the first token of a prompt to its answer's first token."""
    pairs = prompt_len * (prompt_len + 1) / 2
    flops = prompt_len * work.token_flops + pairs * work.pair_flops + work.head_flops
    return max(work.weight_bytes / peak.bytes_s, flops / peak.flops_s)


def encode_s(work: Work, peak: Peak, patches: Sequence[int]) -> float:
    """Least seconds of the vision tower over images of so many patches each."""
    if not patches:
        return 0.0
    flops = sum(count * work.patch_flops + count**2 * work.patch_pair_flops for count in patches)
    return max(work.tower_bytes / peak.bytes_s, flops / peak.flops_s)


def first_token_s(work: Work, peak: Peak, prompt_len: int, patches: Sequence[int], apart: bool = False) -> float:
    """Least seconds to the first token of a prompt with images.

    On one device encoding and prefill add up. With the encoder on a device of its own the shorter of the two hides, but
    for one image: e + (N - 1) max(e, p) + p with e and p per image.
    """
    encode, prefill = encode_s(work, peak, patches), prefill_s(work, peak, prompt_len)
    return overlapped_s(len(patches), encode, prefill) if apart and patches else encode + prefill


def overlapped_s(images: int, encode: float, prefill: float) -> float:
    """The best that streaming can do with these totals: e + (N - 1) max(e, p) + p, e and p being per image."""
    e, p = encode / images, prefill / images
    return e + (images - 1) * max(e, p) + p
