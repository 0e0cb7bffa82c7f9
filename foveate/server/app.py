"""The HTTP application: which routes there are and what stands before them.

Owns the route table and the order of what every request passes: CORS, keys, the net for faults, routing, and for bodies
the reader with its limits. Promises that every answer that is not a success has an error body in its API's shape, and
that no route waits for the engine but those that ask for an answer. Another API is another file like `openai.py` and
another function like `add_chat` of `routes_openai.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from pydantic import BaseModel

from foveate import __version__
from foveate.core.config import Settings, api_keys, words
from foveate.core.errors import ConfigError
from foveate.server.access import Access
from foveate.server.anthropic_request import CountTokensRequest, MessagesRequest
from foveate.server.body import BodyReader
from foveate.server.completions_request import CompletionRequest
from foveate.server.contract import Limits, Service, limits_from
from foveate.server.errors import install, speaks_anthropic
from foveate.server.metrics import Metrics
from foveate.server.openai_request import ChatCompletionRequest
from foveate.server.page import add_page
from foveate.server.responses_request import ResponsesRequest
from foveate.server.routes import SCHEMAS, AppState
from foveate.server.routes_anthropic import add_messages
from foveate.server.routes_openai import add_chat, add_completions, add_models, add_responses
from foveate.server.routes_state import add_state, add_tokens
from foveate.server.tokens_request import DetokenizeRequest, TokenizeRequest

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}


REQUESTS: tuple[type[BaseModel], ...] = (
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    MessagesRequest,
    CountTokensRequest,
    TokenizeRequest,
    DetokenizeRequest,
)


def create_app(
    service: Service, settings: Settings, limits: Limits | None = None, keys: Sequence[str] | None = None
) -> FastAPI:
    """The application over a service; `limits` and `keys` override what the settings give. With keys, one is asked for.

    Raises ConfigError for an empty key, which would let in everybody who sends none.
    """
    keys = api_keys(settings) if keys is None else keys
    if not all(keys):
        raise ConfigError("an API key is empty")
    limits = limits or limits_from(settings)
    metrics = Metrics(service.name, service.stats)
    state = AppState(service, limits, metrics, BodyReader(limits))
    app = FastAPI(title="foveate", version=__version__, docs_url=None, redoc_url=None)
    app.state.in_flight, app.state.limits = state.in_flight, limits
    install(app, metrics.refused)
    if keys:
        app.add_middleware(Access, keys=keys, count=metrics.refused)
    if origins := words(settings.cors_origins):
        # Last added is outermost, so that errors carry the headers too. Open by default: no cookies are used.
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"]
        )
    for add in (add_chat, add_completions, add_responses, add_messages, add_models, add_tokens, add_state):
        add(app, state)
    add_page(app, service.name)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Put the schemas of what is read by hand into the OpenAPI description."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = plain()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for request in REQUESTS:
            schema = request.model_json_schema(ref_template=SCHEMAS)
            # Models of one name in two APIs are kept apart by their API's request.
            schemas |= _apart(schema, request.__name__)
        schemas |= {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
        names = {SCHEMAS.format(model="Error"): SCHEMAS.format(model="AnthropicError")}
        for path in filter(speaks_anthropic, document["paths"]):
            document["paths"][path] = _renamed(document["paths"][path], names)
        return document

    app.openapi = described  # type: ignore[method-assign]


def _apart(schema: dict[str, Any], owner: str) -> dict[str, Any]:
    """A request's schema and its parts by name, the parts' names made the owner's own."""
    parts = schema.pop("$defs", {})
    named = json.loads(json.dumps({owner: schema} | {f"{owner}.{name}": part for name, part in parts.items()}))
    names = {SCHEMAS.format(model=name): SCHEMAS.format(model=f"{owner}.{name}") for name in parts}
    renamed: dict[str, Any] = _renamed(named, names)
    return renamed


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: names.get(inner, inner) if key == "$ref" else _renamed(inner, names) for key, inner in value.items()
        }
    return [_renamed(inner, names) for inner in value] if isinstance(value, list) else value
