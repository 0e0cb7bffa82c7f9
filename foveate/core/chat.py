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
class Tools:
    """Functions that the model may call, each as OpenAI's {"name", "description", "parameters"}.

    choice: 'auto', or 'required' for at least one call. `only` names the one function that must be called; without
    `parallel` an answer ends with its first call.
    """

    functions: tuple[dict[str, Any], ...]
    choice: str = "auto"
    only: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Form:
    """What the answer's text must look like: one of KINDS, with what it takes.

    'json' (any object), 'schema' (a JSON schema), 'regex', 'choice' (a list of texts), 'grammar' (Lark, as llguidance
    reads it, or GBNF). `param` is where the request asks for it.
    """

    kind: str
    value: Any = None
    param: str = "response_format"


KINDS = ("json", "schema", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One conversation to continue, or with `prompt` a text or token ids to continue as they are, without a template.

    messages: dicts with `role`, `content` (a string, or a list of {"type": "text", "text": ...} and
    {"type": "image", "image": INDEX} parts where INDEX points into `images`) and whatever else the template reads.
    template: extra variables for the chat template. open_end: the last message is the assistant's and is continued.
    effort: how much to think, one of EFFORTS. thought_len: tokens after which a thought that the prompt opens is ended.
    """

    messages: tuple[dict[str, Any], ...]
    images: tuple[ImageSource, ...] = ()
    wishes: Wishes = field(default_factory=Wishes)
    template: dict[str, Any] = field(default_factory=dict)
    tools: Tools | None = None
    form: Form | None = None
    open_end: bool = False
    generation_prompt: bool = True
    effort: str | None = None
    thought_len: int | None = None
    prompt: str | tuple[int, ...] | None = None


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


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
class ThoughtDelta:
    """New text of what one choice thinks before it answers."""

    choice: int
    text: str
    tokens: int = 0
    logprobs: tuple[TokenText, ...] = ()


@dataclass(frozen=True, slots=True)
class CallDelta:
    """New part of a tool call: the first of call number `call` has its `name`; `arguments` join to a JSON object.

    A call that the answer's length cut off has unfinished arguments.
    """

    choice: int
    call: int
    name: str | None = None
    arguments: str = ""
    tokens: int = 0
    logprobs: tuple[TokenText, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """One choice is complete: `reason` is 'stop', 'length' or 'tool_calls'.

    `tokens` counts what it generated, `reasoning_tokens` those of them that were thought; `stop` is the stop string
    that ended it.
    """

    choice: int
    reason: str
    tokens: int
    timings: Timings = field(default_factory=Timings)
    reasoning_tokens: int = 0
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Image number `image` of `images` of the request has been encoded; for keep-alives and live displays."""

    image: int
    images: int


Delta = TextDelta | ThoughtDelta | CallDelta
AnswerPart = Delta | ChoiceEnd | Progress
