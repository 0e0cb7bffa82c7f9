"""The Responses request in OpenAI's words: every field by name, each supported, harmless or refused.

Owns the wire schema of POST /v1/responses and of its items. What they come to is `responses_input.py`'s business.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from foveate.server.openai_request import MAX_TOOLS
from foveate.server.wire import (
    Count,
    Effort,
    FunctionName,
    MinP,
    Penalty,
    Repetition,
    Seed,
    Stop,
    Strict,
    Temperature,
    TemplateValues,
    TopK,
    TopP,
    by,
    harmless,
    refused,
    string_or_list,
    union,
)

_ELSEWHERE = """
file_search_call computer_call computer_call_output web_search_call tool_search_call tool_search_output
additional_tools configuration_update compaction image_generation_call code_interpreter_call local_shell_call
local_shell_call_output shell_call shell_call_output apply_patch_call apply_patch_call_output mcp_list_tools
mcp_approval_request mcp_approval_response mcp_call custom_tool_call_output custom_tool_call compaction_trigger
item_reference program program_output input_file input_audio file_search computer computer_use_preview web_search
web_search_2025_08_26 mcp code_interpreter programmatic_tool_calling image_generation local_shell shell custom
namespace tool_search computer_use web_search_preview web_search_preview_2025_03_11 apply_patch allowed_tools
"""
KNOWN_KINDS = frozenset(_ELSEWHERE.split())


class InputText(Strict):
    type: Literal["input_text", "text"]
    text: str
    prompt_cache_breakpoint: Any = harmless()


class OutputText(Strict):
    """What the assistant said in an earlier turn."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = harmless()
    logprobs: list[Any] | None = harmless()


class Refusal(Strict):
    type: Literal["refusal"]
    refusal: str


class InputImage(Strict):
    """`detail` has no effect: a picture keeps its size within the model's limits."""

    type: Literal["input_image"]
    image_url: str = Field(min_length=1, description="A data URL with base64, or an http(s) URL.")
    detail: Literal["auto", "low", "high", "original"] | None = harmless()
    file_id: None = None
    prompt_cache_breakpoint: Any = harmless()


Part = Annotated[
    Annotated[InputText, Tag("<input_text>")]
    | Annotated[InputText, Tag("<text>")]
    | Annotated[OutputText, Tag("<output_text>")]
    | Annotated[Refusal, Tag("<refusal>")]
    | Annotated[InputImage, Tag("<input_image>")],
    union(
        by("type", "input_text", "text", "output_text", "refusal", "input_image"),
        "content part_kind",
        "Content parts have type input_text, input_image or output_text",
    ),
]
Parts = Annotated[list[Part], Field(fail_fast=True)]
Content = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[Parts, Tag("<list>")],
    union(string_or_list, "content_kind", "Content is a string or a list of parts"),
]
Status = Literal["in_progress", "completed", "incomplete"] | None


class MessageItem(Strict):
    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer", "assistant"]
    content: Content
    id: str | None = harmless()
    status: Status = harmless()
    phase: str | None = harmless()


class FunctionCallItem(Strict):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = harmless()
    status: Status = harmless()
    namespace: None = None
    caller: None = None
    async_: Literal[False] | None = Field(None, alias="async")


class FunctionOutputItem(Strict):
    """What a call gave: a text, or parts with pictures."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = harmless()
    status: Status = harmless()
    caller: None = None
    name: str | None = harmless()
    namespace: None = None


class ThoughtText(Strict):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Strict):
    """What the model thought in an earlier turn: its content, or else its summary."""

    type: Literal["reasoning"]
    id: str | None = harmless()
    summary: list[ThoughtText] | None = None
    content: list[ThoughtText] | None = None
    encrypted_content: str | None = harmless()
    status: Status = harmless()


def _item(value: Any) -> str | None:
    named = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if named is None and isinstance(value, dict) and "role" in value:
        return "<message>"
    return by("type", "message", "function_call", "function_call_output", "reasoning")(value)


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")],
    union(_item, "item_kind", "Items are messages, function_call, function_call_output or reasoning"),
]
Items = Annotated[list[Item], Field(fail_fast=True, min_length=1)]
Input = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[Items, Tag("<list>")],
    union(string_or_list, "input_kind", "Input is a string or a list of items"),
]


class FunctionTool(Strict):
    """`strict` makes the arguments of its calls follow the schema always."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Literal[False] | None = None
    allowed_callers: None = None
    async_: Literal[False] | None = Field(None, alias="async")
    output_schema: Any = harmless()


Tool = Annotated[
    Annotated[FunctionTool, Tag("<function>")], union(by("type", "function"), "tool_kind", "Tools have type function")
]


class NamedChoice(Strict):
    type: Literal["function"]
    name: str


def _choice(value: Any) -> str | None:
    return "<string>" if isinstance(value, str) else by("type", "function")(value)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<string>")] | Annotated[NamedChoice, Tag("<function>")],
    union(_choice, "tool choice_kind", "tool_choice is none, auto, required or a function"),
]


class Format(Strict):
    """`strict` has no effect: answers always follow the schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = harmless()
    description: str | None = harmless()
    strict: bool | None = harmless()
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")


class TextOptions(Strict):
    format: Format | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Strict):
    """What the model thinks is answered whole, so a summary of it has no effect."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = harmless()
    generate_summary: Literal["auto", "concise", "detailed"] | None = harmless()


class StreamOptions(Strict):
    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(Strict):
    """A request to POST /v1/responses."""

    input: Input
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = Field(None, description="false: the response can be neither gone on from nor asked for again.")
    max_output_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = Field(
        None, description="Logprobs of the text; reasoning is never encrypted here."
    )
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: the answer ends with its first call.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Extensions, with the meaning that they have in chat completions.
    top_k: TopK | None = None
    min_p: MinP | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    chat_template_kwargs: TemplateValues | None = None

    user: str | None = harmless()
    safety_identifier: str | None = harmless()
    prompt_cache_key: str | None = harmless()
    metadata: dict[str, str] | None = harmless("Comes back with the response.", max_length=16)

    access_programs: Any = refused()
    background: Any = refused(False)
    background_options: Any = refused()
    context_management: Any = refused([])
    conversation: Any = refused()
    image: Any = refused()
    max_tool_calls: Any = refused()
    moderation: Any = refused()
    prompt: Any = refused()
    prompt_cache_options: Any = refused()
    prompt_cache_retention: Any = refused()
    service_tier: Any = refused("auto", "default")
    truncation: Any = refused("disabled")
