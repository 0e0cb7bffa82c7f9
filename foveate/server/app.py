"""The HTTP application: which routes there are and what stands before them.

Owns the route table and the order of what every request passes: CORS, keys, the net for faults, routing, and for bodies
the reader with its limits. Promises that every answer that is not a success has an error body in OpenAI's shape, and
that no route waits for the engine but the one that asks for an answer. Another API is another file like `openai.py`
and another function like `_add_chat` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from foveate import __version__
from foveate.core.chat import ChatRequest
from foveate.core.config import Settings, api_keys, words
from foveate.core.errors import Busy, ConfigError, ModelNotFound
from foveate.server.access import Access
from foveate.server.body import BodyReader
from foveate.server.contract import Answer, Limits, Service, limits_from
from foveate.server.errors import install
from foveate.server.metrics import Metrics
from foveate.server.openai import Completion, CompletionStream, WholeCompletion, translate
from foveate.server.openai_request import ChatCompletionRequest, parse_request
from foveate.server.page import add_page
from foveate.server.reply import Channel, InFlight, Reply, whole
from foveate.server.sse import stream

SCHEMAS = "#/components/schemas/{model}"
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


@dataclass(frozen=True, slots=True)
class AppState:
    """What the routes of one app share."""

    service: Service
    limits: Limits
    metrics: Metrics
    bodies: BodyReader
    in_flight: InFlight


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
    state = AppState(service, limits, metrics, BodyReader(limits), InFlight())
    app = FastAPI(title="foveate", version=__version__, docs_url=None, redoc_url=None)
    app.state.in_flight, app.state.limits = state.in_flight, limits
    install(app, metrics.refused)
    if keys:
        app.add_middleware(Access, keys=keys, count=metrics.refused)
    if origins := words(settings.cors_origins):
        # Last added is outermost, so that errors carry the headers too. Open by default: no cookies are used.
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
    _add_chat(app, state)
    _add_models(app, service)
    _add_state(app, state)
    add_page(app, service.name)
    _describe(app)
    return app


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": {"$ref": SCHEMAS.format(model="Error")}}}
    return {status: {"description": "Error", "content": content} for status in statuses}


def _add_chat(app: FastAPI, state: AppState) -> None:
    body = {"content": {"application/json": {"schema": {"$ref": SCHEMAS.format(model="ChatCompletionRequest")}}}}

    def build(document: Any) -> tuple[ChatCompletionRequest, ChatRequest]:
        ask = parse_request(document)
        return ask, translate(ask, state.service)

    @app.post(
        "/v1/chat/completions",
        response_class=JSONResponse,
        responses={200: {"content": {"text/event-stream": {}}}, **_errors(400, 401, 404, 413, 500, 503)},
        openapi_extra={"requestBody": {"required": True, **body}},
    )
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, with pictures, as one document or as a stream of events."""
        if state.service.draining:
            raise Busy("the server is shutting down")
        ask, wanted = await state.bodies.load(request, build)
        # Neither `ask` nor `wanted` itself: an answer that is queued or under way must not keep its data URLs.
        wishes, streamed = wanted.wishes, bool(ask.stream)
        include_usage = bool(ask.stream_options and ask.stream_options.include_usage)

        async def deliver(answer: Answer, channel: Channel) -> None:
            completion = Completion(answer, state.service.name, wishes)
            if streamed:
                await stream(answer, channel, CompletionStream(completion, include_usage))
            else:
                await whole(answer, channel, WholeCompletion(completion))

        return Reply(state.service, wanted, deliver, state.in_flight, state.limits)


def _add_models(app: FastAPI, service: Service) -> None:
    def card() -> dict[str, Any]:
        inputs = ["text", "image"] if service.has_vision else ["text"]
        return {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "foveate",
            "max_model_len": service.max_ctx,
            "architecture": {"input_modalities": inputs, "output_modalities": ["text"]},
        }

    @app.get("/v1/models", responses=_errors(401))
    async def models() -> JSONResponse:
        """The one model that is served."""
        return JSONResponse({"object": "list", "data": [card()]})

    @app.get("/v1/models/{model_id:path}", responses=_errors(401, 404))
    async def model(model_id: str) -> JSONResponse:
        """The served model, by its name."""
        if model_id != service.name:
            raise ModelNotFound(f"the model does not exist; this server serves {service.name}", "model")
        return JSONResponse(card())


def _add_state(app: FastAPI, state: AppState) -> None:
    @app.get("/health", responses={503: {"description": "Not able to serve requests."}})
    async def health() -> JSONResponse:
        """200 when requests can be served, 503 when not, with the reason in `status`."""
        found = state.service.health()
        if state.service.draining:
            found = found | {"status": "draining"}
        return JSONResponse(found, status_code=200 if found["status"] == "ok" else 503)

    @app.get("/metrics", response_class=Response, responses=_errors(401))
    async def metrics() -> Response:
        """Numbers for Prometheus."""
        content, kind = state.metrics.render()
        return Response(content, headers={"content-type": kind})


def _describe(app: FastAPI) -> None:
    """Put the schemas of what is read by hand into the OpenAPI description."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = plain()
        schema = ChatCompletionRequest.model_json_schema(ref_template=SCHEMAS)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas |= schema.pop("$defs", {}) | {"ChatCompletionRequest": schema, "Error": _ERROR}
        return document

    app.openapi = described  # type: ignore[method-assign]
