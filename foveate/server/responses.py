"""OpenAI's responses: the JSON of `response`, whole and as the events of a stream.

Owns the items of an answer (what was thought, said and called, in the order in which it came) and the events that tell
of them. Whole answers are put together by the same steps as streams, so that both say the same. Refuses to know how
requests are read (`responses_input.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from foveate.core.chat import CallDelta, ChoiceEnd, Delta, TextDelta, ThoughtDelta, TokenText
from foveate.core.errors import FoveateError
from foveate.server.contract import Answer
from foveate.server.gathered import Gathering, arguments_of, call_id
from foveate.server.openai import logprobs_object
from foveate.server.responses_input import Turn
from foveate.server.responses_request import ResponsesRequest
from foveate.server.sse import frame
from foveate.server.stored import Stored
from foveate.server.stored import Turn as StoredTurn
from foveate.server.timings import timings_object

Event = tuple[str, dict[str, Any]]


def echo_of(ask: ResponsesRequest) -> dict[str, Any]:
    """What a response repeats of its request."""
    given = ask.model_dump(exclude_none=True, by_alias=True)
    return {
        "background": False,
        "instructions": ask.instructions,
        "max_output_tokens": ask.max_output_tokens,
        "metadata": ask.metadata or {},
        "parallel_tool_calls": ask.parallel_tool_calls is not False,
        "previous_response_id": ask.previous_response_id,
        "reasoning": {"effort": None, "summary": None} | given.get("reasoning", {}),
        "service_tier": "default",
        "store": ask.store is not False,
        "temperature": ask.temperature,
        "text": {"format": {"type": "text"}} | given.get("text", {}),
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": [{"strict": None, "parameters": None, **tool} for tool in given.get("tools", [])],
        "top_logprobs": ask.top_logprobs or 0,
        "top_p": ask.top_p,
        "truncation": "disabled",
        "user": ask.user,
    }


@dataclass(slots=True)
class Made:
    """A response in the making; each part of the answer gives the events that tell of it."""

    answer: Answer
    model: str
    echo: dict[str, Any]
    turn: Turn
    stored: Stored
    created: int = field(default_factory=lambda: int(time.time()))
    items: list[dict[str, Any]] = field(default_factory=list)
    all: Gathering = field(init=False)
    _open: dict[str, Any] | None = None  # the item that may still grow: the last
    _waiting: tuple[TokenText, ...] = ()  # logprobs that go to the next message, if it comes before another item

    def __post_init__(self) -> None:
        self.all = Gathering(self.answer)

    @property
    def id(self) -> str:
        """The response's id."""
        return f"resp_{self.answer.id}"

    def add(self, part: Delta | ChoiceEnd) -> list[Event]:
        """Take in the next part."""
        self.all.add(part)
        if isinstance(part, ChoiceEnd):
            return self._end()
        if isinstance(part, CallDelta):
            return self._take_call(part)
        if isinstance(part, TextDelta):
            return self._take_words(part)
        return [*self._switch_to("reasoning"), self._take_text(part)] if part.text else []

    def _take_words(self, part: TextDelta) -> list[Event]:
        """Text of a message. Logprobs alone open none, so that the items are the same without them, too."""
        in_message = self._open is not None and self._open["type"] == "message"
        if not part.text and not in_message:
            self._waiting += part.logprobs
            return []
        part, self._waiting = replace(part, logprobs=self._waiting + part.logprobs), ()
        return [*self._switch_to("message"), self._take_text(part)] if part.text or part.logprobs else []

    def _switch_to(self, kind: str) -> list[Event]:
        """Close what is open and open an item, unless one of its kind is open."""
        if self._open is not None and self._open["type"] == kind:
            return []
        return self._close_item() + self._open_item(kind)

    def _end(self) -> list[Event]:
        """The answer has ended; one that said nothing is an empty message."""
        opened: list[Event] = []
        if not self.items:
            opened = self._open_item("message")
            opened += [self._take_text(TextDelta(0, "", 0, self._waiting))] if self._waiting else []
        return opened + self._close_item()

    def _take_text(self, part: TextDelta | ThoughtDelta) -> Event:
        item = self._last()
        inner = item["content"][0]
        inner["text"] += part.text
        event = {"item_id": item["id"], "output_index": self._index(), "content_index": 0, "delta": part.text}
        if isinstance(part, ThoughtDelta):
            return "response.reasoning_text.delta", event
        logprobs = self._logprobs(part)
        inner["logprobs"] += logprobs
        return "response.output_text.delta", event | {"logprobs": logprobs}

    def _logprobs(self, part: TextDelta) -> list[dict[str, Any]]:
        return logprobs_object(part.logprobs)["content"] if self.turn.logprobs else []

    def _take_call(self, part: CallDelta) -> list[Event]:
        events: list[Event] = []
        if part.name is not None:
            events = self._close_item() + self._open_item(
                "function_call", call_id=call_id(self.answer, part), name=part.name
            )
        item = self._last()
        item["arguments"] += part.arguments
        if part.arguments:
            place = {"item_id": item["id"], "output_index": self._index()}
            events.append(("response.function_call_arguments.delta", place | {"delta": part.arguments}))
        return events

    def _last(self) -> dict[str, Any]:
        assert self._open is not None, "no item is open"
        return self._open

    def _index(self) -> int:
        return len(self.items) - 1

    def _open_item(self, kind: str, **facts: Any) -> list[Event]:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        name = f"{prefix}_{self.answer.id}{len(self.items):02x}"
        item: dict[str, Any] = {"id": name, "type": kind, "status": "in_progress"}
        own: dict[str, dict[str, Any]] = {
            "message": {"role": "assistant", "content": []},
            "reasoning": {"summary": [], "content": []},
            "function_call": {"arguments": ""},
        }
        item |= own[kind] | facts
        self.items.append(item)
        self._open = item
        events = [self._event("response.output_item.added", item=_copy(item))]
        if kind != "function_call":
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"].append(part)
            events.append(self._event("response.content_part.added", item=item, part=_copy(part)))
        return events

    def _close_item(self) -> list[Event]:
        self._waiting = ()
        if self._open is None:
            return []
        item, self._open = self._open, None
        # A call is whole or not by its arguments alone: stop strings and early ends cut calls off, too, and a cut right
        # behind the arguments takes nothing from them.
        is_call = item["type"] == "function_call"
        is_cut = arguments_of(item["arguments"]) is None if is_call else self._is_cut()
        item["status"] = "incomplete" if is_cut else "completed"
        done = [self._event("response.output_item.done", item=_copy(item))]
        if is_call:
            facts = {"arguments": item["arguments"], "name": item["name"]}
            return [self._event("response.function_call_arguments.done", item=item, **facts), *done]
        part = item["content"][0]
        name, facts = "response.reasoning_text.done", {"text": part["text"]}
        if item["type"] == "message":
            name, facts = "response.output_text.done", facts | {"logprobs": part["logprobs"]}
        text = self._event(name, item=item, content_index=0, **facts)
        return [text, self._event("response.content_part.done", item=item, part=_copy(part)), *done]

    def _is_cut(self) -> bool:
        """Whether the answer has ended because it was too long."""
        end = self.all.choices[0].end
        return end is not None and end.reason == "length"

    def _event(self, kind: str, item: dict[str, Any], **facts: Any) -> Event:
        """An event about an item: with all of it, or with its id."""
        place: dict[str, Any] = {"output_index": self._index()}
        if kind.startswith("response.output_item"):
            return kind, place | {"item": item}
        more = {"content_index": 0} if "part" in facts else {}
        return kind, place | {"item_id": item["id"]} | more | facts

    def document(self, status: str = "in_progress", error: FoveateError | None = None) -> dict[str, Any]:
        """The response as it stands."""
        told = None if error is None else {"code": "server_error", "message": error.message}
        ended = status in ("completed", "incomplete")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": told,
            "incomplete_details": self._details() if status == "incomplete" else None,
            "model": self.model,
            "output": self.items if status != "in_progress" else [],
            "usage": self._usage() if ended else None,
            "timings": self._timings() if ended else None,
        } | self.echo

    def finish(self) -> dict[str, Any]:
        """The complete response, stored if it is to be."""
        # What was never a whole call is no call to later turns: templates could not even write it.
        kept = [item for item in self.items if item["type"] != "function_call" or item["status"] == "completed"]
        document = self.document("incomplete" if self._is_cut() or len(kept) < len(self.items) else "completed")
        if self.turn.store:
            conversation = [*self.turn.before, *self.turn.items, *kept]
            self.stored.put(self.id, StoredTurn(document, self.turn.items, conversation))
        return document

    def _details(self) -> dict[str, Any]:
        """Why the response is incomplete; OpenAI has no word for a call that ended early."""
        return {"reason": "max_output_tokens"} if self._is_cut() else {}

    def _usage(self) -> dict[str, Any]:
        given, made = self.answer.prompt_tokens, self.all.output_tokens
        return {
            "input_tokens": given,
            "input_tokens_details": {
                "cached_tokens": 0,
                "cache_write_tokens": 0,
                "image_tokens": self.answer.image_tokens,
                "images": self.answer.images,
            },
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": self.all.reasoning_tokens},
            "total_tokens": given + made,
        }

    def _timings(self) -> dict[str, Any]:
        end = self.all.choices[0].ended
        return timings_object(end.timings, end.tokens)


