"""OpenAI's chat completions: their request to ours, our answer to theirs.

Owns the meaning of each request field, and the JSON of `chat.completion` and `chat.completion.chunk`, with foveate's
`timings` beside `usage`. Promises that a stream and a whole answer to one request say the same. Refuses to know how
bytes reach the client (`reply.py`, `sse.py`) and what an image is beyond its URL.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from foveate import __version__
from foveate.core.chat import (
    CallDelta,
    ChatRequest,
    ChoiceEnd,
    Delta,
    Form,
    TextDelta,
    ThoughtDelta,
    TokenText,
    Tools,
    Wishes,
)
from foveate.core.errors import FoveateError, InvalidRequest
from foveate.server.asked import Pictures, call_of, check_model, schema_form, template_values, tools_of
from foveate.server.contract import Answer, Service
from foveate.server.errors import openai_error
from foveate.server.gathered import Gathered, Gathering, call_id
from foveate.server.openai_request import (
    AssistantMessage,
    ChatCompletionRequest,
    ImagePart,
    InputImagePart,
    Message,
    StructuredOutputs,
)
from foveate.server.sse import frame
from foveate.server.timings import timings_object

DONE = b"data: [DONE]\n\n"


def translate(ask: ChatCompletionRequest, service: Service) -> ChatRequest:
    """The service's request for a valid wire request. Raises ModelNotFound and InvalidRequest."""
    check_model(ask.model, service)
    pictures = Pictures()
    messages = tuple(_message(message, f"messages[{i}]", pictures) for i, message in enumerate(ask.messages))
    images = pictures.checked(service, "messages")
    template = template_values(ask.chat_template_kwargs)
    if ask.stream_options is not None and not ask.stream:
        raise InvalidRequest("stream_options needs stream: true", "stream_options")
    return ChatRequest(
        messages,
        images,
        _wishes(ask),
        template,
        tools=_tools(ask),
        form=_form(ask),
        open_end=_open_end(ask),
        generation_prompt=ask.add_generation_prompt is not False,
        effort=ask.reasoning_effort,
        thought_len=ask.thinking_token_budget,
    )


def _open_end(ask: ChatCompletionRequest) -> bool:
    if not ask.continue_final_message:
        return False
    if ask.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other", "add_generation_prompt"
        )
    if ask.messages[-1].role != "assistant":
        raise InvalidRequest("continue_final_message needs a last message of the assistant", "continue_final_message")
    return True


def _message(message: Message, path: str, pictures: Pictures) -> dict[str, Any]:
    """The message as templates read it; its pictures leave their index in place."""
    # Templates of open models know no developer role; it is the later name of the same thing.
    role = "system" if message.role == "developer" else message.role
    out: dict[str, Any] = {"role": role, "content": _content(message.content, path, pictures)}
    extra = message.model_dump(exclude_none=True, include={"name", "tool_call_id", "reasoning_content"})
    if isinstance(message, AssistantMessage):
        if message.content is None and not message.tool_calls:
            raise InvalidRequest(f"{path}.content: an assistant message needs content or tool_calls", f"{path}.content")
        calls = [
            call_of(call.id, call.function.name, call.function.arguments, f"{path}.tool_calls[{i}]")
            for i, call in enumerate(message.tool_calls or ())
        ]
        extra |= {"tool_calls": calls} if calls else {}
    return out | extra


def _content(content: Any, path: str, pictures: Pictures) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, Any]] = []
    for i, part in enumerate(content):
        if isinstance(part, ImagePart):
            parts.append(pictures.part(part.image_url.url, f"{path}.content[{i}].image_url.url"))
        elif isinstance(part, InputImagePart):
            parts.append(pictures.part(part.image_url, f"{path}.content[{i}].image_url"))
        else:
            parts.append({"type": "text", "text": part.text})
    return parts


def _tools(ask: ChatCompletionRequest) -> Tools | None:
    functions = [tool.function.model_dump(exclude_none=True) for tool in ask.tools or ()]
    choice = ask.tool_choice
    if choice is None or isinstance(choice, str):
        return tools_of(functions, choice or "auto", None, ask.parallel_tool_calls is not False)
    return tools_of(functions, "required", choice.function.name, ask.parallel_tool_calls is not False)


def _form(ask: ChatCompletionRequest) -> Form | None:
    wanted, extra = ask.response_format, ask.structured_outputs
    form = None if extra is None else extra_form(extra)
    if wanted is None or wanted.type == "text":
        return form
    if form is not None:
        raise InvalidRequest("response_format and structured_outputs exclude each other", "structured_outputs")
    if wanted.type == "json_object":
        return Form("json")
    schema = None if wanted.json_schema is None else wanted.json_schema.schema_
    return schema_form(schema, "response_format.json_schema.schema")


