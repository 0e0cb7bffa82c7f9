"""The chat completion request in OpenAI's words: every field by name, each supported, harmless or refused.

Owns the wire schema of POST /v1/chat/completions, with the extensions that other servers made common. What fields mean
to the service is `openai.py`'s business; how violations are told, `wire.py`'s.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from foveate.server.wire import (
    Bias,
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
    TokenId,
    TopK,
    TopP,
    by,
    harmless,
    parse,
    refused,
    string_or_list,
    union,
)

MAX_CHOICES = 16
MAX_TOOLS = 256
KNOWN_KINDS = frozenset(
    ("audio_url", "file", "image", "image_embeds", "input_audio", "refusal", "video_url", "custom", "allowed_tools")
)


class TextPart(Strict):
    """Text; `input_text` is its name in the Responses API."""

    type: Literal["text", "input_text"]
    text: str
    prompt_cache_breakpoint: Any = harmless()


class ImageUrl(Strict):
    """`detail` has no effect: a picture keeps its size within the model's limits."""

    url: str = Field(min_length=1, description="A data URL with base64, or an http(s) URL where the server fetches.")
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(Strict):
    """A picture."""

    type: Literal["image_url"]
    image_url: ImageUrl
    prompt_cache_breakpoint: Any = harmless()


class InputImagePart(Strict):
    """A picture as the Responses API writes it."""

    type: Literal["input_image"]
    image_url: str = Field(min_length=1)
    detail: Literal["auto", "low", "high", "original"] | None = None
    file_id: None = None
    prompt_cache_breakpoint: Any = harmless()


Part = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[TextPart, Tag("<input_text>")]
    | Annotated[ImagePart, Tag("<image_url>")]
    | Annotated[InputImagePart, Tag("<input_image>")],
    union(
        by("type", "text", "input_text", "image_url", "input_image"),
        "content part_kind",
        "Content parts have type text or image_url",
    ),
]
Parts = Annotated[list[Part], Field(fail_fast=True, min_length=1)]
Content = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[Parts, Tag("<list>")],
    union(string_or_list, "content_kind", "Content is a string or a list of parts"),
]


class CalledFunction(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    """A call that the model made in an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = harmless()


class InstructionMessage(Strict):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Strict):
    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = harmless()


class ToolMessage(Strict):
    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


Message = Annotated[
    Annotated[InstructionMessage, Tag("<system>")]
    | Annotated[InstructionMessage, Tag("<developer>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    union(
        by("role", "system", "developer", "user", "assistant", "tool"),
        "role_kind",
        "A message is an object whose role is system, developer, user, assistant or tool",
    ),
]


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: Literal[False] | None = None


class Function(Strict):
    """`strict` makes the arguments of its calls follow the schema always."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Strict):
    type: Literal["function"]
    function: Function


Tool = Annotated[
    Annotated[FunctionTool, Tag("<function>")], union(by("type", "function"), "tool_kind", "Tools have type function")
]


class FunctionRef(Strict):
    name: str


class NamedChoice(Strict):
    type: Literal["function"]
    function: FunctionRef


def _choice(value: Any) -> str | None:
    return "<string>" if isinstance(value, str) else by("type", "function")(value)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<string>")] | Annotated[NamedChoice, Tag("<function>")],
    union(_choice, "tool choice_kind", "tool_choice is none, auto, required or a function"),
]


class JsonSchema(Strict):
    """`strict` has no effect: answers always follow the schema."""

    name: str | None = None
    description: str | None = harmless()
    strict: bool | None = harmless()
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Strict):
    """One of these; `grammar` is Lark, as llguidance reads it, or GBNF."""

    json_: dict[str, Any] | bool | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=1024, fail_fast=True)] | None = None
    grammar: str | None = None


class ChatCompletionRequest(Strict):
    """A request to POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)]
    model: str | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=64)] | None = None
    ignore_eos: bool | None = None
    logit_bias: Bias | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: the answer ends with its first call.")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    chat_template_kwargs: TemplateValues | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    # No effect on the answer by OpenAI's own definition: who asks, labels, cache hints.
    user: str | None = harmless()
    safety_identifier: str | None = harmless()
    prompt_cache_key: str | None = harmless()
    metadata: dict[str, str] | None = harmless(max_length=16)

    # OpenAI's, not offered here.
    audio: Any = refused()
    function_call: Any = refused("none")
    functions: Any = refused([])
    modalities: Any = refused(["text"])
    moderation: Any = refused()
    prediction: Any = refused()
    prompt_cache_options: Any = refused()
    prompt_cache_retention: Any = refused()
    service_tier: Any = refused("auto", "default")
    store: Any = refused(False)
    verbosity: Any = refused("medium")
    web_search_options: Any = refused()

    # Other servers' extensions, not offered here.
    add_special_tokens: Any = refused(False)
    allowed_token_ids: Any = refused()
    bad_words: Any = refused([])
    best_of: Any = refused()
    cache_salt: Any = refused()
    chat_template: Any = refused()
    documents: Any = refused([])
    echo: Any = refused(False)
    grammar: Any = refused()
    guided_choice: Any = refused()
    guided_grammar: Any = refused()
    guided_json: Any = refused()
    guided_regex: Any = refused()
    include_reasoning: Any = refused(True)
    json_schema: Any = refused()
    length_penalty: Any = refused(1.0)
    media_io_kwargs: Any = refused()
    mm_processor_kwargs: Any = refused()
    priority: Any = refused(0)
    prompt_logprobs: Any = refused()
    reasoning: Any = refused()
    request_id: Any = refused()
    return_token_ids: Any = refused(False)
    skip_special_tokens: Any = refused(True)
    thinking: Any = refused()
    truncate_prompt_tokens: Any = refused()
    use_beam_search: Any = refused(False)


def parse_request(document: Any) -> ChatCompletionRequest:
    """Validate a JSON document. Raises InvalidRequest (or Unsupported) for the first thing that is wrong."""
    return parse(ChatCompletionRequest, document, KNOWN_KINDS)
