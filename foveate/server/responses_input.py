"""What a Responses request comes to: items, those of earlier responses included, as one conversation.

Owns the meaning of items: messages keep their place; what was thought, said and called between two inputs is one
message of the assistant. Promises that instructions count for their own request only, as OpenAI has it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from foveate.core.chat import ChatRequest, Form, Tools, Wishes
from foveate.core.errors import InvalidRequest
from foveate.server.asked import Pictures, call_of, check_model, schema_form, template_values, tools_of
from foveate.server.contract import Service
from foveate.server.responses_request import (
    KNOWN_KINDS,
    FunctionCallItem,
    FunctionOutputItem,
    InputImage,
    Item,
    Items,
    MessageItem,
    OutputText,
    ReasoningItem,
    Refusal,
    ResponsesRequest,
)
from foveate.server.stored import Stored
from foveate.server.wire import parse

LOGPROBS = "message.output_text.logprobs"
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


@dataclass(frozen=True, slots=True)
class Turn:
    """What is kept of a request for its response: the items it sent, all items so far, and whether to store it."""

    items: list[dict[str, Any]]
    before: list[dict[str, Any]]
    store: bool
    logprobs: bool


def translate(document: Any, service: Service, stored: Stored) -> tuple[ResponsesRequest, ChatRequest, Turn]:
    """The wire request, the service's request, and what is kept. Raises InvalidRequest and its kinds."""
    ask = parse(ResponsesRequest, document, KNOWN_KINDS)
    check_model(ask.model, service)
    if ask.stream_options is not None and not ask.stream:
        raise InvalidRequest("stream_options needs stream: true", "stream_options")
    previous = ask.previous_response_id
    before = [] if previous is None else stored.get(previous, "previous_response_id").conversation
    given = [MessageItem(role="user", content=ask.input)] if isinstance(ask.input, str) else ask.input
    items = [_kept(item) for item in given]
    conversation = _Conversation(Pictures())
    if ask.instructions:
        conversation.messages.append({"role": "system", "content": ask.instructions})
    for item in _again(before):
        conversation.add(item, "previous_response_id")
    for number, item in enumerate(given):
        conversation.add(item, f"input[{number}]")
    request = ChatRequest(
        tuple(conversation.messages),
        conversation.pictures.checked(service, "input"),
        _wishes(ask),
        template_values(ask.chat_template_kwargs),
        tools=_tools(ask),
        form=_form(ask),
        effort=None if ask.reasoning is None else ask.reasoning.effort,
    )
    return ask, request, Turn(items, before, ask.store is not False, request.wishes.logprobs is not None)


def _kept(item: Item) -> dict[str, Any]:
    """The item as it is stored and shown: with an id."""
    out = item.model_dump(exclude_none=True, by_alias=True)
    if isinstance(out.get("content"), str) and out["type"] == "message":
        kind = "output_text" if out["role"] == "assistant" else "input_text"
        out["content"] = [{"type": kind, "text": out["content"]}]
    return {"id": f"{_PREFIXES[out['type']]}_{uuid.uuid4().hex}"} | out


def _again(items: list[dict[str, Any]]) -> Items:
    """Stored items as they were read the first time."""
    if not items:
        return []
    read = ResponsesRequest.model_validate({"input": items}).input
    assert not isinstance(read, str)
    return read


class _Conversation:
    """Messages as templates read them, made from items one by one."""

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures
        self.messages: list[dict[str, Any]] = []
        self._open = False  # whether the last message is the assistant's and may still grow

    def add(self, item: Item, path: str) -> None:
        """Take in the next item. Raises InvalidRequest with its path."""
        if isinstance(item, FunctionOutputItem):
            content = self._content(item.output, f"{path}.output")
            self._close({"role": "tool", "tool_call_id": item.call_id, "content": content})
        elif isinstance(item, MessageItem) and item.role != "assistant":
            role = "system" if item.role == "developer" else item.role
            self._close({"role": role, "content": self._content(item.content, f"{path}.content")})
        elif isinstance(item, MessageItem):
            self._grow_content(self._content(item.content, f"{path}.content"))
        elif isinstance(item, FunctionCallItem):
            call = call_of(item.call_id, item.name, item.arguments, f"{path}.arguments")
            self._assistant().setdefault("tool_calls", []).append(call)
        elif isinstance(item, ReasoningItem):
            thought = "".join(part.text for part in item.content or item.summary or ())
            if thought:
                self._assistant()["reasoning_content"] = thought

    def _close(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._open = False

    def _assistant(self) -> dict[str, Any]:
        if not self._open:
            self.messages.append({"role": "assistant", "content": ""})
            self._open = True
        return self.messages[-1]

    def _grow_content(self, content: str | list[dict[str, Any]]) -> None:
        # A second message of the assistant is one of its own, unless nothing but thoughts stand before it.
        if self._open and (self.messages[-1]["content"] or self.messages[-1].get("tool_calls")):
            self._open = False
        self._assistant()["content"] = content

    def _content(self, content: Any, path: str) -> str | list[dict[str, Any]]:
        if isinstance(content, str):
            return content
        parts: list[dict[str, Any]] = []
        for number, part in enumerate(content):
            if isinstance(part, InputImage):
                parts.append(self.pictures.part(part.image_url, f"{path}[{number}].image_url"))
            else:
                parts.append({"type": "text", "text": part.refusal if isinstance(part, Refusal) else part.text})
        plain = len(parts) == 1 and isinstance(content[0], OutputText)
        return parts[0]["text"] if plain else parts


def _tools(ask: ResponsesRequest) -> Tools | None:
    functions = [
        tool.model_dump(exclude_none=True, include={"name", "description", "parameters", "strict"})
        for tool in ask.tools or ()
    ]
    choice, parallel = ask.tool_choice, ask.parallel_tool_calls is not False
    if choice is None or isinstance(choice, str):
        return tools_of(functions, choice or "auto", None, parallel)
    return tools_of(functions, "required", choice.name, parallel)


def _form(ask: ResponsesRequest) -> Form | None:
    wanted = None if ask.text is None else ask.text.format
    if wanted is None or wanted.type == "text":
        return None
    return (
        Form("json", None, "text.format")
        if wanted.type == "json_object"
        else schema_form(wanted.schema_, "text.format.schema")
    )


def _wishes(ask: ResponsesRequest) -> Wishes:
    wanted = LOGPROBS in (ask.include or ()) or ask.top_logprobs is not None
    return Wishes(
        temperature=ask.temperature,
        top_p=ask.top_p,
        top_k=None if ask.top_k is None else max(ask.top_k, 0),
        min_p=ask.min_p,
        frequency_penalty=ask.frequency_penalty or 0.0,
        presence_penalty=ask.presence_penalty or 0.0,
        repetition_penalty=1.0 if ask.repetition_penalty is None else ask.repetition_penalty,
        seed=ask.seed,
        max_tokens=ask.max_output_tokens,
        stop=(ask.stop,) if isinstance(ask.stop, str) else tuple(ask.stop or ()),
        logprobs=(ask.top_logprobs or 0) if wanted else None,
    )
