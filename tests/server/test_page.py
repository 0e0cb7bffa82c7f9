"""The page's files: served with the right types, under a policy that lets nothing in, and nothing else beside them."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from foveate.core.config import Settings
from foveate.server.app import create_app
from foveate.server.page import FOLDER, TYPES, example_files
from tests.server.fake_service import FakeService
from tests.server.live import Live
from tests.server.test_http_access import ask

FILES = sorted(path.name for path in FOLDER.iterdir())
TEXTS = [name for name in FILES if not name.endswith(".png")]
# Names of XML vocabularies are spelled like addresses; nothing is fetched from them.
NAMESPACES = ("http://www.w3.org/2000/svg",)


def test_the_root_is_the_page(live: Live) -> None:
    response = live.http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.content == (FOLDER / "index.html").read_bytes()
    head = live.http.head("/")
    assert head.status_code == 200 and head.headers["content-length"] == str(len(response.content))


@pytest.mark.parametrize("name", FILES)
def test_every_file_of_the_folder_is_served_with_its_type(live: Live, name: str) -> None:
    response = live.http.get(f"/page/{name}")
    assert response.status_code == 200
    assert response.headers["content-type"] == TYPES[Path(name).suffix]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.content == (FOLDER / name).read_bytes()


def test_the_policy_lets_in_nothing_from_elsewhere_and_nothing_inline(live: Live) -> None:
    for path in ("/", "/page/app.js", "/examples/recipe-bar.png"):
        policy = dict(part.split(" ", 1) for part in live.http.get(path).headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["img-src"] == "'self' blob: data:"
        assert policy["require-trusted-types-for"] == "'script'" and policy["trusted-types"] == "'none'"


@pytest.mark.parametrize("name", TEXTS)
def test_no_file_names_an_address_elsewhere(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    for namespace in NAMESPACES:
        text = text.replace(namespace, "")
    assert not re.findall(r"(?:https?|wss?):\\?/\\?/[\w.-]+", text)
    assert not re.findall(r"""(?:src|href|from|import|url)\s*[=(]?\s*["']?//""", text)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_modules_are_small_say_what_they_own_and_parse_no_markup(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    assert len(text.splitlines()) <= 350
    assert text.startswith("/**\n") and "Owns" in text[: text.index("*/")]
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert way not in text
    assert "globalThis." not in text and not re.search(r"\bwindow\.\w+ =", text)


def test_imports_name_files_that_are_there() -> None:
    for name in FILES:
        if name.endswith(".js"):
            for found in re.findall(r'from "\./([^"]+)"', (FOLDER / name).read_text("utf-8")):
                assert found in FILES, f"{name} imports {found}"


def test_index_has_nothing_inline_and_names_files_that_are_there() -> None:
    text = (FOLDER / "index.html").read_text("utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", text)
    for path in re.findall(r'(?:src|href)="/page/([^"]+)"', text):
        assert path in FILES


def test_an_unchanged_file_costs_a_304(live: Live) -> None:
    first = live.http.get("/page/app.js")
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for given in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = live.http.get("/page/app.js", headers={"if-none-match": given})
        assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == etag
    assert live.http.get("/page/app.js", headers={"if-none-match": '"other"'}).status_code == 200
    assert live.http.get("/page/style.css").headers["etag"] != etag


@pytest.mark.parametrize(
    "path",
    [
        "/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/../../core/config.py",
        "/page//etc/passwd", "/page/%2fetc%2fpasswd", "/page/app.js%00", "/page/.", "/page/APP.JS",
        "/page/sub/app.js", "/examples/", "/examples/../__init__.py", "/examples/..%2f__init__.py",
        "/examples/..%2fconfig.json", "/examples/%2e%2e%2fconfig.json", "/examples/quick.jsonl", "/index.html",
        "/page.py", "/page/..\\app.py", "/page/..%5capp.py",
    ],
)  # fmt: skip
def test_nothing_else_can_be_had(live: Live, path: str) -> None:
    # A raw request: clients tidy such paths before they send them.
    with live.connect() as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = received(sock)
    assert answer.startswith(b"HTTP/1.1 404 "), path
    assert b'"code":"not_found"' in answer


def received(sock: socket.socket) -> bytes:
    pieces = []
    while piece := sock.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def test_nothing_can_be_written(live: Live) -> None:
    for method in ("POST", "PUT", "DELETE"):
        for path in ("/", "/page/app.js", "/examples/recipe-bar.png"):
            assert live.http.request(method, path).status_code == 405


def test_the_examples_are_the_bundled_pictures_with_their_questions(live: Live) -> None:
    listing = live.http.get("/examples/pictures.jsonl")
    assert listing.headers["content-type"] == "application/jsonl; charset=utf-8"
    for name, file in example_files().items():
        response = live.http.get(f"/examples/{name}")
        assert response.status_code == 200 and response.content == file.content
        assert response.headers["content-type"] == file.kind
    assert '"question"' in listing.text and len(example_files()) > 10


def test_another_model_has_no_examples() -> None:
    app = create_app(FakeService(name="other"), Settings())
    assert ask(app, "GET", "/").status_code == 200
    assert ask(app, "GET", "/examples/pictures.jsonl").status_code == 404


def test_a_missing_folder_is_no_examples(tmp_path: Path) -> None:
    assert example_files(tmp_path) == {}


def test_the_page_is_not_part_of_the_api_description(live: Live) -> None:
    paths = live.http.get("/openapi.json").json()["paths"]
    assert not {"/", "/page/{name}", "/examples/{name}"} & set(paths)
