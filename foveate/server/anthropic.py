"""Anthropic's messages: the JSON of `message`, whole and as the events of a stream.

Owns the content blocks of an answer and the events that tell of them. Whole answers are put together by the same steps
as streams, so that both say the same. Refuses to know how requests are read (`anthropic_input.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foveate.core.chat import CallDelta, ChoiceEnd, Delta, TextDelta
from foveate.core.errors import FoveateError
from foveate.server.contract import Answer
from foveate.server.errors import anthropic_error
from foveate.server.gathered import Gathering, arguments_of, call_id
from foveate.server.sse import frame
from foveate.server.timings import timings_object

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
Event = dict[str, Any]


@dataclass(slots=True)
class Said:
    """A message in the making; each part of the answer gives the events that tell of it. hide: thoughts stay empty."""

    answer: Answer
    model: str
    hide: bool = False
    blocks: list[dict[str, Any]] = field(default_factory=list)
    all: Gathering = field(init=False)
    _open: bool = False  # whether the last block may still grow

    def __post_init__(self) -> None:
        self.all = Gathering(self.answer)

    def add(self, part: Delta | ChoiceEnd) -> list[Event]:
        """Take in the next part."""
        self.all.add(part)
        if isinstance(part, ChoiceEnd):
            return self._close()
        if isinstance(part, CallDelta):
            return self._take_call(part)
        if not part.text:
            return []
        kind = "text" if isinstance(part, TextDelta) else "thinking"
        opened = [] if self._open and self.blocks[-1]["type"] == kind else self._start({"type": kind, kind: ""})
        if kind == "thinking" and self.hide:
            return opened
        self.blocks[-1][kind] += part.text
        return [*opened, self._delta({"type": f"{kind}_delta", kind: part.text})]

    def _take_call(self, part: CallDelta) -> list[Event]:
        events: list[Event] = []
        if part.name is not None:
            name = call_id(self.answer, part).replace("call_", "toolu_")
            events = self._start({"type": "tool_use", "id": name, "name": part.name, "input": {}})
        if part.arguments:
            events.append(self._delta({"type": "input_json_delta", "partial_json": part.arguments}))
        return events

    def _start(self, block: dict[str, Any]) -> list[Event]:
        closed = self._close()
        if block["type"] == "thinking":
            block["signature"] = ""
        self.blocks.append(block)
        self._open = True
        start = {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}
        return [*closed, start]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}

    def _close(self) -> list[Event]:
        if not self._open:
            return []
        self._open = False
        block = self.blocks[-1]
        if block["type"] == "tool_use":
            number = sum(block["type"] == "tool_use" for block in self.blocks) - 1
            # Nobody should run a call that the answer's end cut off: it has no input.
            block["input"] = arguments_of(self.all.choices[0].calls[number].arguments) or {}
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def head(self) -> dict[str, Any]:
        """The message before its first block."""
        usage = {"input_tokens": self.answer.prompt_tokens, "output_tokens": 0}
        return {
            "id": f"msg_{self.answer.id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage | {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
        }

    def ending(self) -> dict[str, Any]:
        """Why it ended."""
        end = self.all.choices[0].ended
        reason = "stop_sequence" if end.reason == "stop" and end.stop is not None else _REASONS[end.reason]
        return {"stop_reason": reason, "stop_sequence": end.stop if reason == "stop_sequence" else None}

    def usage(self) -> dict[str, Any]:
        """Tokens of the prompt, pictures included, and of the answer."""
        end = self.all.choices[0].ended
        thought = {"output_tokens_details": {"thinking_tokens": end.reasoning_tokens}}
        begun: dict[str, Any] = self.head()["usage"]
        return begun | {"output_tokens": end.tokens} | thought

    def timings(self) -> dict[str, Any]:
        """foveate's own."""
        end = self.all.choices[0].ended
        return timings_object(end.timings, end.tokens)


class WholeMessage:
    """Collects an answer into one `message`."""

    def __init__(self, said: Said) -> None:
        self._said = said
        self.add: Callable[[Delta | ChoiceEnd], Any] = said.add

    def document(self) -> dict[str, Any]:
        """The complete message; call it once every part was added."""
        said = self._said
        return (
            said.head() | {"content": said.blocks} | said.ending() | {"usage": said.usage(), "timings": said.timings()}
        )


class MessageStream:
    """Turns an answer into the frames of a stream."""

    def __init__(self, said: Said) -> None:
        self._said = said

    def opening(self) -> list[bytes]:
        """The message without content."""
        return _frames([{"type": "message_start", "message": self._said.head()}, {"type": "ping"}])

    def part(self, part: Delta | ChoiceEnd) -> list[bytes]:
        """The frames for one part; none for a delta that says nothing."""
        return _frames(self._said.add(part))

    def closing(self) -> list[bytes]:
        """Why it ended, and usage."""
        said = self._said
        last = {"delta": said.ending(), "usage": said.usage(), "timings": said.timings()}
        return _frames([{"type": "message_delta"} | last, {"type": "message_stop"}])

    def failure(self, error: FoveateError) -> list[bytes]:
        """The error as the stream's last event."""
        return [frame(anthropic_error(error), event="error")]


def _frames(events: list[Event]) -> list[bytes]:
    return [frame(event, event=event["type"]) for event in events]
