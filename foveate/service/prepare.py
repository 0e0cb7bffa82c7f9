"""From a conversation to what the engine needs: pictures measured, ids rendered, images laid out, wishes resolved.

Owns every check that can be made before a request is queued, so that what is refused never costs the engine anything.
The checks run cheapest first. Refuses to know the engine, tickets and wire formats.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foveate.core.chat import ChatRequest, ImageSource, Wishes
from foveate.core.config import Config
from foveate.core.errors import ContextLengthExceeded, InvalidRequest
from foveate.core.values import Ending, ModelCard, Prompt, Sampling
from foveate.prompt.chat import ChatTemplate
from foveate.prompt.fetch import FetchPolicy, HostRules, fetch
from foveate.prompt.layout import lay_out
from foveate.prompt.pixels import Picture, check_total, measure
from foveate.prompt.tokens import Tokens
from foveate.service.memory import HostMemory

SEEDS = 2**63


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
    """A validated request. `held_bytes` is what its pictures keep in host memory until it ends."""

    prompt: Prompt
    pictures: tuple[Picture, ...]
    sampling: Sampling
    ending: Ending
    stops: tuple[str, ...]
    choices: int
    held_bytes: int


class Preparer:
    """Prepares requests for one model under one config; `memory` is asked before pictures are taken in."""

    def __init__(self, folder: Path, card: ModelCard, config: Config, memory: HostMemory) -> None:
        self._card, self._max_ctx, self._limits, self._memory = card, config.max_ctx, config.pictures, memory
        self.tokens = Tokens.load(folder)
        self._template = ChatTemplate.load(folder, self.tokens, card.image_token_id)
        self._policy = fetch_policy(config)

    async def prepare(self, request: ChatRequest) -> Prepared:
        """Everything checked and laid out; raises InvalidRequest and its kinds with the reason."""
        wishes = request.wishes
        self._check_ids(wishes)
        pictures = await self._pictures(request.images)
        rendered = await asyncio.to_thread(self._template.render, request.messages, request.template)
        # The template decides where each picture stands, and may show one twice or in another order than it was sent.
        shown = tuple(pictures[number] for number in rendered.images)
        prompt = self._lay_out(rendered.ids, shown)
        return Prepared(
            prompt=prompt,
            pictures=pictures,
            sampling=self._sampling(wishes),
            ending=self._ending(wishes, prompt),
            stops=wishes.stop,
            choices=wishes.n,
            held_bytes=sum(len(picture.data) for picture in pictures),
        )

    async def _pictures(self, sources: Sequence[ImageSource]) -> tuple[Picture, ...]:
        if not sources:
            return ()
        if self._card.image_rules is None:
            raise InvalidRequest("this model takes no images", sources[0].param)
        if len(sources) > self._limits.images:
            raise InvalidRequest(f"at most {self._limits.images} images per request, got {len(sources)}", "messages")
        self._memory.check()
        blobs = await asyncio.gather(*(fetch(source, self._policy) for source in sources))
        return await asyncio.to_thread(self._measure, blobs, sources)

    def _measure(self, blobs: Sequence[bytes], sources: Sequence[ImageSource]) -> tuple[Picture, ...]:
        assert self._card.image_rules is not None
        pairs = zip(blobs, sources, strict=True)
        pictures = tuple(measure(data, self._card.image_rules, self._limits, source.param) for data, source in pairs)
        check_total(pictures, self._limits)
        self._memory.check([math.prod(picture.size) for picture in pictures])
        return pictures

    def _lay_out(self, ids: Sequence[int], pictures: tuple[Picture, ...]) -> Prompt:
        image_len = sum(picture.rows for picture in pictures)
        length = len(ids) + image_len - len(pictures)
        if length >= self._max_ctx:
            raise ContextLengthExceeded(
                f"the prompt has {length} tokens, {image_len} of them for images; "
                f"the limit for prompt and answer together is {self._max_ctx}",
                "messages",
            )
        merge = self._card.image_rules.merge if self._card.image_rules else 1
        return lay_out(ids, self._card.image_token_id, pictures, merge)

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
