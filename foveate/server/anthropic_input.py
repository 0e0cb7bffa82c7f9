"""What an Anthropic messages request comes to: blocks as one conversation, tools, thinking, the form of the answer.

Owns the meaning of blocks. A tool's results are messages of their own, in their place; what a model thought, said and
called is one message. Pictures obey the rules of every API, wherever they stand. Thinking is off unless asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foveate.core.chat import ChatRequest, Form, Tools, Wishes
from foveate.core.errors import InvalidRequest
from foveate.server.anthropic_request import (
    KNOWN_KINDS,
    CountTokensRequest,
    CustomTool,
    ImageBlock,
    InlineSource,
    Message,
    MessagesRequest,
    System,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from foveate.server.asked import Pictures, check_model, tools_of
from foveate.server.contract import Service
from foveate.server.wire import parse


def translate(document: Any, service: Service) -> tuple[MessagesRequest, ChatRequest]:
    """The wire request and the service's. Raises InvalidRequest and its kinds."""
    ask = parse(MessagesRequest, document, KNOWN_KINDS)
    wishes = Wishes(
        temperature=ask.temperature,
        top_p=ask.top_p,
        top_k=ask.top_k,
        max_tokens=ask.max_tokens,
        stop=tuple(ask.stop_sequences or ()),
    )
    return ask, _request(ask, wishes, service)


def to_count(document: Any, service: Service) -> ChatRequest:
    """The request whose prompt is counted. Raises InvalidRequest and its kinds."""
    return _request(parse(CountTokensRequest, document, KNOWN_KINDS), Wishes(), service)


def _request(ask: MessagesRequest | CountTokensRequest, wishes: Wishes, service: Service) -> ChatRequest:
    check_model(ask.model, service)
    pictures = Pictures()
    messages = _system(ask.system)
    for number, message in enumerate(ask.messages):
        messages += _messages(message, f"messages[{number}]", pictures)
    config = ask.output_config
    wanted = None if config is None else config.format
    return ChatRequest(
        tuple(messages),
        pictures.checked(service, "messages"),
        wishes,
        tools=_tools(ask.tools or (), ask.tool_choice),
        form=None if wanted is None else Form("schema", wanted.schema_, "output_config.format.schema"),
        open_end=messages[-1]["role"] == "assistant",
        effort=_effort(ask, service),
        thought_len=None if ask.thinking is None else ask.thinking.budget_tokens,
    )


def _effort(ask: MessagesRequest | CountTokensRequest, service: Service) -> str | None:
    """How much to think; a model that cannot think is only told to where that was asked for outright."""
    able = service.facts().get("template", {}).get("reasoning_effort", False)
    effort = None if ask.output_config is None else ask.output_config.effort
    kind = None if ask.thinking is None else ask.thinking.type
    if kind == "enabled" or (able and kind in ("adaptive", "between_tools")):
        return effort or "high"
    return "none" if able else None


def _system(system: System | None) -> list[dict[str, Any]]:
    if not system:
        return []
    text = system if isinstance(system, str) else "\n".join(block.text for block in system)
    return [{"role": "system", "content": text}]


def _messages(message: Message, path: str, pictures: Pictures) -> list[dict[str, Any]]:
    """One message of theirs in as many of ours as it takes."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_assistant(message.content, path)]
    if message.role == "system":
        return [{"role": "system", "content": _instructions(message.content, path)}]
    out: list[dict[str, Any]] = []
    for number, block in enumerate(message.content):
        place = f"{path}.content[{number}]"
        if isinstance(block, ToolResultBlock):
            content = _result(block, place, pictures)
            out.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
            continue
        part = _part(block, place, pictures)
        if not out or out[-1]["role"] != "user":
            out.append({"role": "user", "content": []})
        out[-1]["content"].append(part)
    if not out:
        raise InvalidRequest(f"{path}.content: a message of the user needs content", f"{path}.content")
    return out


def _instructions(blocks: Sequence[Any], path: str) -> str:
    """The text of a system message among the others."""
    if not all(isinstance(block, TextBlock) for block in blocks):
        raise InvalidRequest(f"{path}.content: a system message is made of text blocks", f"{path}.content")
    return "\n".join(block.text for block in blocks)


def _part(block: Any, place: str, pictures: Pictures) -> dict[str, Any]:
    """A part of a message of the user or of a result."""
    if isinstance(block, ImageBlock):
        source = block.source
        if isinstance(source, InlineSource):
            return pictures.part(f"data:{source.media_type};base64,{source.data}", f"{place}.source.data")
        return pictures.part(source.url, f"{place}.source.url")
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    raise InvalidRequest(f"{place}: blocks of type {block.type} are not the user's", place)


def _result(block: ToolResultBlock, place: str, pictures: Pictures) -> str | list[dict[str, Any]]:
    if block.content is None or isinstance(block.content, str):
        return block.content or ""
    return [_part(part, f"{place}.content[{i}]", pictures) for i, part in enumerate(block.content)]


def _assistant(blocks: Sequence[Any], path: str) -> dict[str, Any]:
    text, thought, calls = "", "", list[dict[str, Any]]()
    for number, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            text += block.text
        elif isinstance(block, ThinkingBlock):
            thought += block.thinking
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": block.input}
            calls.append({"id": block.id, "type": "function", "function": function})
        else:
            place = f"{path}.content[{number}]"
            raise InvalidRequest(f"{place}: blocks of type {block.type} are not the assistant's", place)
    out: dict[str, Any] = {"role": "assistant", "content": text}
    return out | ({"reasoning_content": thought} if thought else {}) | ({"tool_calls": calls} if calls else {})


def _tools(tools: Sequence[CustomTool], choice: ToolChoice | None) -> Tools | None:
    functions = [
        {"name": tool.name}
        | ({"description": tool.description} if tool.description else {})
        | {"parameters": tool.input_schema}
        | ({"strict": True} if tool.strict else {})
        for tool in tools
    ]
    if choice is None:
        return tools_of(functions, "auto", None, True)
    if (choice.type == "tool") != (choice.name is not None):
        raise InvalidRequest("tool_choice.name goes with type tool", "tool_choice.name")
    kind = {"any": "required", "tool": "required"}.get(choice.type, choice.type)
    return tools_of(functions, kind, choice.name, not choice.disable_parallel_tool_use)