def _copy(value: dict[str, Any]) -> dict[str, Any]:
    """A value as it is now; it grows later."""
    return {name: list(inner) if isinstance(inner, list) else inner for name, inner in value.items()}


class WholeResponse:
    """Collects an answer into one `response`."""

    def __init__(self, made: Made) -> None:
        self._made = made
        self.add: Callable[[Delta | ChoiceEnd], Any] = made.add

    def document(self) -> dict[str, Any]:
        """The complete response; call it once every part was added."""
        return self._made.finish()


class ResponseStream:
    """Turns an answer into the frames of a stream, numbered through."""

    def __init__(self, made: Made) -> None:
        self._made, self._number = made, 0

    def opening(self) -> list[bytes]:
        """The response exists and is under way."""
        document = self._made.document()
        return [self._frame(name, {"response": document}) for name in ("response.created", "response.in_progress")]

    def part(self, part: Delta | ChoiceEnd) -> list[bytes]:
        """The frames for one part; none for a delta that says nothing."""
        return [self._frame(name, facts) for name, facts in self._made.add(part)]

    def closing(self) -> list[bytes]:
        """The complete response."""
        document = self._made.finish()
        return [self._frame(f"response.{document['status']}", {"response": document})]

    def failure(self, error: FoveateError) -> list[bytes]:
        """The response, failed."""
        return [self._frame("response.failed", {"response": self._made.document("failed", error)})]

    def _frame(self, name: str, facts: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        return frame({"type": name, "sequence_number": number} | facts, event=name)
