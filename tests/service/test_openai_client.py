"""The real `openai` client against the real service on a tiny model, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from foveate.core.config import Settings
from foveate.server.app import create_app
from foveate.server.run import GracefulServer, listen, url_of
from foveate.service.service import Service
from tests.support.engines import data_url, png, serving
from tests.support.harness import tiny


@asynccontextmanager
async def client_of(service: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    with listen("127.0.0.1", 0, 30.0) as sock:
        ready = asyncio.Event()
        server = GracefulServer(create_app(service, Settings()), service, 5.0, ready.set)
        task = asyncio.create_task(server.serve(sockets=[sock]))
        await ready.wait()
        client = openai.AsyncOpenAI(base_url=url_of(sock) + "/v1", api_key="none", max_retries=0)
        try:
            yield client
        finally:
            await client.close()
            server.should_exit = True
            await task


def messages(*pictures: bytes) -> list[dict]:
    parts: list[dict] = [{"type": "image_url", "image_url": {"url": data_url(p)}} for p in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]


async def test_images_streamed_and_whole_with_usage() -> None:
    async with serving(tiny("dense")[2]) as service, client_of(service) as client:
        asked = {
            "model": service.name,
            "messages": messages(png(1), png(2, 128, 96)),
            "temperature": 0,
            "max_tokens": 12,
        }
        whole = await client.chat.completions.create(**asked)
        assert whole.usage is not None and whole.usage.prompt_tokens_details is not None
        assert whole.usage.prompt_tokens_details.to_dict()["image_tokens"] == 6 + 12
        text, usage, reason = "", None, None
        async for chunk in await client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
        assert text == whole.choices[0].message.content and reason == whole.choices[0].finish_reason
        assert usage is not None and usage.completion_tokens == whole.usage.completion_tokens


async def test_choices_logprobs_and_stops_on_an_image_request() -> None:
    async with serving(tiny("dense")[2]) as service, client_of(service) as client:
        made = await client.chat.completions.create(
            model=service.name, messages=messages(png(3)), n=3, seed=5, max_tokens=8, logprobs=True, top_logprobs=2,
            temperature=1.0, extra_body={"ignore_eos": True},
        )  # fmt: skip
        assert [choice.index for choice in made.choices] == [0, 1, 2]
        for choice in made.choices:
            assert choice.logprobs is not None and len(choice.logprobs.content) == 8
            assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
        assert len({choice.message.content for choice in made.choices}) > 1, "three seeds, one answer"
        text = made.choices[0].message.content
        stop = text[3:5]
        cut = await client.chat.completions.create(
            model=service.name, messages=messages(png(3)), n=1, seed=5, max_tokens=8, temperature=1.0, stop=[stop],
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        assert cut.choices[0].message.content == text[: text.index(stop)] and cut.choices[0].finish_reason == "stop"


async def test_errors_come_as_the_clients_own_exceptions() -> None:
    async with serving(tiny("dense")[2], max_ctx=80) as service, client_of(service) as client:
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="no-such", messages=messages())
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=service.name, messages=messages(png(1, 700, 700)))
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="16"):
            await client.chat.completions.create(
                model=service.name, messages=messages(*(png(i, 32, 32) for i in range(17)))
            )
        assert [model.id async for model in client.models.list()] == [service.name]
