"""The routes that tell about the server and its vocabulary: health, status, props, version, metrics, tokens.

Owns paths and descriptions. Promises that none of them waits for the engine longer than a look takes, and that
/health is cheap enough for a probe.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from foveate import __version__
from foveate.server import tokens_request
from foveate.server.routes import AppState, errors, takes
from foveate.server.status import StatusStream, status_document


def add_state(app: FastAPI, state: AppState) -> None:
    """GET /health, /status, /status/events, /props, /version and /metrics."""

    @app.get("/health", responses={503: {"description": "Not able to serve requests."}})
    async def health() -> JSONResponse:
        """200 when requests can be served, 503 when not, with the reason in `status`."""
        found = state.service.health()
        if state.service.draining:
            found = found | {"status": "draining"}
        return JSONResponse(found, status_code=200 if found["status"] == "ok" else 503)

    @app.get("/status", response_class=JSONResponse, responses={200: {"content": {"text/event-stream": {}}}})
    async def status(request: Request) -> Response:
        """What goes on now: slots, memory, queue, requests and their images; as events if those are asked for."""
        if "text/event-stream" in request.headers.get("accept", ""):
            return StatusStream(state.service, state.limits, state.since_s)
        return JSONResponse(status_document(state.service, await state.service.live(), state.since_s))

    @app.get("/status/events", response_class=Response, responses={200: {"content": {"text/event-stream": {}}}})
    async def status_events() -> Response:
        """The document of /status each time it has changed, as `event: status`."""
        return StatusStream(state.service, state.limits, state.since_s)

    @app.get("/props", responses=errors(401))
    async def props() -> JSONResponse:
        """What is served and how: model, limits, devices, defaults, routes."""
        routes = sorted({route.path for route in app.routes if isinstance(route, APIRoute)})
        about: dict[str, Any] = {"server": {"name": "foveate", "version": __version__, "props_schema": 1}}
        return JSONResponse(about | state.service.facts() | {"api": {"endpoints": routes}})

    @app.get("/version", responses=errors(401))
    async def version() -> JSONResponse:
        """The server's version."""
        return JSONResponse({"version": __version__})

    @app.get("/metrics", response_class=Response, responses=errors(401))
    async def metrics() -> Response:
        """Numbers for Prometheus."""
        content, kind = state.metrics.render()
        return Response(content, headers={"content-type": kind})


def add_tokens(app: FastAPI, state: AppState) -> None:
    """POST /tokenize and /detokenize."""

    @app.post(
        "/tokenize",
        responses=errors(400, 401, 404, 413, 503),
        openapi_extra=takes(tokens_request.TokenizeRequest),
    )
    async def tokenize(request: Request) -> JSONResponse:
        """The token ids of a text, or of a conversation in the model's template, pictures included."""
        wanted = await state.bodies.load(request, lambda document: tokens_request.to_prompt(document, state.service))
        prompt = await state.service.prompt(wanted)
        spans = [{"start": span.start_at, "rows": span.rows} for span in prompt.spans]
        count = len(prompt.tokens)
        found = {"count": count, "max_model_len": state.service.max_ctx, "tokens": prompt.tokens, "images": spans}
        return JSONResponse(found)

    @app.post(
        "/detokenize",
        responses=errors(400, 401, 404, 413, 503),
        openapi_extra=takes(tokens_request.DetokenizeRequest),
    )
    async def detokenize(request: Request) -> JSONResponse:
        """The text of token ids."""
        ids = await state.bodies.load(request, lambda document: tokens_request.to_ids(document, state.service))
        return JSONResponse({"prompt": state.service.text(ids)})
