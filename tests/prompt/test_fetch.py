"""Fetching behind the guard: a loopback server, an injected resolver, and addresses that must never be dialled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest

from foveate.core.chat import ImageSource
from foveate.core.config import PictureLimits
from foveate.core.errors import InvalidRequest, TooLarge
from foveate.prompt.fetch import FetchPolicy, HostRules, fetch
from foveate.prompt.guard import GuardedTransport, system_resolver

BODY = b"\x89PNG" + bytes(range(256)) * 8


@dataclass
class Site:
    """A loopback web server that answers by path and remembers every connection and Host header."""

    port: int = 0
    connections: int = 0
    hosts: list[str] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    stalled: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.hosts += [line[6:] for line in head.split("\r\n") if line.lower().startswith("host:")]
            answer = self.answers.get(head.split(" ")[1], answer_of(404, b"no"))
            writer.write(answer)
            await writer.drain()
            if answer.endswith(b"..."):
                await self.stalled.wait()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def answer_of(status: int, body: bytes, *lines: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *lines))
    return head.encode() + b"\r\n\r\n" + body


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    site.answers["/a.png"] = answer_of(200, BODY)
    yield site
    site.stalled.set()
    server.close()
    await server.wait_closed()


def open_policy(site: Site) -> FetchPolicy:
    """Loopback is allowed here, as an operator would allow an own network."""
    return FetchPolicy(rules=HostRules(networks=("127.0.0.0/8",), ports=(site.port,)))


def guarded(site: Site) -> FetchPolicy:
    """The default rules, with only the test's port added."""
    return FetchPolicy(rules=HostRules(ports=(80, 443, site.port)))


def resolver(*addresses: str, asked: list[str] | None = None):  # type: ignore[no-untyped-def]
    async def resolve(host: str, port: int) -> Sequence[str]:
        if asked is not None:
            asked.append(host)
        return addresses

    return resolve


async def get(url: str, policy: FetchPolicy, resolve=system_resolver) -> bytes:  # type: ignore[no-untyped-def]
    return await fetch(ImageSource(url, "messages.0.content.0.image_url.url"), policy, resolve)


async def test_a_picture_comes_from_the_pinned_address_under_its_name(site: Site) -> None:
    asked: list[str] = []
    url = f"http://pictures.example:{site.port}/a.png"
    assert await get(url, open_policy(site), resolver("127.0.0.1", asked=asked)) == BODY
    assert site.hosts == [f"pictures.example:{site.port}"] and asked == ["pictures.example"]


async def test_the_next_address_is_tried_when_one_does_not_answer(site: Site) -> None:
    policy = open_policy(site)
    assert await get(f"http://x.example:{site.port}/a.png", policy, resolver("127.0.0.9", "127.0.0.1")) == BODY


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "2130706433", "0x7f.1", "0x7f000001",
        "0177.0.0.1", "127.1", "127.0.0.1.", "localhost", "localhost.", "LOCALHOST", "0.0.0.0", "[::]", "10.0.0.1",
        "169.254.169.254", "192.168.1.1", "172.16.0.1", "100.64.0.1", "[fe80::1]", "[fd00::1]", "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]", "224.0.0.1", "255.255.255.255", "[ff02::1]", "user@127.0.0.1", "example.com@127.0.0.1",
        "192.0.2.1", "①②⑦.⓪.⓪.①", "127。0。0。1",
    ],
)  # fmt: skip
async def test_B55_addresses_that_are_not_global_are_never_dialled(site: Site, host: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await get(f"http://{host}:{site.port}/a.png", guarded(site))
    assert site.connections == 0
    assert caught.value.param == "messages.0.content.0.image_url.url" and "127" not in caught.value.message


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",),
        ("93.184.216.34", "127.0.0.1"),
        ("::ffff:127.0.0.1",),
        ("::1",),
        ("fe80::1%lo",),
        ("169.254.169.254",),
    ],
)
async def test_B55_a_public_name_with_a_private_address(site: Site, addresses: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="does not fetch from"):
        await get(f"http://public.example:{site.port}/a.png", guarded(site), resolver(*addresses))
    assert site.connections == 0


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "127.1", "1.2.3.4.5", "x.0x1", "0x"]
)
async def test_B55_names_that_some_read_as_numbers_are_not_even_looked_up(site: Site, host: str) -> None:
    asked: list[str] = []
    with pytest.raises(InvalidRequest):
        await get(f"http://{host}:{site.port}/", guarded(site), resolver("93.184.216.34", asked=asked))
    assert asked == []