def extra_form(extra: StructuredOutputs) -> Form | None:
    """The one form that is asked for, if any. Raises InvalidRequest for several."""
    forms = [
        Form(kind, value, "structured_outputs")
        for kind, value in (
            ("schema", extra.json_),
            ("json", extra.json_object or None),
            ("regex", extra.regex),
            ("choice", extra.choice),
            ("grammar", extra.grammar),
        )
        if value is not None
    ]
    if len(forms) > 1:
        raise InvalidRequest("structured_outputs takes one form only", "structured_outputs")
    return forms[0] if forms else None


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
        logit_bias=logit_bias(ask.logit_bias or {}),
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


def logit_bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """OpenAI's `logit_bias`, whose keys are token ids in words. Raises InvalidRequest."""
    if not all(token.isascii() and token.isdigit() and len(token) < 10 for token in bias):
        raise InvalidRequest("logit_bias: keys are token ids", "logit_bias")
    return tuple(sorted((int(token), value) for token, value in bias.items()))


@dataclass(slots=True)
class Completion:
    """What a stream and a whole answer share: identity, counts and the first choice's timings."""

    answer: Answer
    model: str
    wishes: Wishes
    created: int = field(default_factory=lambda: int(time.time()))
    all: Gathering = field(init=False)

    def __post_init__(self) -> None:
        self.all = Gathering(self.answer, self.wishes.n)

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.answer.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"foveate-{__version__}",
        }

    def timings(self) -> dict[str, Any]:
        """The first choice's timings: it is the one that brought the pictures in."""
        first = self.all.choices[0].ended
        return timings_object(first.timings, first.tokens)


def usage_object(gathering: Gathering) -> dict[str, Any]:
    """OpenAI's usage; image tokens are part of the prompt's. Asserts that every choice has ended."""
    prompt, completion = gathering.answer.prompt_tokens, gathering.output_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": 0,
            "image_tokens": gathering.answer.image_tokens,
            "images": gathering.answer.images,
        },
        "completion_tokens_details": {"reasoning_tokens": gathering.reasoning_tokens},
    }


class WholeCompletion:
    """Collects an answer into one `chat.completion`."""

    def __init__(self, completion: Completion) -> None:
        self._of = completion
        self.add = completion.all.add

    def document(self) -> dict[str, Any]:
        """The complete answer; call it once every part was added."""
        usage = usage_object(self._of.all)
        choices = [
            {
                "index": i,
                "message": _answer_message(choice),
                "logprobs": None if self._of.wishes.logprobs is None else logprobs_object(choice.logprobs),
                "finish_reason": choice.ended.reason,
            }
            for i, choice in enumerate(self._of.all.choices)
        ]
        return self._of.head("chat.completion") | {"choices": choices, "usage": usage, "timings": self._of.timings()}


def _answer_message(choice: Gathered) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.thought:
        message["reasoning_content"] = choice.thought
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.calls
        ]
    return message


class CompletionStream:
    """Turns an answer into the frames of a stream of `chat.completion.chunk`."""

    def __init__(self, completion: Completion, include_usage: bool) -> None:
        self._of = completion
        self._include_usage = include_usage

    def opening(self) -> list[bytes]:
        """One chunk per choice that names the role."""
        return [self._chunk(i, {"role": "assistant", "content": ""}) for i in range(self._of.wishes.n)]

    def part(self, part: Delta | ChoiceEnd) -> list[bytes]:
        """The frames for one part; none for a delta that says nothing."""
        self._of.all.add(part)
        if isinstance(part, ChoiceEnd):
            timings = timings_object(part.timings, part.tokens)
            return [self._chunk(part.choice, {}, reason=part.reason, timings=timings)]
        delta = self._delta(part)
        if delta is None and not part.logprobs:
            return []
        logprobs = logprobs_object(part.logprobs) if part.logprobs else None
        return [self._chunk(part.choice, delta or {"content": ""}, logprobs=logprobs)]

    def _delta(self, part: Delta) -> dict[str, Any] | None:
        if isinstance(part, TextDelta):
            return {"content": part.text} if part.text else None
        if isinstance(part, ThoughtDelta):
            return {"reasoning_content": part.text} if part.text else None
        return {"tool_calls": [_call_delta(self._of.answer, part)]}

    def closing(self) -> list[bytes]:
        """Usage, if it was asked for, and the end mark."""
        usage = usage_object(self._of.all)
        if not self._include_usage:
            return [DONE]
        last = {"choices": [], "usage": usage, "timings": self._of.timings()}
        return [frame(self._of.head("chat.completion.chunk") | last), DONE]

    def failure(self, error: FoveateError) -> list[bytes]:
        """The error as the stream's last event."""
        return [frame(openai_error(error))]

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None, **extra: Any) -> bytes:
        logprobs = extra.pop("logprobs", None)
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        usage = {"usage": None} if self._include_usage else {}
        return frame(self._of.head("chat.completion.chunk") | {"choices": [choice]} | usage | extra)


def _call_delta(answer: Answer, part: CallDelta) -> dict[str, Any]:
    """A piece of a call; its first one has id and name."""
    if part.name is None:
        return {"index": part.call, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.call, "id": call_id(answer, part), "type": "function", "function": function}


def logprobs_object(tokens: Sequence[TokenText]) -> dict[str, Any]:
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
