"""From a conversation to what the engine needs: pictures measured, ids rendered, images laid out, wishes resolved.

Owns every check that can be made before a request is queued, so that what is refused never costs the engine anything.
The checks run cheapest first. Refuses to know the engine, tickets and wire formats.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from foveate.core.chat import ChatRequest, ImageSource, Wishes
from foveate.core.config import Config
from foveate.core.errors import ContextLengthExceeded, InvalidRequest, Unsupported
from foveate.core.values import Ending, ModelCard, Prompt, Sampling
from foveate.prompt.chat import ChatTemplate, Rendered
from foveate.prompt.fetch import FetchPolicy, HostRules, fetch
from foveate.prompt.layout import lay_out_for
from foveate.prompt.markup import Markup
from foveate.prompt.pixels import Picture, check_total, measure
from foveate.prompt.schema import Frame, grammar_of
from foveate.prompt.tokens import Tokens
from foveate.service.memory import HostMemory

SEEDS = 2**63
Window = tuple[float, float]


def fetch_policy(config: Config) -> FetchPolicy:
    """Where pictures may come from, as the settings say."""
    media = config.media
    return FetchPolicy(
        http=media.http,
        rules=HostRules(media.hosts, media.networks, media.ports),
        media_path=media.folder,
        deadline_s=media.fetch_s,
        redirects=media.redirects,
        limits=config.pictures,
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A validated request. `held_bytes` is what its pictures keep in host memory until it ends.

    fetched: when each picture was read, on the monotonic clock.
    """

    prompt: Prompt
    pictures: tuple[Picture, ...]
    sampling: Sampling
    ending: Ending
    stops: tuple[str, ...]
    choices: int
    held_bytes: int
    fetched: tuple[Window, ...] = ()
    markup: Markup = field(default_factory=Markup)


