"""What every API's request comes to: pictures in their places, tools, the form of the answer, the served model.

Owns the steps of translation that the APIs share, each with the wire path that an error names. Refuses to know any
API's own shapes: values come in one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foveate.core.chat import Form, ImageSource, Tools
from foveate.core.errors import InvalidRequest, ModelNotFound, Unsupported
from foveate.core.values import MAX_IMAGES
from foveate.server.contract import Service
from foveate.server.gathered import arguments_of

# What the renderer itself hands to a template; a request may not stand in for it.
RESERVED_VARIABLES = frozenset(
    ("messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message", "bos_token")
).union(("eos_token", "pad_token", "unk_token", "raise_exception", "strftime_now"))


class Pictures:
    """The pictures of one request, in the order in which they were met."""

    def __init__(self) -> None:
        self.sources: list[ImageSource] = []

    def part(self, url: str, param: str) -> dict[str, Any]:
        """The part that stands for a picture in a message."""
        self.sources.append(ImageSource(url, param))
        return {"type": "image", "image": len(self.sources) - 1}

    def checked(self, service: Service, param: str) -> tuple[ImageSource, ...]:
        """All of them. Raises InvalidRequest when there are too many, or the model takes none."""
        if len(self.sources) > MAX_IMAGES:
            text = f"a request may have up to {MAX_IMAGES} images, this one has {len(self.sources)}"
            raise InvalidRequest(text, param)
        if self.sources and not service.has_vision:
            text = "the model served here has no vision encoder and takes no images"
            raise Unsupported(text, self.sources[0].param)
        return tuple(self.sources)


def check_model(name: str | None, service: Service) -> None:
    """Raise ModelNotFound unless the named model is the one that is served."""
    if name is not None and name != service.name:
        raise ModelNotFound(f"the model does not exist; this server serves {service.name}", "model")


def template_values(values: dict[str, Any] | None) -> dict[str, Any]:
    """Variables for the chat template; InvalidRequest for those that are not a client's to set."""
    for name in RESERVED_VARIABLES.intersection(values or {}):
        raise InvalidRequest(f"chat_template_kwargs may not set {name}", f"chat_template_kwargs.{name}")
    return dict(values or {})


def tools_of(functions: Sequence[dict[str, Any]], choice: str, only: str | None, parallel: bool) -> Tools | None:
    """The tools that the model may use; None with choice 'none' or without functions. Raises InvalidRequest."""
    names = [function["name"] for function in functions]
    if len(names) != len(set(names)):
        raise InvalidRequest("two tools have the same name", "tools")
    if (only is not None or choice == "required") and not functions:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools", "tool_choice")
    if only is not None and only not in names:
        raise InvalidRequest("tool_choice names a function that is not among the tools", "tool_choice")
    if choice == "none" or not functions:
        return None
    return Tools(tuple(functions), choice if only is None else "required", only, parallel)


def call_of(call_id: str, name: str, arguments: str, param: str) -> dict[str, Any]:
    """A call of an earlier turn as templates read it: its arguments are an object. InvalidRequest if they are none."""
    value = arguments_of(arguments or "{}")
    if value is None:
        raise InvalidRequest(f"{param}: the arguments must be a JSON object in a string", param)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": value}}


def schema_form(schema: Any, param: str) -> Form:
    """The form of an answer that follows a JSON schema; InvalidRequest when there is none."""
    if schema is None:
        raise InvalidRequest(f"{param}: a JSON schema is needed", param)
    return Form("schema", schema, param)
