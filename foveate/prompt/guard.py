"""Which network addresses a picture may be fetched from, and the transport that cannot be talked out of it.

Owns the decision over a host name or address and the pinning of its answer: a name is resolved once, every address it
gave is checked, and a checked one is dialled. Every hop of a redirect passes here again. Nothing is sent to a host
that fails. Refuses to know pictures, files and how much may be read.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import httpx

from foveate.core.errors import InvalidRequest

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

_NAT64 = ip_network("64:ff9b::/96")  # RFC 6052: an IPv4 address in the last four bytes
# A last label that reads as a number makes the whole an address to some parsers: 0177.0.0.1, 0x7f.1, 2130706433.
_NUMBER_LIKE = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HostRules:
    """Where http may go. Without further settings: any name whose addresses are all global, on the usual ports.

    hosts: if any are given, only these names (`.example.com` stands for all below it). networks: address ranges that
    are allowed although they are not global, such as a picture store in the own network.
    """

    hosts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    ports: tuple[int, ...] = (80, 443)

    def allows_name(self, host: str) -> bool:
        """Whether a host may be asked for at all; addresses are checked apart."""
        name = host.rstrip(".").lower()
        return not self.hosts or any(
            name == known.lower() or (known.startswith(".") and name.endswith(known.lower())) for known in self.hosts
        )

    def allows_address(self, address: IPv4Address | IPv6Address) -> bool:
        """Whether an address may be dialled: global in every reading of it, or in one of `networks`."""
        if any(address in ip_network(network) for network in self.networks):
            return True
        return all(part.is_global and not part.is_multicast and not part.is_reserved for part in _readings(address))


def _readings(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """All that an address may mean: the IPv4 address that it only spells, or itself with one that it carries along."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address, *filter(None, (address.sixtofour, *(address.teredo or ())))]


async def system_resolver(host: str, port: int) -> list[str]:
    """All addresses of a name, by the system's resolver; OSError when there are none."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(answer[4][0]) for answer in answers]


class GuardedTransport(httpx.AsyncBaseTransport):
    """An httpx transport that dials checked addresses only; InvalidRequest for `param` otherwise."""

    def __init__(self, rules: HostRules, resolve: Resolver, param: str, inner: httpx.AsyncBaseTransport) -> None:
        self._rules = rules
        self._resolve = resolve
        self._param = param
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one hop of a request to a pinned address; Host header and certificate check keep the name."""
        url = request.url
        addresses = await self._checked(url)
        request.extensions = {**request.extensions, "sni_hostname": url.host}
        for address in addresses[:-1]:
            request.url = url.copy_with(host=address)
            try:
                return await self._inner.handle_async_request(request)
            except httpx.ConnectError:
                continue
        request.url = url.copy_with(host=addresses[-1])
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _checked(self, url: httpx.URL) -> list[str]:
        """The addresses of a URL's host, all of them allowed; nothing has been dialled."""
        port = url.port or (443 if url.scheme == "https" else 80)
        if url.scheme not in ("http", "https") or url.userinfo or not url.host:
            raise self._refusal()
        if port not in self._rules.ports or not self._rules.allows_name(url.host):
            raise self._refusal()
        found = [url.host] if _is_address(url.host) else await self._lookup(url.host, port)
        if not found or not all(self._rules.allows_address(ip_address(text.partition("%")[0])) for text in found):
            raise self._refusal()
        return found

    async def _lookup(self, host: str, port: int) -> list[str]:
        if _NUMBER_LIKE.fullmatch(host.rstrip(".")):
            raise self._refusal()
        try:
            return list(dict.fromkeys(await self._resolve(host, port)))
        except (OSError, UnicodeError):
            raise InvalidRequest("the picture's host has no known address", self._param) from None

    def _refusal(self) -> InvalidRequest:
        return InvalidRequest("the picture's URL leads to a place that this server does not fetch from", self._param)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