class Preparer:
    """Prepares requests for one model under one config; `memory` is asked before pictures are taken in."""

    def __init__(self, folder: Path, card: ModelCard, config: Config, memory: HostMemory) -> None:
        self._card, self._max_ctx, self._limits, self._memory = card, config.max_ctx, config.pictures, memory
        self.tokens = Tokens.load(folder)
        self._template = ChatTemplate.load(folder, self.tokens, card.image_token_id, card.model_type)
        self._policy = fetch_policy(config)

    async def prepare(self, request: ChatRequest) -> Prepared:
        """Everything checked and laid out; raises InvalidRequest and its kinds with the reason."""
        wishes = request.wishes
        self._check_ids(wishes)
        pictures, windows = await self._pictures(request.images)
        rendered = await asyncio.to_thread(self._render, request)
        grammar = await asyncio.to_thread(self._grammar, request, rendered)
        # The template decides where each picture stands, and may show one twice or in another order than it was sent.
        shown = tuple(pictures[number] for number in rendered.images)
        prompt = await asyncio.to_thread(self._lay_out, rendered.ids, shown)
        self._check_fits(prompt, "messages" if request.prompt is None else "prompt")
        return Prepared(
            prompt=prompt,
            pictures=pictures,
            sampling=replace(self._sampling(wishes), grammar=grammar, thought_len=self._thought_len(request, rendered)),
            ending=self._ending(wishes, prompt),
            stops=wishes.stop,
            choices=wishes.n,
            held_bytes=sum(len(picture.data) for picture in pictures),
            fetched=tuple(windows[number] for number in rendered.images),
            markup=self._markup(request, rendered),
        )

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids; InvalidRequest for an id that the model does not have."""
        self._check_known(tokens, "tokens")
        return self.tokens.text(tokens)

    def template_facts(self) -> dict[str, bool]:
        """What the chat template can show."""
        known = self._template.variables
        return {
            "tools": "tools" in known,
            "reasoning": self._template.thinks,
            "reasoning_effort": bool({"enable_thinking", "reasoning_effort"} & known),
        }

    def _check_known(self, tokens: Sequence[int], param: str) -> None:
        if not all(0 <= token < self._card.vocab_size for token in tokens):
            raise InvalidRequest(f"there is no such token: ids go up to {self._card.vocab_size - 1}", param)

    def _render(self, request: ChatRequest) -> Rendered:
        """Ids of the prompt: the conversation in the model's template, or the text or ids as they came."""
        if request.prompt is None:
            return self._template.render(request.messages, self._options(request), request.open_end)
        ids = self.tokens.encode(request.prompt) if isinstance(request.prompt, str) else request.prompt
        if not ids:
            raise InvalidRequest("the prompt is empty", "prompt")
        self._check_known(ids, "prompt")
        return Rendered(tuple(ids))

    def _options(self, request: ChatRequest) -> dict[str, Any]:
        """The variables of the template. Raises Unsupported for what the template does not know."""
        options, known = dict(request.template), self._template.variables
        options["add_generation_prompt"] = request.generation_prompt and not request.open_end
        if request.tools is not None:
            if "tools" not in known:
                raise Unsupported("the model's chat template takes no tools", "tools")
            options["tools"] = [{"type": "function", "function": function} for function in request.tools.functions]
        if request.effort is not None:
            if not {"enable_thinking", "reasoning_effort"} & known:
                raise Unsupported("the model's chat template knows no reasoning effort", "reasoning_effort")
            options = {"enable_thinking": request.effort != "none", "reasoning_effort": request.effort} | options
        return options

    def _grammar(self, request: ChatRequest, rendered: Rendered) -> str:
        """What the answer must look like; '' where that is left to the model."""
        frame = Frame(rendered.opened, self._template.elements, self._template.dsml)
        grammar = grammar_of(request.form, request.tools, frame)
        if grammar and (request.wishes.ignore_eos or request.wishes.min_tokens):
            raise InvalidRequest("an answer of a given form ends where that does: no ignore_eos, no min_tokens")
        return grammar

    def _thought_len(self, request: ChatRequest, rendered: Rendered) -> int | None:
        """The bound of a thought that the prompt has opened, where one was set that the answer can reach."""
        most_len = request.wishes.max_tokens or self._max_ctx
        bounded = rendered.opened and request.thought_len is not None and request.thought_len < most_len
        return request.thought_len if bounded else None

    def _markup(self, request: ChatRequest, rendered: Rendered) -> Markup:
        if request.prompt is not None:
            return Markup()
        thinks = self._template.thinks and (rendered.opened or not request.open_end)
        opened, tools = rendered.opened if thinks else None, request.tools
        if tools is None:
            return Markup(opened)
        schemas = {function["name"]: function.get("parameters") for function in tools.functions}
        return Markup(opened, schemas, single=not tools.parallel, dsml=self._template.dsml)

    async def _pictures(self, sources: Sequence[ImageSource]) -> tuple[tuple[Picture, ...], list[Window]]:
        if not sources:
            return (), []
        if self._card.image_rules is None:
            raise InvalidRequest("this model takes no images", sources[0].param)
        if len(sources) > self._limits.images:
            raise InvalidRequest(f"at most {self._limits.images} images per request, got {len(sources)}", "messages")
        self._memory.check()
        read = await asyncio.gather(*(self._fetch(source) for source in sources))
        pictures = await asyncio.to_thread(self._measure, [data for data, _ in read], sources)
        return pictures, [window for _, window in read]

    async def _fetch(self, source: ImageSource) -> tuple[bytes, Window]:
        start_s = time.monotonic()
        data = await fetch(source, self._policy)
        return data, (start_s, time.monotonic())

    def _measure(self, blobs: Sequence[bytes], sources: Sequence[ImageSource]) -> tuple[Picture, ...]:
        assert self._card.image_rules is not None
        pairs = zip(blobs, sources, strict=True)
        pictures = tuple(measure(data, self._card.image_rules, self._limits, source.param) for data, source in pairs)
        check_total(pictures, self._limits)
        self._memory.check([math.prod(picture.size) for picture in pictures])
        return pictures

    async def prompt(self, request: ChatRequest) -> Prompt:
        """The prompt alone, however long; raises what `prepare` raises for pictures and conversation."""
        pictures, _ = await self._pictures(request.images)
        rendered = await asyncio.to_thread(self._render, request)
        shown = tuple(pictures[number] for number in rendered.images)
        return await asyncio.to_thread(self._lay_out, rendered.ids, shown)

    def _lay_out(self, ids: Sequence[int], pictures: tuple[Picture, ...]) -> Prompt:
        return lay_out_for(self._card, ids, pictures)

    def _check_fits(self, prompt: Prompt, param: str) -> None:
        if len(prompt.tokens) >= self._max_ctx:
            raise ContextLengthExceeded(
                f"the prompt has {len(prompt.tokens)} tokens, {prompt.image_rows} of them for images; "
                f"the limit for prompt and answer together is {self._max_ctx}",
                param,
            )

    def _ending(self, wishes: Wishes, prompt: Prompt) -> Ending:
        prompt_len = len(prompt.tokens)
        room = self._max_ctx - prompt_len
        if wishes.max_tokens is not None and wishes.max_tokens > room:
            raise ContextLengthExceeded(
                f"the prompt has {prompt_len} tokens, {prompt.image_rows} of them for images, and max_tokens asks for "
                f"{wishes.max_tokens} more; the limit for both together is {self._max_ctx}",
                "max_tokens",
            )
        max_new = wishes.max_tokens or room
        if wishes.min_tokens > max_new:
            raise InvalidRequest(f"min_tokens {wishes.min_tokens} is more than the {max_new} allowed", "min_tokens")
        eos = frozenset[int]() if wishes.ignore_eos else self._card.eos_ids
        return Ending(max_new, eos | frozenset(wishes.stop_token_ids), wishes.min_tokens)

    def _check_ids(self, wishes: Wishes) -> None:
        named = [("logit_bias", token) for token, _ in wishes.logit_bias]
        named += [("stop_token_ids", token) for token in wishes.stop_token_ids]
        for param, token in named:
            if not 0 <= token < self._card.vocab_size:
                raise InvalidRequest(f"there is no token {token}: ids go up to {self._card.vocab_size - 1}", param)

    def _sampling(self, wishes: Wishes) -> Sampling:
        """The client's wishes over the checkpoint's own defaults."""
        own = self._card.sampling
        return Sampling(
            temperature=own.temperature if wishes.temperature is None else wishes.temperature,
            top_p=own.top_p if wishes.top_p is None else wishes.top_p,
            top_k=own.top_k if wishes.top_k is None else wishes.top_k,
            min_p=own.min_p if wishes.min_p is None else wishes.min_p,
            frequency_penalty=wishes.frequency_penalty,
            presence_penalty=wishes.presence_penalty,
            repetition_penalty=wishes.repetition_penalty,
            logit_bias=wishes.logit_bias,
            seed=random.randrange(SEEDS) if wishes.seed is None else wishes.seed,
            logprobs=wishes.logprobs,
        )
