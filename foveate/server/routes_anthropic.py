"""The routes of Anthropic's API: messages and their token count.

Owns paths and descriptions, and the way from a body to a reply. What requests mean and how answers are worded is the
business of the modules that are called here.
"""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from foveate.server import anthropic, anthropic_input
from foveate.server.anthropic_request import CountTokensRequest, MessagesRequest
from foveate.server.routes import AppState, answers, errors, takes


def add_messages(app: FastAPI, state: AppState) -> None:
    """POST /v1/messages and /v1/messages/count_tokens."""

    @app.post("/v1/messages", response_class=JSONResponse, responses=answers(), openapi_extra=takes(MessagesRequest))
    async def messages(request: Request) -> Response:
        """Answer a conversation of content blocks, as one message or as a stream of events."""
        state.admit()
        ask, wanted = await state.bodies.load(
            request, lambda document: anthropic_input.translate(document, state.service)
        )
        hide = ask.thinking is not None and ask.thinking.display == "omitted"
        said = partial(anthropic.Said, model=state.service.name, hide=hide)
        return state.reply(
            partial(state.service.chat, wanted),
            (lambda answer: anthropic.MessageStream(said(answer))) if ask.stream else None,
            lambda answer: anthropic.WholeMessage(said(answer)),
        )

    @app.post(
        "/v1/messages/count_tokens",
        responses=errors(400, 401, 404, 413, 503),
        openapi_extra=takes(CountTokensRequest),
    )
    async def count_tokens(request: Request) -> JSONResponse:
        """The tokens that a request's prompt would have, pictures included; nothing runs."""
        wanted = await state.bodies.load(request, lambda document: anthropic_input.to_count(document, state.service))
        return JSONResponse({"input_tokens": len((await state.service.prompt(wanted)).tokens)})
