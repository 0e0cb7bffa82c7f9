"""OpenAI's older completions request, and what its prompts come to.

Owns the wire schema of POST /v1/completions. Several prompts in one request are answered one after the other by
several requests of the service; their choices are numbered through.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Tag

from foveate.core.chat import ChatRequest, Form, Wishes
from foveate.core.errors import InvalidRequest
from foveate.server.asked import check_model
from foveate.server.contract import Service
from foveate.server.openai import extra_form, logit_bias
from foveate.server.openai_request import MAX_CHOICES, StreamOptions, StructuredOutputs
from foveate.server.wire import (
    Bias,
    Count,
    MinP,
    Penalty,
    Repetition,
    Seed,
    Stop,
    Strict,
    Temperature,
    TokenId,
    TopK,
    TopP,
    harmless,
    parse,
    refused,
    union,
)

DEFAULT_TOKENS = 16  # OpenAI's own default for this API
Ids = Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]


def _prompt(value: Any) -> str | None:
    if isinstance(value, str):
        return "<string>"
    first = value[0] if isinstance(value, list) and value else None
    kinds = {str: "<strings>", int: "<ids>", list: "<lists>"}
    return kinds.get(type(first))


Prompt = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[str], Tag("<strings>")]
    | Annotated[Ids, Tag("<ids>")]
    | Annotated[list[Ids], Tag("<lists>")],
    union(_prompt, "prompt_kind", "prompt is a text, token ids, or a list of either"),
]


class CompletionRequest(Strict):
    """A request to POST /v1/completions."""

    prompt: Prompt
    model: str | None = None
    max_tokens: Count | None = None
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
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    echo: bool | None = Field(None, description="Each text begins with its prompt; not together with logprobs.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    user: str | None = harmless()

    best_of: Any = refused(1)
    suffix: Any = refused("")
    add_special_tokens: Any = refused(False, True)
    allowed_token_ids: Any = refused()
    bad_words: Any = refused([])
    length_penalty: Any = refused(1.0)
    priority: Any = refused(0)
    prompt_logprobs: Any = refused()
    response_format: Any = refused({"type": "text"})
    return_token_ids: Any = refused(False)
    skip_special_tokens: Any = refused(True)
    truncate_prompt_tokens: Any = refused()
    use_beam_search: Any = refused(False)


def translate(document: Any, service: Service) -> tuple[CompletionRequest, list[ChatRequest]]:
    """The wire request and one request of the service for each of its prompts. Raises InvalidRequest."""
    ask = parse(CompletionRequest, document)
    check_model(ask.model, service)
    if ask.stream_options is not None and not ask.stream:
        raise InvalidRequest("stream_options needs stream: true", "stream_options")
    if ask.echo and ask.logprobs is not None:
        raise InvalidRequest("echo and logprobs exclude each other: a prompt has no logprobs here", "echo")
    wishes, form = _wishes(ask), _form(ask)
    prompts = _prompts(ask)
    if len(prompts) * wishes.n > MAX_CHOICES:
        raise InvalidRequest(f"at most {MAX_CHOICES} choices over all prompts", "prompt")
    return ask, [ChatRequest((), wishes=wishes, form=form, prompt=prompt) for prompt in prompts]


def _prompts(ask: CompletionRequest) -> list[str | tuple[int, ...]]:
    if isinstance(ask.prompt, str):
        return [ask.prompt]
    if isinstance(ask.prompt[0], int):
        return [tuple(ask.prompt)]
    return [prompt if isinstance(prompt, str) else tuple(prompt) for prompt in ask.prompt]


def _form(ask: CompletionRequest) -> Form | None:
    return None if ask.structured_outputs is None else extra_form(ask.structured_outputs)


def _wishes(ask: CompletionRequest) -> Wishes:
    max_tokens = ask.max_tokens or DEFAULT_TOKENS
    if (ask.min_tokens or 0) > max_tokens:
        raise InvalidRequest("min_tokens is larger than max_tokens", "min_tokens")
    return Wishes(
        temperature=ask.temperature,
        top_p=ask.top_p,
        top_k=None if ask.top_k is None else max(ask.top_k, 0),
        min_p=ask.min_p,
        frequency_penalty=ask.frequency_penalty or 0.0,
        presence_penalty=ask.presence_penalty or 0.0,
        repetition_penalty=1.0 if ask.repetition_penalty is None else ask.repetition_penalty,
        logit_bias=logit_bias(ask.logit_bias or {}),
        seed=ask.seed,
        max_tokens=max_tokens,
        min_tokens=ask.min_tokens or 0,
        ignore_eos=bool(ask.ignore_eos),
        stop=(ask.stop,) if isinstance(ask.stop, str) else tuple(ask.stop or ()),
        stop_token_ids=tuple(ask.stop_token_ids or ()),
        logprobs=ask.logprobs,
        n=ask.n or 1,
    )
