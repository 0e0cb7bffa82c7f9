"""The chat completion request in OpenAI's words: every field by name, each supported, harmless or refused.

Owns the wire schema and how a violation is told. A field is one of three: *supported*; `_harmless`, where OpenAI itself
defines it as having no effect on the answer; or `_refused`, known elsewhere but not offered here, unless it holds a
value that asks for nothing. null is the default everywhere. Promises that the first violation alone is reported, with
its path, and that nothing of the client's values is quoted. What fields mean to the service is `openai.py`'s business.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from foveate.core.errors import InvalidRequest, Unsupported

MAX_CHOICES = 16
MAX_STOPS = 16
INT64 = 2**63
KNOWN_PARTS = frozenset(
    ("audio_url", "file", "image", "image_embeds", "input_audio", "input_image", "input_text", "refusal", "video_url")
)
REFUSED, HARMLESS = "x-refused-unless", "x-no-effect"
_TAGS = frozenset(
    ("<string>", "<list>", "<text>", "<image_url>", "<system>", "<developer>", "<user>", "<assistant>", "<tool>")
)
_PLAIN = {
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "none_required": "must be null",
}


def _refused(*harmless: Any) -> Any:
    """A field that is not offered; `harmless` are the values that ask for nothing, besides null."""
    text = "Not offered: refused unless null" + "".join(f" or {value}" for value in harmless) + "."
    return Field(None, description=text, json_schema_extra={REFUSED: [*harmless]})


def _harmless(text: str = "No effect on the answer.", **limits: Any) -> Any:
    """A field that OpenAI defines as having no effect on the answer."""
    return Field(None, description=text, json_schema_extra={HARMLESS: True}, **limits)


class _Strict(BaseModel):
    """No coercion (a boolean is no number), no unknown names, no infinities."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def _string_or_list(value: Any) -> str | None:
    return "<string>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None


def _part_kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if kind in ("text", "image_url") else None


def _role(value: Any) -> str | None:
    role = value.get("role") if isinstance(value, dict) else getattr(value, "role", None)
    return f"<{role}>" if role in ("system", "developer", "user", "assistant", "tool") else None


def _union(choose: Any, kind: str, message: str) -> Discriminator:
    return Discriminator(choose, custom_error_type=kind, custom_error_message=message)


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ImageUrl(_Strict):
    """`detail` has no effect: a picture keeps its size within the model's limits."""

    url: str = Field(min_length=1, description="A data URL with base64.")
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(_Strict):
    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[ImagePart, Tag("<image_url>")],
    _union(_part_kind, "part_kind", "Content parts have type text or image_url"),
]
Parts = Annotated[list[Part], Field(fail_fast=True, min_length=1)]
Content = Annotated[
    Annotated[str, Tag("<string>")] | Annotated[Parts, Tag("<list>")],
    _union(_string_or_list, "content_kind", "Content is a string or a list of parts"),
]


class CalledFunction(_Strict):
    name: str
    arguments: str


class ToolCall(_Strict):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class InstructionMessage(_Strict):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(_Strict):
    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(_Strict):
    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = _harmless()


class ToolMessage(_Strict):
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
    _union(_role, "role_kind", "A message is an object whose role is system, developer, user, assistant or tool"),
]
StopText = Annotated[str, Field(min_length=1)]
StopList = Annotated[list[StopText], Field(fail_fast=True, max_length=MAX_STOPS)]
Stop = Annotated[
    Annotated[StopText, Tag("<string>")] | Annotated[StopList, Tag("<list>")],
    _union(_string_or_list, "stop_kind", "stop is a string or a list of strings"),
]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


def _template_values(values: dict[str, Any]) -> dict[str, Any]:
    for value in values.values():
        short = isinstance(value, str) and len(value) <= 256
        if not short and value is not None and not isinstance(value, (bool, int, float)):
            raise PydanticCustomError("template_value", "Values are short strings, numbers, booleans or null")
    return values


