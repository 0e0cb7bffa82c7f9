"""The requests of /tokenize and /detokenize.

Owns their wire schemas: a conversation as of chat completions, or a text, to ids; ids to text.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from foveate.core.chat import ChatRequest
from foveate.core.errors import InvalidRequest
from foveate.server.asked import check_model
from foveate.server.contract import Service
from foveate.server.openai import translate
from foveate.server.openai_request import Message, Tool, parse_request
from foveate.server.wire import Strict, TemplateValues, TokenId, harmless, parse, refused

MAX_IDS = 1_000_000


class TokenizeRequest(Strict):
    """`prompt`, or `messages` with what else decides how they are shown."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)] | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: TemplateValues | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = harmless("Models served here have none.")
    return_token_strs: Any = refused(False)


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_IDS)]


def to_prompt(document: Any, service: Service) -> ChatRequest:
    """The request whose prompt is asked for. Raises InvalidRequest."""
    ask = parse(TokenizeRequest, document)
    check_model(ask.model, service)
    if (ask.prompt is None) == (ask.messages is None):
        raise InvalidRequest("either prompt or messages is needed", "prompt")
    if ask.prompt is not None:
        return ChatRequest((), prompt=ask.prompt)
    shown = {
        name: value
        for name, value in document.items()
        if name not in ("prompt", "add_special_tokens", "return_token_strs")
    }
    return translate(parse_request(shown), service)


def to_ids(document: Any, service: Service) -> list[int]:
    """The ids whose text is asked for. Raises InvalidRequest."""
    ask = parse(DetokenizeRequest, document)
    check_model(ask.model, service)
    return ask.tokens
