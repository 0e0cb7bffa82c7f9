"""A whole answer put together from its parts, before any API words it.

Owns the texts, calls and logprobs of each choice, and the counts of all. Promises that what it holds after the last
part is what a stream of the same answer says in all its events together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from foveate.core.chat import CallDelta, ChoiceEnd, Delta, TextDelta, ThoughtDelta, TokenText
from foveate.server.contract import Answer


@dataclass(slots=True)
class Call:
    """One tool call of the model; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str = ""


def arguments_of(text: str) -> dict[str, Any] | None:
    """A call's arguments as an object; None where the text is not a whole one, as of a call that was cut off."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(slots=True)
class Gathered:
    """One choice."""

    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenText] = field(default_factory=list)
    end: ChoiceEnd | None = None

    @property
    def ended(self) -> ChoiceEnd:
        """How it ended; asserts that it has."""
        assert self.end is not None, "the answer stopped before all of its choices ended"
        return self.end


class Gathering:
    """All choices of one answer."""

    def __init__(self, answer: Answer, n: int = 1) -> None:
        self.answer = answer
        self.choices = [Gathered() for _ in range(n)]

    def add(self, part: Delta | ChoiceEnd) -> None:
        """Take in the next part."""
        choice = self.choices[part.choice]
        if isinstance(part, ChoiceEnd):
            assert choice.end is None, "a choice ended twice"
            choice.end = part
            return
        choice.logprobs.extend(part.logprobs)
        if isinstance(part, TextDelta):
            choice.text += part.text
        elif isinstance(part, ThoughtDelta):
            choice.thought += part.text
        elif isinstance(part, CallDelta):
            if part.name is not None:
                choice.calls.append(Call(call_id(self.answer, part), part.name))
            choice.calls[-1].arguments += part.arguments

    @property
    def output_tokens(self) -> int:
        """Generated tokens of all choices."""
        return sum(choice.ended.tokens for choice in self.choices)

    @property
    def reasoning_tokens(self) -> int:
        """Those that were thought."""
        return sum(choice.ended.reasoning_tokens for choice in self.choices)


def call_id(answer: Answer, part: CallDelta) -> str:
    """The id of a call, unlike that of any other call in any answer."""
    return f"call_{answer.id[:20]}{part.choice:02x}{part.call:04x}"