TemplateValues = Annotated[dict[str, Any], Field(max_length=32), AfterValidator(_template_values)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: Literal[False] | None = None


class ChatCompletionRequest(_Strict):
    """A request to POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31, description="0 or -1: off.")] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=64)] | None = None
    ignore_eos: bool | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    chat_template_kwargs: TemplateValues | None = None

    # No effect on the answer by OpenAI's own definition: who asks, labels, cache hints.
    user: str | None = _harmless()
    safety_identifier: str | None = _harmless()
    prompt_cache_key: str | None = _harmless()
    metadata: dict[str, str] | None = _harmless(max_length=16)
    parallel_tool_calls: bool | None = _harmless("No effect without tools.")

    # OpenAI's, not offered here.
    audio: Any = _refused()
    function_call: Any = _refused("none")
    functions: Any = _refused([])
    modalities: Any = _refused(["text"])
    moderation: Any = _refused()
    prediction: Any = _refused()
    prompt_cache_options: Any = _refused()
    prompt_cache_retention: Any = _refused()
    reasoning_effort: Any = _refused()
    response_format: Any = _refused({"type": "text"})
    service_tier: Any = _refused("auto", "default")
    store: Any = _refused(False)
    tool_choice: Any = _refused("none")
    tools: Any = _refused([])
    verbosity: Any = _refused("medium")
    web_search_options: Any = _refused()

    # Other servers' extensions, not offered here.
    add_generation_prompt: Any = _refused(True)
    add_special_tokens: Any = _refused(False)
    allowed_token_ids: Any = _refused()
    bad_words: Any = _refused([])
    best_of: Any = _refused()
    cache_salt: Any = _refused()
    chat_template: Any = _refused()
    continue_final_message: Any = _refused(False)
    documents: Any = _refused([])
    echo: Any = _refused(False)
    grammar: Any = _refused()
    guided_choice: Any = _refused()
    guided_grammar: Any = _refused()
    guided_json: Any = _refused()
    guided_regex: Any = _refused()
    include_reasoning: Any = _refused()
    json_schema: Any = _refused()
    length_penalty: Any = _refused(1.0)
    media_io_kwargs: Any = _refused()
    mm_processor_kwargs: Any = _refused()
    priority: Any = _refused(0)
    prompt_logprobs: Any = _refused()
    reasoning: Any = _refused()
    request_id: Any = _refused()
    return_token_ids: Any = _refused(False)
    skip_special_tokens: Any = _refused(True)
    structured_outputs: Any = _refused()
    thinking: Any = _refused()
    thinking_token_budget: Any = _refused()
    truncate_prompt_tokens: Any = _refused()
    use_beam_search: Any = _refused(False)


def marked_fields(mark: str) -> dict[str, Any]:
    """Names of the fields that carry `mark` (REFUSED or HARMLESS), with what it says."""
    extras = {name: field.json_schema_extra for name, field in ChatCompletionRequest.model_fields.items()}
    return {name: extra[mark] for name, extra in extras.items() if isinstance(extra, dict) and mark in extra}


def parse_request(document: Any) -> ChatCompletionRequest:
    """Validate a JSON document. Raises InvalidRequest (or Unsupported) for the first thing that is wrong."""
    if not isinstance(document, dict):
        raise InvalidRequest("the request body is not a JSON object")
    for name, harmless in marked_fields(REFUSED).items():
        value = document.get(name)
        if value is not None and not any(type(value) is type(good) and value == good for good in harmless):
            raise Unsupported(f"{name} is not supported by this server", name)
    try:
        return ChatCompletionRequest.model_validate(document)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False, include_context=False)[0]) from None


def _explain(detail: ErrorDetails) -> InvalidRequest:
    kind, path = detail["type"], json_path(detail["loc"])
    if kind == "part_kind" and isinstance(detail["input"], dict) and detail["input"].get("type") in KNOWN_PARTS:
        return Unsupported(f"content parts of type {detail['input']['type']} are not supported", path)
    if kind == "extra_forbidden":
        error = InvalidRequest(f"unknown parameter: {path}", path)
        error.code = "unknown_parameter"
    elif kind == "missing":
        error = InvalidRequest(f"missing required parameter: {path}", path)
        error.code = "missing_required_parameter"
    else:
        message = _PLAIN.get(kind, detail["msg"][:1].lower() + detail["msg"][1:])
        error = InvalidRequest(f"{path}: {message}", path)
    return error


def json_path(loc: tuple[int | str, ...]) -> str:
    """'messages[0].content[1].image_url' for a location; names made up by a client are cut and cleaned."""
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step not in _TAGS:
            name = "".join(c if c.isprintable() else "?" for c in step[:64])
            path += f".{name}" if path else name
    return path
