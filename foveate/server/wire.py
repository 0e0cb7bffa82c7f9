"""How requests are described on the wire, whatever their API: strict models, fields by fate, and violations in words.

Owns the three fates of a field: *supported*; `harmless`, where its API itself defines it as having no effect on the
answer or promises nothing by it; or `refused`, known but not offered here, unless it holds a value that asks for
nothing. null is the default everywhere. Promises that the first violation alone is reported, with its path, and that
nothing of a client's values is quoted. Refuses to know what any field means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from foveate.core.errors import InvalidRequest, Unsupported

INT64 = 2**63
MAX_STOPS = 16
REFUSED, HARMLESS = "x-refused-unless", "x-no-effect"
Wire = TypeVar("Wire", bound="Strict")
_PLAIN = {
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "none_required": "must be null",
}


def refused(*harmless: Any) -> Any:
    """A field that is not offered; `harmless` are the values that ask for nothing, besides null."""
    text = "Not offered: refused unless null" + "".join(f" or {value}" for value in harmless) + "."
    return Field(None, description=text, json_schema_extra={REFUSED: [*harmless]})


def harmless(text: str = "No effect on the answer.", **limits: Any) -> Any:
    """A field that has no effect on the answer by its API's own word."""
    return Field(None, description=text, json_schema_extra={HARMLESS: True}, **limits)


class Strict(BaseModel):
    """No coercion (a boolean is no number), no unknown names, no infinities."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def union(choose: Any, kind: str, message: str) -> Discriminator:
    """A choice between tagged types by a function of the value; `message` is told when none fits."""
    return Discriminator(choose, custom_error_type=kind, custom_error_message=message)


def string_or_list(value: Any) -> str | None:
    """The tag of a value that is a text or a list."""
    return "<string>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None


def string_or_object(value: Any) -> str | None:
    """The tag of a value that is a word or an object."""
    return "<string>" if isinstance(value, str) else "<object>" if isinstance(value, (dict, BaseModel)) else None


def by(field: str, *names: str) -> Callable[[Any], str | None]:
    """A function that gives the tag `<name>` of an object whose `field` is one of `names`."""

    def tag(value: Any) -> str | None:
        name = value.get(field) if isinstance(value, dict) else getattr(value, field, None)
        return f"<{name}>" if isinstance(name, str) and name in names else None

    return tag


def marked_fields(model: type[BaseModel], mark: str) -> dict[str, Any]:
    """Names of a model's fields that carry `mark` (REFUSED or HARMLESS), with what it says."""
    extras = {name: field.json_schema_extra for name, field in model.model_fields.items()}
    return {name: extra[mark] for name, extra in extras.items() if isinstance(extra, dict) and mark in extra}


def parse(model: type[Wire], document: Any, known_kinds: frozenset[str] = frozenset()) -> Wire:
    """Validate a JSON document. Raises InvalidRequest (or Unsupported) for the first thing that is wrong.

    known_kinds: values of `type` that exist elsewhere, to be refused by name.
    """
    if not isinstance(document, dict):
        raise InvalidRequest("the request body is not a JSON object")
    for name, good in marked_fields(model, REFUSED).items():
        value = document.get(name)
        if value is not None and not any(type(value) is type(fine) and value == fine for fine in good):
            raise Unsupported(f"{name} is not supported by this server", name)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False, include_context=False)[0], known_kinds) from None


def _explain(detail: ErrorDetails, known_kinds: frozenset[str]) -> InvalidRequest:
    kind, path = detail["type"], json_path(detail["loc"])
    named = detail["input"].get("type") if isinstance(detail["input"], dict) else None
    if kind.endswith("_kind") and isinstance(named, str) and named in known_kinds:
        return Unsupported(f"{kind.removesuffix('_kind')}s of type {named} are not supported", path)
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
        elif not (step.startswith("<") and step.endswith(">")):  # a tag of a union
            name = "".join(c if c.isprintable() else "?" for c in step[:64])
            path += f".{name}" if path else name
    return path


def _short_values(values: dict[str, Any]) -> dict[str, Any]:
    for value in values.values():
        short = isinstance(value, str) and len(value) <= 256
        if not short and value is not None and not isinstance(value, (bool, int, float)):
            raise PydanticCustomError("template_value", "Values are short strings, numbers, booleans or null")
    return values


TemplateValues = Annotated[dict[str, Any], Field(max_length=32), AfterValidator(_short_values)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
StopText = Annotated[str, Field(min_length=1)]
StopList = Annotated[list[StopText], Field(fail_fast=True, max_length=MAX_STOPS)]
Stop = Annotated[
    Annotated[StopText, Tag("<string>")] | Annotated[StopList, Tag("<list>")],
    union(string_or_list, "stop_kind", "stop is a string or a list of strings"),
]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1, lt=2**31, description="0 or -1: off.")]
MinP = Annotated[float, Field(ge=0, le=1)]
Repetition = Annotated[float, Field(gt=0, le=10)]
Seed = Annotated[int, Field(ge=-INT64, lt=INT64)]
Bias = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)]
