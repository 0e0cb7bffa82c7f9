"""OpenAI's chat completions: their request to ours, our answer to theirs.

Owns the meaning of each request field, and the JSON of `chat.completion` and `chat.completion.chunk`, with foveate's
`timings` beside `usage`. Promises that a stream and a whole answer to one request say the same. Refuses to know how
bytes reach the client (`reply.py`, `sse.py`) and what an image is beyond its URL.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

from foveate import __version__
from foveate.core.chat import ChatRequest, ChoiceEnd, ImageSource, TextDelta, TokenText, Wishes
from foveate.core.errors import FoveateError, InvalidRequest, ModelNotFound, Unsupported
from foveate.core.values import MAX_IMAGES, ImageTiming, Timings
from foveate.server.contract import Answer, Service
from foveate.server.errors import openai_error
from foveate.server.openai_request import AssistantMessage, ChatCompletionRequest, ImagePart, Message, ToolCall
from foveate.server.sse import frame

DONE = b"data: [DONE]\n\n"
# What the renderer itself hands to a template; a request may not stand in for it.
RESERVED_VARIABLES = frozenset(
    ("messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message", "bos_token")
).union(("eos_token", "pad_token", "unk_token", "raise_exception", "strftime_now"))


def translate(ask: ChatCompletionRequest, service: Service) -> ChatRequest:
    """The service's request for a valid wire request. Raises ModelNotFound and InvalidRequest."""
    if ask.model is not None and ask.model != service.name:
        raise ModelNotFound(f"the model does not exist; this server serves {service.name}", "model")
    images: list[ImageSource] = []
    messages = tuple(_message(message, f"messages[{i}]", images) for i, message in enumerate(ask.messages))
    if len(images) > MAX_IMAGES:
        raise InvalidRequest(f"a request may have up to {MAX_IMAGES} images, this one has {len(images)}", "messages")
    if images and not service.has_vision:
        raise Unsupported("the model served here has no vision encoder and takes no images", images[0].param)
    template = ask.chat_template_kwargs or {}
    for name in RESERVED_VARIABLES.intersection(template):
        raise InvalidRequest(f"chat_template_kwargs may not set {name}", f"chat_template_kwargs.{name}")
    _check_stream_options(ask)
    return ChatRequest(messages, tuple(images), _wishes(ask), dict(template))


def _check_stream_options(ask: ChatCompletionRequest) -> None:
    if ask.stream_options is not None and not ask.stream:
        raise InvalidRequest("stream_options needs stream: true", "stream_options")


def _message(message: Message, path: str, images: list[ImageSource]) -> dict[str, Any]:
    """The message as templates read it; its pictures are appended to `images` and leave their index in place."""
    # Templates of open models know no developer role; it is the later name of the same thing.
    role = "system" if message.role == "developer" else message.role
    out: dict[str, Any] = {"role": role, "content": _content(message.content, path, images)}
    extra = message.model_dump(exclude_none=True, include={"name", "tool_call_id", "reasoning_content"})
    if isinstance(message, AssistantMessage):
        if message.content is None and not message.tool_calls:
            raise InvalidRequest(f"{path}.content: an assistant message needs content or tool_calls", f"{path}.content")
        calls = [_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls or ())]
        extra |= {"tool_calls": calls} if calls else {}
    return out | extra


def _content(content: Any, path: str, images: list[ImageSource]) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, Any]] = []
    for i, part in enumerate(content):
        if isinstance(part, ImagePart):
            parts.append({"type": "image", "image": len(images)})
            images.append(ImageSource(part.image_url.url, f"{path}.content[{i}].image_url.url"))
        else:
            parts.append({"type": "text", "text": part.text})
    return parts


def _call(call: ToolCall, path: str) -> dict[str, Any]:
    """A tool call of an earlier turn; templates read its arguments as an object."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{path}.function.arguments: must be a JSON object in a string", path)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _wishes(ask: ChatCompletionRequest) -> Wishes:
    if ask.top_logprobs is not None and not ask.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
    max_tokens = _max_tokens(ask)
    min_tokens = ask.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest("min_tokens is larger than max_tokens", "min_tokens")
    return Wishes(
        temperature=ask.temperature,
        top_p=ask.top_p,
        top_k=None if ask.top_k is None else max(ask.top_k, 0),
        min_p=ask.min_p,
        frequency_penalty=ask.frequency_penalty or 0.0,
        presence_penalty=ask.presence_penalty or 0.0,
        repetition_penalty=1.0 if ask.repetition_penalty is None else ask.repetition_penalty,
        logit_bias=_logit_bias(ask.logit_bias or {}),
        seed=ask.seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(ask.ignore_eos),
        stop=(ask.stop,) if isinstance(ask.stop, str) else tuple(ask.stop or ()),
        stop_token_ids=tuple(ask.stop_token_ids or ()),
        logprobs=(ask.top_logprobs or 0) if ask.logprobs else None,
        n=ask.n or 1,
    )


def _max_tokens(ask: ChatCompletionRequest) -> int | None:
    """`max_tokens` is the older name of `max_completion_tokens`."""
    given = {ask.max_tokens, ask.max_completion_tokens} - {None}
    if len(given) > 1:
        raise InvalidRequest("max_tokens and max_completion_tokens contradict each other", "max_completion_tokens")
    return given.pop() if given else None


def _logit_bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if not all(token.isascii() and token.isdigit() and len(token) < 10 for token in bias):
        raise InvalidRequest("logit_bias: keys are token ids", "logit_bias")
    return tuple(sorted((int(token), value) for token, value in bias.items()))


@dataclass(slots=True)
class Completion:
    """What a stream and a whole answer share: identity, counts and the first choice's timings."""

    answer: Answer
    model: str
    wishes: Wishes
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    ends: dict[int, ChoiceEnd] = field(default_factory=dict)

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"foveate-{__version__}",
        }

    def end(self, part: ChoiceEnd) -> None:
        assert part.choice not in self.ends, "a choice ended twice"
        self.ends[part.choice] = part

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage; image tokens are part of the prompt's. Asserts that every choice has ended."""
        assert len(self.ends) == self.wishes.n, "the answer stopped before all of its choices ended"
        prompt, completion = self.answer.prompt_tokens, sum(end.tokens for end in self.ends.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {
                "cached_tokens": 0,
                "image_tokens": self.answer.image_tokens,
                "images": self.answer.images,
            },
            "completion_tokens_details": {"reasoning_tokens": 0},
        }

    def timings(self) -> dict[str, Any]:
        """The first choice's timings: it is the one that brought the pictures in."""
        return timings_object(self.ends[0].timings, self.ends[0].tokens)


