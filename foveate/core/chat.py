"""What the service is asked and what it answers, independent of any wire format.

Owns the request of one conversation turn and the pieces of its answer. Every API adapter of the server translates its
own words into a `ChatRequest`, and `TextDelta`s and `ChoiceEnd`s into its own words. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foveate.core.values import Timings


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where a picture comes from: `url` as the client wrote it (a data URL, later also http), `param` its JSON path."""

    url: str
    param: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """Sampling and length as the client asked; None means the model's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # None: none; k: the chosen token's and k alternatives
    n: int = 1


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One conversation to continue.

    messages: dicts with `role`, `content` (a string, or a list of {"type": "text", "text": ...} and
    {"type": "image", "image": INDEX} parts where INDEX points into `images`) and whatever else the template reads.
    template: extra variables for the chat template.
    """

    messages: tuple[dict[str, Any], ...]
    images: tuple[ImageSource, ...] = ()
    wishes: Wishes = field(default_factory=Wishes)
    template: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenText:
    """One generated token for a logprobs field: its text, its bytes, its log-probability and the best alternatives."""

    text: str
    raw: bytes
    logprob: float
    top: tuple[tuple[str, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one choice; safe to send: no half characters, nothing of a stop string."""

    choice: int
    text: str
    tokens: int = 0
    logprobs: tuple[TokenText, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """One choice is complete: `reason` is 'stop' or 'length'; `tokens` counts what it generated."""

    choice: int
    reason: str
    tokens: int
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class Progress:
    """Image number `image` of `images` of the request has been encoded; for keep-alives and live displays."""

    image: int
    images: int


AnswerPart = TextDelta | ChoiceEnd | Progress
