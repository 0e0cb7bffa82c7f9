"""A picture's bytes from where the client says they are: inside the URL, on the web, or in an allowed folder.

Owns the choice by scheme, the deadline and the byte cap of a download, and the reading of local files. Promises that
nothing is fetched that the policy does not allow, that an error names neither addresses nor files, and that it says
the same whether or not a forbidden file exists. Refuses to know what a picture is.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx

from foveate.core.chat import ImageSource
from foveate.core.config import PictureLimits
from foveate.core.errors import InvalidRequest
from foveate.prompt.dataurl import data_url, too_large
from foveate.prompt.guard import GuardedTransport, HostRules, Resolver, system_resolver

__all__ = ["FetchPolicy", "HostRules", "data_url", "fetch"]


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """What may be fetched: `http` at all and by which rules, files below `media_path`, how long and how far.

    `deadline_s` covers everything from the first name lookup to the last byte; `redirects` is how many are followed.
    """

    http: bool = True
    rules: HostRules = field(default_factory=HostRules)
    media_path: Path | None = None
    deadline_s: float = 10.0
    redirects: int = 3
    limits: PictureLimits = field(default_factory=PictureLimits)


async def fetch(source: ImageSource, policy: FetchPolicy, resolve: Resolver = system_resolver) -> bytes:
    """The encoded bytes of one picture; work that takes long runs off the event loop.

    `resolve` turns a host name into addresses. Raises TooLarge beyond the byte limit, InvalidRequest for all else:
    an unknown scheme, a place that is not allowed, a host that does not answer in time or answers with an error.
    """
    scheme = source.url[:16].partition(":")[0].lower()
    if scheme == "data":
        return await asyncio.to_thread(data_url, source.url, policy.limits, source.param)
    if scheme in ("http", "https"):
        if not policy.http:
            raise InvalidRequest("this server fetches no pictures over http; send a data: URL", source.param)
        return await _within(policy.deadline_s, source, _download(source, policy, resolve))
    if scheme == "file" and policy.media_path is not None:
        return await asyncio.to_thread(_read_file, source, policy.media_path, policy.limits)
    raise InvalidRequest("the picture must be a data:, http: or https: URL", source.param)


async def _within(deadline_s: float, source: ImageSource, work: Coroutine[Any, Any, bytes]) -> bytes:
    try:
        async with asyncio.timeout(deadline_s):
            return await work
    except TimeoutError:
        raise InvalidRequest(f"the picture did not arrive within {deadline_s:g} seconds", source.param) from None


async def _download(source: ImageSource, policy: FetchPolicy, resolve: Resolver) -> bytes:
    context = await asyncio.to_thread(ssl.create_default_context)  # reading the certificates takes a while
    # No environment: a proxy would dial for us, out of the guard's sight.
    inner = httpx.AsyncHTTPTransport(verify=context, trust_env=False)
    transport = GuardedTransport(policy.rules, resolve, source.param, inner)
    async with httpx.AsyncClient(
        transport=transport,
        trust_env=False,
        timeout=policy.deadline_s,
        follow_redirects=True,
        max_redirects=policy.redirects,
        headers={"user-agent": "foveate", "accept": "image/*", "accept-encoding": "identity"},
    ) as client:
        try:
            async with client.stream("GET", source.url) as answer:
                return await _body(answer, source, policy.limits)
        except httpx.TooManyRedirects:
            raise InvalidRequest("the picture's URL redirects too often", source.param) from None
        except httpx.InvalidURL:
            raise InvalidRequest("the picture's URL is not valid", source.param) from None
        except httpx.HTTPError:
            raise InvalidRequest("the picture's host did not answer properly", source.param) from None


async def _body(answer: httpx.Response, source: ImageSource, limits: PictureLimits) -> bytes:
    """The answer's bytes as sent, counted while they come."""
    if answer.status_code != 200:
        raise InvalidRequest(f"the picture's host answered with status {answer.status_code}", source.param)
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequest("the picture's host compressed its answer although asked not to", source.param)
    declared = answer.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.image_bytes:
        raise too_large(limits, source.param)
    data = bytearray()
    async for chunk in answer.aiter_raw():
        data += chunk
        if len(data) > limits.image_bytes:
            raise too_large(limits, source.param)
    return bytes(data)


def _read_file(source: ImageSource, root: Path, limits: PictureLimits) -> bytes:
    """A regular file whose real path lies below `root`; every other outcome has one and the same message."""
    rest = source.url[len("file:") :]
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest.removeprefix("/"))
    try:
        if host not in ("", "localhost"):
            raise OSError
        real = Path(unquote(slash + path, errors="strict")).resolve(strict=True)
        if not real.is_relative_to(root.resolve(strict=True)):
            raise OSError
        data = _read_regular(real, limits.image_bytes + 1)
    except (OSError, ValueError, RuntimeError):
        text = "the picture is not a readable file below the server's media folder"
        raise InvalidRequest(text, source.param) from None
    if len(data) > limits.image_bytes:
        raise too_large(limits, source.param)
    return data


def _read_regular(path: Path, most: int) -> bytes:
    """Up to `most` bytes of a regular file; OSError for a link, a pipe, a device or a folder."""
    # Following no link and waiting for no writer: the path was real when it was resolved, a moment ago.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError
        with open(handle, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(handle)