class WholeCompletion:
    """Collects an answer into one `chat.completion`."""

    def __init__(self, completion: Completion) -> None:
        self._of = completion
        self._texts: list[list[str]] = [[] for _ in range(completion.wishes.n)]
        self._logprobs: list[list[TokenText]] = [[] for _ in range(completion.wishes.n)]

    def add(self, part: TextDelta | ChoiceEnd) -> None:
        """Take in the next part of the answer."""
        if isinstance(part, ChoiceEnd):
            self._of.end(part)
        else:
            self._texts[part.choice].append(part.text)
            self._logprobs[part.choice].extend(part.logprobs)

    def document(self) -> dict[str, Any]:
        """The complete answer; call it once every part was added."""
        usage = self._of.usage()
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": "".join(self._texts[i]), "refusal": None},
                "logprobs": None if self._of.wishes.logprobs is None else logprobs_object(self._logprobs[i]),
                "finish_reason": self._of.ends[i].reason,
            }
            for i in range(self._of.wishes.n)
        ]
        return self._of.head("chat.completion") | {"choices": choices, "usage": usage, "timings": self._of.timings()}


class CompletionStream:
    """Turns an answer into the frames of a stream of `chat.completion.chunk`."""

    def __init__(self, completion: Completion, include_usage: bool) -> None:
        self._of = completion
        self._include_usage = include_usage

    def opening(self) -> list[bytes]:
        """One chunk per choice that names the role."""
        return [self._chunk(i, {"role": "assistant", "content": ""}) for i in range(self._of.wishes.n)]

    def part(self, part: TextDelta | ChoiceEnd) -> list[bytes]:
        """The frames for one part; none for a delta that says nothing."""
        if isinstance(part, ChoiceEnd):
            self._of.end(part)
            timings = timings_object(part.timings, part.tokens)
            return [self._chunk(part.choice, {}, reason=part.reason, timings=timings)]
        if not part.text and not part.logprobs:
            return []
        logprobs = logprobs_object(part.logprobs) if part.logprobs else None
        return [self._chunk(part.choice, {"content": part.text}, logprobs=logprobs)]

    def closing(self) -> list[bytes]:
        """Usage, if it was asked for, and the end mark."""
        usage = self._of.usage()
        if not self._include_usage:
            return [DONE]
        last = {"choices": [], "usage": usage, "timings": self._of.timings()}
        return [frame(self._of.head("chat.completion.chunk") | last), DONE]

    def failure(self, error: FoveateError) -> list[bytes]:
        """The error as the stream's last event."""
        return [frame(openai_error(error))]

    def _chunk(self, index: int, delta: dict[str, str], reason: str | None = None, **extra: Any) -> bytes:
        logprobs = extra.pop("logprobs", None)
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        usage = {"usage": None} if self._include_usage else {}
        return frame(self._of.head("chat.completion.chunk") | {"choices": [choice]} | usage | extra)


def logprobs_object(tokens: list[TokenText] | tuple[TokenText, ...]) -> dict[str, Any]:
    """OpenAI's `logprobs` of a choice."""
    return {
        "content": [
            _token(token.text, token.raw, token.logprob) | {"top_logprobs": [_token(*other) for other in token.top]}
            for token in tokens
        ],
        "refusal": None,
    }


def _token(text: str, raw: bytes, logprob: float) -> dict[str, Any]:
    # -9999 is OpenAI's own word for "next to impossible"; JSON has no infinity.
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(raw)}


def timings_object(timings: Timings, tokens: int) -> dict[str, Any]:
    """foveate's `timings`: seconds by stage, what the overlap hid, and each image's way through the stages."""
    rate = (tokens - 1) / timings.generation_s if tokens > 1 and timings.generation_s > 0 else None
    out = {name: _rounded(value) for name, value in asdict(timings).items() if name != "images"}
    return out | {
        "tokens_per_second": None if rate is None else round(rate, 3),
        "images": [_image_timing(image) for image in timings.images],
    }


def _image_timing(image: ImageTiming) -> dict[str, Any]:
    return {name: _rounded(value) for name, value in asdict(image).items() if name != "key"}


def _rounded(value: float | None) -> float | None:
    return round(value, 6) if isinstance(value, float) else value