async def test_the_address_is_dialled_and_the_name_is_what_certificates_are_checked_against() -> None:
    dialled: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        dialled.append(request)
        return httpx.Response(200)

    transport = GuardedTransport(HostRules(), resolver("93.184.216.34"), "p", httpx.MockTransport(answer))
    async with httpx.AsyncClient(transport=transport) as client:
        await client.get("https://pictures.example/a.png")
    (request,) = dialled
    assert request.url.host == "93.184.216.34" and request.headers["host"] == "pictures.example"
    assert request.extensions["sni_hostname"] == "pictures.example"


async def test_B55_a_name_is_resolved_once(site: Site) -> None:
    """The second answer would be another address: the checked one is dialled all the same."""
    answers = iter([["127.0.0.1"], ["127.0.0.77"]])

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(answers)

    assert await get(f"http://rebind.example:{site.port}/a.png", open_policy(site), resolve) == BODY
    assert next(answers) == ["127.0.0.77"]


@pytest.mark.parametrize(
    "target",
    ["http://169.254.169.254/latest", "http://[::1]/", "http://second.example/", "https://127.0.0.2:1/", "file:///etc/passwd",
     "ftp://x.example/", "gopher://x.example/", "//169.254.169.254/", "http://user:pw@first.example/", "http://first.example:8080/"],
)  # fmt: skip
async def test_B55_every_hop_is_checked_again(site: Site, target: str) -> None:
    site.answers["/go"] = answer_of(302, b"", f"Location: {target}")

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"] if host == "first.example" else ["10.0.0.7"]

    rules = HostRules(networks=("127.0.0.1/32",), ports=(80, 443, 1, site.port))
    with pytest.raises(InvalidRequest, match="does not fetch from"):
        await get(f"http://first.example:{site.port}/go", FetchPolicy(rules=rules), resolve)
    assert site.connections == 1


async def test_redirects_are_followed_and_counted(site: Site) -> None:
    for n in range(4):
        site.answers[f"/{n}"] = answer_of(302, b"", f"Location: /{n + 1}")
    site.answers["/4"] = answer_of(200, BODY)
    resolve, url = resolver("127.0.0.1"), f"http://x.example:{site.port}"
    assert await get(f"{url}/1", open_policy(site), resolve) == BODY
    with pytest.raises(InvalidRequest, match="redirects too often"):
        await get(f"{url}/0", open_policy(site), resolve)


async def test_only_listed_hosts_when_there_is_a_list(site: Site) -> None:
    rules = HostRules(hosts=("pictures.example", ".cdn.example"), networks=("127.0.0.0/8",), ports=(site.port,))
    policy, resolve = FetchPolicy(rules=rules), resolver("127.0.0.1")
    for host in ("pictures.example", "PICTURES.example.", "a.b.cdn.example"):
        assert await get(f"http://{host}:{site.port}/a.png", policy, resolve) == BODY
    for host in ("other.example", "cdn.example", "pictures.example.evil.example", "127.0.0.1"):
        with pytest.raises(InvalidRequest, match="does not fetch from"):
            await get(f"http://{host}:{site.port}/a.png", policy, resolve)
    assert site.connections == 3


async def test_B15_failed_fetches_say_why(site: Site) -> None:
    resolve, url = resolver("127.0.0.1"), f"http://x.example:{site.port}"
    site.answers["/500"] = answer_of(500, b"oops")
    site.answers["/half"] = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc"
    site.answers["/junk"] = b"nonsense\r\n\r\n"
    site.answers["/zip"] = answer_of(200, BODY, "Content-Encoding: gzip")
    for path, reason in (("/404", "status 404"), ("/500", "status 500"), ("/half", "properly"), ("/junk", "properly"),
                         ("/zip", "compressed")):  # fmt: skip
        with pytest.raises(InvalidRequest, match=reason):
            await get(url + path, open_policy(site), resolve)
    closed = FetchPolicy(rules=HostRules(networks=("127.0.0.0/8",), ports=(1,)))
    with pytest.raises(InvalidRequest, match="properly"):
        await get("http://x.example:1/", closed, resolve)
    with pytest.raises(InvalidRequest, match="no known address"):
        await get("http://no-such-host.invalid/", FetchPolicy(), _nowhere)


async def _nowhere(host: str, port: int) -> Sequence[str]:
    raise OSError("not found")


@pytest.mark.parametrize("declared", [True, False])
async def test_the_byte_cap_holds_with_and_without_a_declared_length(site: Site, declared: bool) -> None:
    site.answers["/a.png"] = (
        answer_of(200, BODY) if declared else b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY
    )
    policy, resolve = open_policy(site), resolver("127.0.0.1")
    url = f"http://x.example:{site.port}/a.png"
    assert await get(url, replace(policy, limits=PictureLimits(image_bytes=len(BODY))), resolve) == BODY
    with pytest.raises(TooLarge, match="bytes"):
        await get(url, replace(policy, limits=PictureLimits(image_bytes=len(BODY) - 1)), resolve)


