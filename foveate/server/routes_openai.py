"""The routes of OpenAI's APIs: chat completions, completions, responses and models.

Owns paths and descriptions, and the way from a body to a reply. What requests mean and how answers are worded is the
business of the modules that are called here. Promises that an answer under way does not keep its request's data URLs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from foveate.core.chat import ChatRequest
from foveate.core.errors import ModelNotFound
from foveate.server import completions, completions_request, openai, responses, responses_input, responses_request
from foveate.server.openai_request import ChatCompletionRequest, parse_request
from foveate.server.routes import AppState, answers, errors, takes


def add_chat(app: FastAPI, state: AppState) -> None:
    """POST /v1/chat/completions."""

    def build(document: Any) -> tuple[ChatCompletionRequest, ChatRequest]:
        ask = parse_request(document)
        return ask, openai.translate(ask, state.service)

    @app.post(
        "/v1/chat/completions",
        response_class=JSONResponse,
        responses=answers(),
        openapi_extra=takes(ChatCompletionRequest),
    )
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, with pictures and tools, as one document or as a stream of events."""
        state.admit()
        ask, wanted = await state.bodies.load(request, build)
        # Neither `ask` nor `wanted` itself: an answer that is queued or under way must not keep its data URLs.
        completion = partial(openai.Completion, model=state.service.name, wishes=wanted.wishes)
        include_usage, streamed = bool(ask.stream_options and ask.stream_options.include_usage), bool(ask.stream)
        return state.reply(
            partial(state.service.chat, wanted),
            (lambda answer: openai.CompletionStream(completion(answer), include_usage)) if streamed else None,
            lambda answer: openai.WholeCompletion(completion(answer)),
        )


def add_completions(app: FastAPI, state: AppState) -> None:
    """POST /v1/completions."""

    @app.post(
        "/v1/completions",
        response_class=JSONResponse,
        responses=answers(),
        openapi_extra=takes(completions_request.CompletionRequest),
    )
    async def text_completions(request: Request) -> Response:
        """Continue texts, or token ids, as they are: without a chat template."""
        state.admit()
        ask, wanted = await state.bodies.load(
            request, lambda document: completions_request.translate(document, state.service)
        )
        told = [completions.echo(one, state.service) if ask.echo else "" for one in wanted]
        echoes = [text for text in told for _ in range(wanted[0].wishes.n)]
        include_usage = bool(ask.stream_options and ask.stream_options.include_usage)
        completion = partial(
            completions.TextCompletion, model=state.service.name, echoes=echoes, logprobs=ask.logprobs is not None
        )
        return state.reply(
            partial(completions.begin, state.service, wanted),
            (lambda answer: completions.TextStream(completion(answer), include_usage)) if ask.stream else None,
            lambda answer: completions.WholeText(completion(answer)),
        )


def add_responses(app: FastAPI, state: AppState) -> None:
    """POST /v1/responses, and GET and DELETE of stored ones."""

    @app.post(
        "/v1/responses",
        response_class=JSONResponse,
        responses=answers(),
        openapi_extra=takes(responses_request.ResponsesRequest),
    )
    async def create_response(request: Request) -> Response:
        """Answer items, with pictures and tools, as one document or as a stream of events."""
        state.admit()
        ask, wanted, turn = await state.bodies.load(
            request, lambda document: responses_input.translate(document, state.service, state.stored)
        )
        made = partial(
            responses.Made, model=state.service.name, echo=responses.echo_of(ask), turn=turn, stored=state.stored
        )
        return state.reply(
            partial(state.service.chat, wanted),
            (lambda answer: responses.ResponseStream(made(answer))) if ask.stream else None,
            lambda answer: responses.WholeResponse(made(answer)),
        )

    @app.get("/v1/responses/{response_id}", responses=errors(401, 404))
    async def stored_response(response_id: str) -> JSONResponse:
        """A stored response, as it was answered."""
        return JSONResponse(state.stored.get(response_id, "response_id").document)

    @app.delete("/v1/responses/{response_id}", responses=errors(401, 404))
    async def delete_response(response_id: str) -> JSONResponse:
        """Forget a stored response."""
        state.stored.delete(response_id)
        return JSONResponse({"id": response_id, "object": "response.deleted", "deleted": True})

    @app.get("/v1/responses/{response_id}/input_items", responses=errors(401, 404))
    async def input_items(response_id: str) -> JSONResponse:
        """The items that a stored response answered."""
        items = state.stored.get(response_id, "response_id").items
        ends = {"first_id": items[0]["id"] if items else None, "last_id": items[-1]["id"] if items else None}
        return JSONResponse({"object": "list", "data": items, "has_more": False} | ends)


def add_models(app: FastAPI, state: AppState) -> None:
    """GET /v1/models."""
    service = state.service

    def card() -> dict[str, Any]:
        inputs = ["text", "image"] if service.has_vision else ["text"]
        return {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "foveate",
            "max_model_len": service.max_ctx,
            "context_length": service.max_ctx,
            "architecture": {"input_modalities": inputs, "output_modalities": ["text"]},
        }

    @app.get("/v1/models", responses=errors(401))
    async def models() -> JSONResponse:
        """The one model that is served."""
        return JSONResponse({"object": "list", "data": [card()]})

    @app.get("/v1/models/{model_id:path}", responses=errors(401, 404))
    async def model(model_id: str) -> JSONResponse:
        """The served model, by its name."""
        if model_id != service.name:
            raise ModelNotFound(f"the model does not exist; this server serves {service.name}", "model")
        return JSONResponse(card())
