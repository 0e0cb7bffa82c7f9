"""OpenAI's older completions: the JSON of `text_completion`, whole and streamed.

Owns the words of the answer, its older shape of logprobs, and the joining of several prompts' answers into one whose
choices are numbered through. Promises that a stream and a whole answer say the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from foveate import __version__
from foveate.core.chat import AnswerPart, ChatRequest, ChoiceEnd, Delta, Progress, TextDelta, TokenText
from foveate.core.errors import FoveateError
from foveate.server.contract import Answer, Service
from foveate.server.errors import openai_error
from foveate.server.gathered import Gathering
from foveate.server.openai import DONE, usage_object
from foveate.server.sse import frame
from foveate.server.timings import timings_object


class Several:
    """The answers to several prompts as one; each has `n` choices, and they end in the order of the prompts."""

    image_tokens = images = 0

    def __init__(self, answers: Sequence[Answer], n: int) -> None:
        self._answers, self._n = answers, n
        self.id, self.prompt_tokens = answers[0].id, sum(answer.prompt_tokens for answer in answers)

    async def parts(self) -> AsyncIterator[AnswerPart]:
        """Their parts, one answer after the other; all are under way at once."""
        for number, answer in enumerate(self._answers):
            async for part in answer.parts():
                yield part if isinstance(part, Progress) else replace(part, choice=number * self._n + part.choice)

    async def aclose(self) -> None:
        """Close them all."""
        for answer in self._answers:
            await answer.aclose()


def echo(request: ChatRequest, service: Service) -> str:
    """The prompt as text. Raises InvalidRequest for an id that the model does not have."""
    prompt = request.prompt or ""
    return prompt if isinstance(prompt, str) else service.text(prompt)


async def begin(service: Service, requests: Sequence[ChatRequest]) -> Answer:
    """Start all requests, or none: what one of them is refused for is raised, and the others are closed."""
    if len(requests) == 1:
        return await service.chat(requests[0])
    async with AsyncExitStack() as stack:
        tasks = [asyncio.ensure_future(service.chat(request)) for request in requests]
        stack.push_async_callback(_close_begun, tasks)
        answers = [await task for task in tasks]
        stack.pop_all()
        return Several(answers, requests[0].wishes.n)


async def _close_begun(tasks: Sequence[asyncio.Future[Answer]]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(outcome, BaseException):
            await outcome.aclose()


@dataclass(slots=True)
class TextCompletion:
    """What stream and whole share. echoes: what each choice begins with; `logprobs`: whether they are wanted."""

    answer: Answer
    model: str
    echoes: Sequence[str]
    logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))
    all: Gathering = field(init=False)

    def __post_init__(self) -> None:
        self.all = Gathering(self.answer, len(self.echoes))

    def head(self) -> dict[str, Any]:
        """What every document and chunk has."""
        return {
            "id": f"cmpl-{self.answer.id}",
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"foveate-{__version__}",
        }

    def timings(self) -> dict[str, Any]:
        """The first choice's timings."""
        first = self.all.choices[0].ended
        return timings_object(first.timings, first.tokens)


class WholeText:
    """Collects an answer into one document."""

    def __init__(self, completion: TextCompletion) -> None:
        self._of = completion
        self.add = completion.all.add

    def document(self) -> dict[str, Any]:
        """The complete answer; call it once every part was added."""
        usage = usage_object(self._of.all)
        choices = [
            {
                "index": i,
                "text": self._of.echoes[i] + choice.text,
                "logprobs": legacy_logprobs(choice.logprobs, 0) if self._of.logprobs else None,
                "finish_reason": choice.ended.reason,
            }
            for i, choice in enumerate(self._of.all.choices)
        ]
        return self._of.head() | {"choices": choices, "usage": usage, "timings": self._of.timings()}


class TextStream:
    """Turns an answer into the frames of a stream."""

    def __init__(self, completion: TextCompletion, include_usage: bool) -> None:
        self._of, self._include_usage = completion, include_usage
        self._offsets = [0] * len(completion.echoes)

    def opening(self) -> list[bytes]:
        """The prompts, where they are echoed."""
        return [self._chunk(i, echo) for i, echo in enumerate(self._of.echoes) if echo]

    def part(self, part: Delta | ChoiceEnd) -> list[bytes]:
        """The frames for one part; none for a delta that says nothing."""
        self._of.all.add(part)
        if isinstance(part, ChoiceEnd):
            return [self._chunk(part.choice, "", part.reason, timings=timings_object(part.timings, part.tokens))]
        assert isinstance(part, TextDelta), "a prompt without a template has no markup"
        if not part.text and not part.logprobs:
            return []
        logprobs = legacy_logprobs(part.logprobs, self._offsets[part.choice]) if part.logprobs else None
        self._offsets[part.choice] += sum(len(token.text) for token in part.logprobs)
        return [self._chunk(part.choice, part.text, logprobs=logprobs)]

    def closing(self) -> list[bytes]:
        """Usage, if it was asked for, and the end mark."""
        usage = usage_object(self._of.all)
        if not self._include_usage:
            return [DONE]
        return [frame(self._of.head() | {"choices": [], "usage": usage, "timings": self._of.timings()}), DONE]

    def failure(self, error: FoveateError) -> list[bytes]:
        """The error as the stream's last event."""
        return [frame(openai_error(error))]

    def _chunk(self, index: int, text: str, reason: str | None = None, **extra: Any) -> bytes:
        choice = {"index": index, "text": text, "logprobs": extra.pop("logprobs", None), "finish_reason": reason}
        usage = {"usage": None} if self._include_usage else {}
        return frame(self._of.head() | {"choices": [choice]} | usage | extra)


def legacy_logprobs(tokens: Sequence[TokenText], offset: int) -> dict[str, Any]:
    """The four parallel lists of the older API; `offset` counts characters of the answer before the first token."""
    offsets = [offset]
    for token in tokens[:-1]:
        offsets.append(offsets[-1] + len(token.text))
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [max(token.logprob, -9999.0) for token in tokens],
        "top_logprobs": [{text: max(value, -9999.0) for text, _, value in token.top} for token in tokens],
        "text_offset": offsets[: len(tokens)],
    }
