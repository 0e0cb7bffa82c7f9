"""The request references of the installed openai and anthropic packages, walked to their leaves: whatever they know,
this server knows too, and either does it or refuses it by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming as Messages
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as Chat
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming as Responses
from typing_extensions import get_type_hints, is_typeddict

from foveate.server import anthropic_request, openai_request, responses_request
from tests.server.live import Live

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
TURN = {"role": "user", "content": "hello"}
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [TURN]},
    RESPONSES: {"input": "hello"},
    MESSAGES: {"messages": [TURN], "max_tokens": 4},
}
REFERENCES = {CHAT: Chat, RESPONSES: Responses, MESSAGES: Messages}


def dicts(kind: Any, path: str = "", above: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any, str]]:
    """(path, dictionary type, name of the one around it) of all below a reference; lists add nothing to a path."""
    if not is_typeddict(kind):
        for inner in get_args(kind):
            yield from dicts(inner, path, above)
    elif kind not in above:
        yield path, kind, above[-1].__name__ if above else ""
        for name, inner in get_type_hints(kind).items():
            yield from dicts(inner, f"{path}.{name}".lstrip("."), (*above, kind))


def names(kind: Any) -> set[str]:
    """The values of a dictionary's `type` that its reference lists."""
    found, left = set[str](), [get_type_hints(kind).get("type")]
    while left:
        inner = left.pop()
        found |= {inner} if isinstance(inner, str) else set()
        left += get_args(inner)
    return found


# Where a `type` decides what an object is: (API, path in its reference, how a request holds such an object there).
PLACES: list[tuple[str, str, Any]] = [
    (CHAT, "messages.content", lambda part: {"messages": [{"role": "user", "content": [part]}]}),
    (CHAT, "messages.tool_calls", lambda call: {"messages": [TURN, {"role": "assistant", "tool_calls": [call]}]}),
    (CHAT, "tools", lambda tool: {"tools": [tool]}),
    (CHAT, "tool_choice", lambda choice: {"tool_choice": choice}),
    (CHAT, "response_format", lambda form: {"response_format": form}),
    (RESPONSES, "input", lambda item: {"input": [item]}),
    (RESPONSES, "input.content", lambda part: {"input": [{"role": "user", "content": [part]}]}),
    (RESPONSES, "input.output", lambda part: {"input": [
        {"type": "function_call_output", "call_id": "a", "output": [part]}]}),
    (RESPONSES, "tools", lambda tool: {"tools": [tool]}),
    (RESPONSES, "tool_choice", lambda choice: {"tool_choice": choice}),
    (RESPONSES, "text.format", lambda form: {"text": {"format": form}}),
    (MESSAGES, "messages.content", lambda block: {"messages": [{"role": "user", "content": [block]}]}),
    (MESSAGES, "messages.content.source", lambda source: {"messages": [
        {"role": "user", "content": [{"type": "image", "source": source}]}]}),
    (MESSAGES, "messages.content.content", lambda block: {"messages": [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [block]}]}]}),
    (MESSAGES, "tools", lambda tool: {"tools": [tool]}),
    (MESSAGES, "tool_choice", lambda choice: {"tools": [{"name": "a", "input_schema": {}}], "tool_choice": choice}),
    (MESSAGES, "thinking", lambda thinking: {"thinking": thinking}),
    (MESSAGES, "output_config.format", lambda form: {"output_config": {"format": form}}),
]  # fmt: skip


@pytest.mark.parametrize(("api", "path", "hold"), PLACES, ids=[f"{api[4:]} {path}" for api, path, _ in PLACES])
def test_every_kind_of_object_is_known(live: Live, api: str, path: str, hold: Any) -> None:
    """An object of that type and nothing else: what is missing in it is told, or that its type is not offered; never
    that nobody knows such a type."""
    within = AROUND.get((api, path), "")
    found_at = [kind for at, kind, around in dicts(REFERENCES[api]) if at == path and around in (within or around)]
    kinds = set[str]().union(*map(names, found_at))
    assert kinds, "the reference has changed its shape"
    unknown = {}
    for kind in sorted(kinds):
        found = live.http.post(api, json=BASE[api] | hold({"type": kind}))
        assert found.status_code in (200, 400), found.text
        if found.status_code == 400:
            error = found.json()["error"]
            named = f"of type {kind} are not supported" in error["message"]
            told = error.get("code") == "unsupported_parameter" or named
            lacking = "missing required parameter" in error["message"] or kind in KNOWN_HERE
            unknown |= {} if told or lacking else {kind: error["message"]}
    assert not unknown


