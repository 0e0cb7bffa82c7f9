"""The frozen values that floors hand to each other: prompts with image spans, sampling wishes, events.

Owns their meaning and small arithmetic on them; standard library only, picklable throughout, because they cross the
seams to worker processes. Refuses to know tensors, templates, HTTP or whose turn it is.

Three coordinates never stand in for each other: a *token index* (`*_at`, place in prompt + output), a *memory slot*
(pages and state slots, in `plan.py`) and a *rope position* (`Positions`; index plus the offset that images leave).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from foveate.core.images import BlockRules

MAX_IMAGES = 16  # per request, one constant for every API and both model families


class PixelSource(Protocol):
    """One picture, identified and measured from its header, not decoded yet. Picklable.

    `pixels()` decodes fully and resizes to the grid: uint8 array [height, width, 3]; raises `InvalidImage`. `frame()`
    does the same but may leave the resizing to whoever has a faster device for it, and then gives a `Frame`.
    """

    @property
    def key(self) -> str: ...

    @property
    def grid(self) -> tuple[int, int]: ...

    @property
    def rows(self) -> int: ...

    def pixels(self) -> Any: ...

    def frame(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded picture that is still to be resized: uint8 [height, width, 3], and the (height, width) it shall have.

    The resize is Pillow's bicubic one, byte for byte, with the pass across before the one down. Picklable.
    """

    pixels: Any
    size: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return int(self.pixels.nbytes)


@dataclass(frozen=True, slots=True)
class Span:
    """An image's place in a token sequence.

    `key` is the 256-bit content key in hex; `grid` counts patches (down, across); `rows` counts tokens. An `atomic`
    span must be prefilled inside one step. The `lead_len` tokens before it are no text either, but pads that put it
    where it must begin; they depend on the place and not on the image, so they are not among its rows.
    """

    key: str
    start_at: int
    rows: int
    grid: tuple[int, int]
    atomic: bool = False
    lead_len: int = 0

    @property
    def end_at(self) -> int:
        return self.start_at + self.rows


@dataclass(frozen=True, slots=True)
class ImageRules:
    """How Qwen turns a picture's size into a grid and rows; read from the checkpoint's preprocessor config."""

    patch: int
    merge: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Positions:
    """Rope positions of a prompt, one array per axis (three for M-RoPE, one for plain rope), and what follows it.

    Index i at or beyond the prompt's end has position i + `offset` on every axis.
    """

    axes: tuple[array[int], ...]
    offset: int = 0

    def window(self, start_at: int, end_at: int) -> tuple[array[int], ...]:
        """Positions of the token indices [start_at, end_at), one array per axis."""
        known_len = len(self.axes[0])
        beyond = array("q", range(max(start_at, known_len) + self.offset, max(end_at, known_len) + self.offset))
        return tuple(axis[start_at:end_at] + beyond for axis in self.axes)


def plain_positions(length: int, axes: int = 1) -> Positions:
    """Positions of a prompt without images: index = position on every axis."""
    return Positions(tuple(array("q", range(length)) for _ in range(axes)))


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids with images in place: inside a span stands the model's placeholder id, `rows` times.

    What a span's tokens *are* is its key and the row number, never the placeholder id: a user's own text can produce
    that id outside a span, where it is an ordinary token.
    """

    tokens: tuple[int, ...]
    positions: Positions
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        end_at = 0
        for span in self.spans:
            assert end_at <= span.start_at - span.lead_len and span.rows > 0 and span.end_at <= len(self.tokens), (
                "spans out of order"
            )
            end_at = span.end_at
        assert all(len(axis) == len(self.tokens) for axis in self.positions.axes), "positions do not cover the prompt"

    @property
    def image_rows(self) -> int:
        return sum(span.rows for span in self.spans)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose the next token. Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.

    Penalties as in OpenAI's API (frequency, presence: over the output) and as in Hugging Face (repetition: over prompt
    and output). `logprobs` is None for none, or how many alternatives to report. `seed` makes draws repeatable.
    `grammar` is the text of a grammar, in the engine's language, that the output must follow; '' for none.
    `thought_len`: the output begins within a thought, which is ended after so many tokens if it has not ended by then.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    grammar: str = ""
    thought_len: int | None = None

    @property
    def penalises(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)

    @property
    def needs_history(self) -> bool:
        """Whether a draw depends on tokens before it: for a grammar or a thought's bound, the output is enough."""
        return self.penalises or bool(self.grammar) or self.thought_len is not None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a checkpoint says of itself before any tensor is read; without a vision tower the image fields are None.

    `axes` counts rope positions per token; `eos_ids` end an answer; `sampling` is what its authors recommend.
    """

    model_type: str
    max_positions: int
    vocab_size: int
    hidden_size: int
    axes: int
    image_token_id: int | None
    image_rules: ImageRules | BlockRules | None
    eos_ids: frozenset[int]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Ending:
    """When an answer ends: after `max_new` tokens, or at a stop id once `min_new` tokens stand."""

    max_new: int
    stop_ids: frozenset[int] = frozenset()
    min_new: int = 0


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of a chosen token, and the `top` alternatives as (token, logprob), best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ImageTiming:
    """When one image went through the stages; None where it was not needed.

    On the engine's clock inside the engine, in seconds since the request arrived in a finished request's timings.
    """

    key: str
    rows: int
    decode_start_s: float | None = None
    decode_end_s: float | None = None
    encode_start_s: float | None = None
    encode_end_s: float | None = None
    prefill_start_s: float | None = None
    prefill_end_s: float | None = None
    fetch_start_s: float | None = None  # before the request reached the engine, so below zero once counted from there
    fetch_end_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """What a request cost and what the overlap bought, in seconds.

    `waited_s` is the time prefill stood still for want of image rows; `hidden_s` the encode time it did not wait for.
    `decode_steps` gave tokens after the first; `draft_steps` of them verified `drafted` guessed tokens, and in
    `accepted[i]` the guess at depth i + 1 was right.
    """

    queued_s: float = 0.0
    decode_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    waited_s: float = 0.0
    hidden_s: float = 0.0
    first_token_s: float = 0.0
    generation_s: float = 0.0
    preemptions: int = 0
    images: tuple[ImageTiming, ...] = ()
    decode_steps: int = 0
    draft_steps: int = 0
    drafted: int = 0
    accepted: tuple[int, ...] = ()

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a decoding step gave on average; 0 without any."""
        return 1.0 + sum(self.accepted) / self.decode_steps if self.decode_steps else 0.0


# Events of one request, in this order: Started?, (ImageLanded | Output)*, then exactly one of Finished | Failed.


@dataclass(frozen=True, slots=True)
class Started:
    """The request has a slot and all its pictures are decoded: from here on an answer is under way."""

    uid: int


@dataclass(frozen=True, slots=True)
class ImageLanded:
    """Rows of one of the request's images are on the model's device. `image` counts from 0."""

    uid: int
    image: int
    timing: ImageTiming


@dataclass(frozen=True, slots=True)
class Output:
    """New output tokens, stop id included when one was produced; `logprobs` is empty or one per token."""

    uid: int
    tokens: tuple[int, ...]
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """Terminal: `reason` is 'stop' (a stop id), 'length' or 'abort'."""

    uid: int
    reason: str
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class Failed:
    """Terminal: this request failed; `error` is one of `core.errors`."""

    uid: int
    error: Exception


Event = Started | ImageLanded | Output | Finished | Failed
TokenBytes = Mapping[int, bytes]