async def test_the_deadline_covers_lookup_and_body(site: Site) -> None:
    site.answers["/slow"] = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc..."
    policy = replace(open_policy(site), deadline_s=0.2)
    with pytest.raises(InvalidRequest, match=r"within 0\.2 seconds"):
        await get(f"http://x.example:{site.port}/slow", policy, resolver("127.0.0.1"))

    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(InvalidRequest, match="within"):
        await get(f"http://x.example:{site.port}/slow", policy, never)


async def test_environment_proxies_are_not_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert await get(f"http://x.example:{site.port}/a.png", open_policy(site), resolver("127.0.0.1")) == BODY


async def test_http_can_be_switched_off(site: Site) -> None:
    with pytest.raises(InvalidRequest, match="no pictures over http"):
        await get(f"http://x.example:{site.port}/a.png", replace(open_policy(site), http=False), resolver("127.0.0.1"))
    assert site.connections == 0


@pytest.mark.parametrize(
    "url", ["", "abc", "iVBORw0KGgo=", "/etc/passwd", "ftp://x/y", "blob:1", "javascript:1", "C:\\a.png"]
)
async def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="must be a data:, http: or https: URL"):
        await get(url, FetchPolicy())


@pytest.mark.parametrize(
    "url", ["http://", "http:///a", "http://[::1", "http://a b/", "http://x:99999/", "https:x", "http://\0/"]
)
async def test_broken_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        await get(url, FetchPolicy(), _nowhere)


async def test_data_urls_go_the_same_way() -> None:
    assert await get("data:image/png;base64,QUJD", FetchPolicy()) == b"ABC"


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    (folder / "sub dir").mkdir(parents=True)
    (folder / "sub dir" / "a.png").write_bytes(BODY)
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "media-twin").mkdir()
    (tmp_path / "media-twin" / "a.png").write_bytes(b"secret")
    (folder / "inside.png").symlink_to(folder / "sub dir" / "a.png")
    (folder / "out.png").symlink_to(tmp_path / "secret.png")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "loop").symlink_to(folder / "loop")
    return folder


async def test_files_below_the_media_folder(media: Path) -> None:
    policy = FetchPolicy(media_path=media)
    for url in (
        f"file://{media}/sub%20dir/a.png",
        f"file://localhost{media}/sub dir/a.png",
        f"file:{media}/inside.png",
    ):
        assert await get(url, policy) == BODY
    with pytest.raises(TooLarge):
        await get(f"file://{media}/inside.png", replace(policy, limits=PictureLimits(image_bytes=9)))


@pytest.mark.parametrize(
    "path",
    [
        "{media}/missing.png", "{media}/../secret.png", "{media}/%2e%2e/secret.png", "{media}/sub dir/../../secret.png",
        "{media}/out.png", "{media}/up/secret.png", "{media}/../media-twin/a.png", "{media}/pipe", "{media}/zero",
        "{media}/sub dir", "{media}", "{media}/loop", "{media}/a\0b", "{media}/%00", "{media}/%ff", "/etc/passwd",
        "/etc/no-such-file", "/dev/zero", "//evil.example{media}/inside.png", "", "/",
    ],
)  # fmt: skip
async def test_B57_other_files_give_one_message_whether_they_exist_or_not(media: Path, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await get(f"file://{path.format(media=media)}", FetchPolicy(media_path=media))
    assert caught.value.message == "the picture is not a readable file below the server's media folder"


@pytest.mark.parametrize("url", ["file:///etc/passwd", "file://localhost/etc/passwd", "file:///no/such", "/etc/passwd"])
async def test_B57_without_a_media_folder_no_file_is_looked_at(url: str) -> None:
    with pytest.raises(InvalidRequest, match="must be a data:, http: or https: URL"):
        await get(url, FetchPolicy())


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("64:ff9b::5db8:d822", True),
        ("::ffff:93.184.216.34", True), ("127.0.0.1", False), ("64:ff9b::a00:1", False), ("2002:a00:1::", False),
        ("198.18.0.1", False), ("240.0.0.1", False),
    ],
)  # fmt: skip
def test_which_addresses_are_global(address: str, allowed: bool) -> None:
    assert HostRules().allows_address(ip_address(address)) is allowed


async def test_the_systems_resolver_answers_with_addresses() -> None:
    assert set(await system_resolver("localhost", 80)) <= {"127.0.0.1", "::1"}
