"""The messages request in Anthropic's words: every field by name, each supported, harmless or refused.

Owns the wire schemas of POST /v1/messages and /v1/messages/count_tokens. What they come to is `anthropic_input.py`'s
business.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from foveate.server.openai_request import MAX_TOOLS
from foveate.server.wire import (
    Count,
    FunctionName,
    StopText,
    Strict,
    Temperature,
    TopP,
    by,
    harmless,
    refused,
    string_or_list,
    union,
)

MAX_STOPS = 16
_ELSEWHERE = """
document search_result redacted_thinking server_tool_use web_search_tool_result web_fetch_tool_result
code_execution_tool_result bash_code_execution_tool_result text_editor_code_execution_tool_result
tool_search_tool_result container_upload file content tool_reference browser_state bash_20250124 code_execution_20250522
code_execution_20250825 code_execution_20260120 code_execution_20260521 browser_toolset_20260801 memory_20250818
computer_toolset_20260801 text_editor_20250124 text_editor_20250429 text_editor_20250728 web_search_20250305
web_fetch_20250910 web_search_20260209 web_fetch_20260209 web_fetch_20260309 web_search_20260318
web_fetch_20260318 tool_search_tool_bm25_20251119 tool_search_tool_bm25 tool_search_tool_regex_20251119
tool_search_tool_regex
"""
KNOWN_KINDS = frozenset(_ELSEWHERE.split())


class InlineSource(Strict):
    type: Literal["base64"]
    media_type: str = Field(pattern=r"^image/[a-z0-9.+-]{1,32}$")
    data: str = Field(min_length=1)


class UrlSource(Strict):
    type: Literal["url"]
    url: str = Field(min_length=1)


Source = Annotated[
    Annotated[InlineSource, Tag("<base64>")] | Annotated[UrlSource, Tag("<url>")],
    union(by("type", "base64", "url"), "image source_kind", "An image's source has type base64 or url"),
]


class TextBlock(Strict):
    type: Literal["text"]
    text: str
    cache_control: Any = harmless()
    citations: None = None


class ImageBlock(Strict):
    type: Literal["image"]
    source: Source
    cache_control: Any = harmless()
    transformations: None = None


class ThinkingBlock(Strict):
    """What the model thought in an earlier turn; it is not signed here."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = harmless()


class ToolUseBlock(Strict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: Any = harmless()
    caller: Any = harmless()
    toolset_name: None = None


ResultPart = Annotated[
    Annotated[TextBlock, Tag("<text>")] | Annotated[ImageBlock, Tag("<image>")],
    union(by("type", "text", "image"), "content block_kind", "A tool's result is made of text and image blocks"),
]
ResultParts = Annotated[list[ResultPart], Field(fail_fast=True)]


class ToolResultBlock(Strict):
    """`is_error` has no effect: what the tool said is shown as it is."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[
            Annotated[str, Tag("<string>")] | Annotated[ResultParts, Tag("<list>")],
            union(string_or_list, "content_kind", "Content is a string or a list of blocks"),
        ]
        | None
    ) = None
    is_error: bool | None = harmless()
    cache_control: Any = harmless()
    toolset_name: None = None


Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")],
    union(
        by("type", "text", "image", "thinking", "tool_use", "tool_result"),
        "content block_kind",
        "Content blocks have type text, image, thinking, tool_use or tool_result",
    ),
]
Blocks = Annotated[list[Block], Field(fail_fast=True)]
Content = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[Blocks, Tag("<list>")],
    union(string_or_list, "content_kind", "Content is a string or a list of blocks"),
]
System = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[list[TextBlock], Tag("<list>")],
    union(string_or_list, "system_kind", "system is a string or a list of text blocks"),
]


class Message(Strict):
    role: Literal["user", "assistant", "system"]
    content: Content


class CustomTool(Strict):
    """`strict` makes the input of its calls follow the schema always."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: Any = harmless()
    eager_input_streaming: bool | None = harmless("Input is always streamed as it comes.")
    input_examples: list[Any] | None = harmless()
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None


def _tool(value: Any) -> str | None:
    named = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "<custom>" if named is None or named == "custom" else None


Tool = Annotated[Annotated[CustomTool, Tag("<custom>")], union(_tool, "tool_kind", "Tools have type custom")]


class ToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """A thought that has `budget_tokens` is ended there; without them it ends where the model ends it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1024, lt=2**31)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Strict):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: None = None


class CountTokensRequest(Strict):
    """A request to POST /v1/messages/count_tokens."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)]
    model: str | None = None
    system: System | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = harmless()
    context_management: Any = harmless("Nothing is ever taken out of a conversation.")

    speed: Any = refused("standard")
    user_profile_id: Any = refused()
    workspace_id: Any = refused()


class MessagesRequest(Strict):
    """A request to POST /v1/messages."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)]
    max_tokens: Count
    model: str | None = None
    system: System | None = None
    stop_sequences: Annotated[list[StopText], Field(fail_fast=True, max_length=MAX_STOPS)] | None = None
    temperature: Temperature | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    metadata: dict[str, Any] | None = harmless(max_length=16)
    cache_control: Any = harmless()
    service_tier: Literal["auto", "standard_only"] | None = harmless()
    context_management: Any = harmless("Nothing is ever taken out of a conversation.")

    container: Any = refused()
    diagnostics: Any = refused()
    inference_geo: Any = refused()
    mcp_servers: Any = refused([])
    speed: Any = refused("standard")
    user_profile_id: Any = refused()
    workspace_id: Any = refused()