# Of several things that have such a part, the ones that are meant.
AROUND = {
    (RESPONSES, "input.content"): "EasyInputMessageParam Message ResponseOutputMessageParam",
    (RESPONSES, "input.output"): "FunctionCallOutput",
    (MESSAGES, "messages.content.source"): "ImageBlockParam",
    (MESSAGES, "messages.content.content"): "ToolResultBlockParam",
}
KNOWN_HERE = {"json_schema", "tool"}  # told what it lacks in words of its own

# Our models and the dictionaries of the references that they stand for.
PAIRS: list[tuple[str, Any, dict[str, str]]] = [
    (CHAT, openai_request, {
        "InstructionMessage": "ChatCompletionDeveloperMessageParam ChatCompletionSystemMessageParam",
        "UserMessage": "ChatCompletionUserMessageParam", "AssistantMessage": "ChatCompletionAssistantMessageParam",
        "ToolMessage": "ChatCompletionToolMessageParam", "TextPart": "ChatCompletionContentPartTextParam",
        "ImagePart": "ChatCompletionContentPartImageParam", "ImageUrl": "ImageURL",
        "ToolCall": "ChatCompletionMessageFunctionToolCallParam", "FunctionTool": "ChatCompletionFunctionToolParam",
        "Function": "FunctionDefinition", "NamedChoice": "ChatCompletionNamedToolChoiceParam",
        "JsonSchema": "JSONSchema", "StreamOptions": "ChatCompletionStreamOptionsParam",
        "ResponseFormat": "ResponseFormatText ResponseFormatJSONSchema ResponseFormatJSONObject",
    }),
    (RESPONSES, responses_request, {
        "InputText": "ResponseInputTextParam ResponseInputTextContentParam", "OutputText": "ResponseOutputTextParam",
        "InputImage": "ResponseInputImageParam ResponseInputImageContentParam",
        "Refusal": "ResponseOutputRefusalParam", "FunctionCallItem": "ResponseFunctionToolCallParam",
        "MessageItem": "EasyInputMessageParam Message ResponseOutputMessageParam",
        "FunctionOutputItem": "FunctionCallOutput", "ReasoningItem": "ResponseReasoningItemParam",
        "FunctionTool": "FunctionToolParam", "NamedChoice": "ToolChoiceFunctionParam",
        "Format": "ResponseFormatText ResponseFormatTextJSONSchemaConfigParam ResponseFormatJSONObject",
        "TextOptions": "ResponseTextConfigParam", "StreamOptions": "StreamOptions",
    }),
    (MESSAGES, anthropic_request, {
        "TextBlock": "TextBlockParam", "ImageBlock": "ImageBlockParam", "InlineSource": "Base64ImageSourceParam",
        "UrlSource": "URLImageSourceParam", "ThinkingBlock": "ThinkingBlockParam", "ToolUseBlock": "ToolUseBlockParam",
        "ToolResultBlock": "ToolResultBlockParam", "CustomTool": "ToolParam", "OutputConfig": "OutputConfigParam",
        "Message": "UserMessageParam AssistantMessageParam SystemMessageParam", "OutputFormat": "JSONOutputFormatParam",
        "ToolChoice": "ToolChoiceAutoParam ToolChoiceAnyParam ToolChoiceToolParam ToolChoiceNoneParam",
        "Thinking": "ThinkingConfigEnabledParam ThinkingConfigDisabledParam ThinkingConfigBetweenToolsParam "
        "ThinkingConfigAdaptiveParam",
    }),
]  # fmt: skip


@pytest.mark.parametrize(("api", "module", "pairs"), PAIRS, ids=["chat", "responses", "messages"])
def test_every_field_of_what_is_supported_is_known(api: str, module: Any, pairs: dict[str, str]) -> None:
    theirs: dict[str, set[str]] = {}
    for _, kind, _ in dicts(REFERENCES[api]):
        theirs.setdefault(kind.__name__, set()).update(get_type_hints(kind))
    missing = {}
    for ours, named in pairs.items():
        known = {field.alias or name for name, field in getattr(module, ours).model_fields.items()}
        for name in named.split():
            missing[f"{ours} ({name})"] = theirs[name] - known
    assert not {name: fields for name, fields in missing.items() if fields}


def test_null_is_the_default_of_every_known_field() -> None:
    """What a client sends as null, because its own types have it, is never refused."""
    for _, module, pairs in PAIRS:
        for ours in pairs:
            for name, field in getattr(module, ours).model_fields.items():
                optional = re.search("None|Any|Optional", str(field.annotation))
                assert field.is_required() or optional or name in ("type", "role"), (ours, name)
