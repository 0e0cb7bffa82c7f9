"""The page at `/`: its files, and the pictures it offers to try.

Owns which files a browser may have and the headers they travel with. Promises that exactly the files of the folder
`page` beside this module are served (read once, when the application is made; no path is ever built from a request),
that they may load nothing from elsewhere, and that an unchanged file costs a browser one 304. The bundled pictures are
offered under `/examples/` where the bundled model is served. Refuses to know what the page does: it is a client of the
public API like any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = PACKAGE / "server" / "page"
EXAMPLES = PACKAGE / "demo" / "pictures"
EXAMPLES_OF = "demo"  # the served name of the bundled model, whose questions the examples are
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jsonl": "application/jsonl; charset=utf-8",
}
# blob: and data: are pictures that the user chose, before they are sent. Trusted types make every way from a string to
# markup an error, so that the words of a model cannot become part of the page.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # Names carry no version, so a browser asks each time and mostly hears 304.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    content: bytes
    kind: str
    etag: str


def read_files(paths: Iterable[Path]) -> dict[str, PageFile]:
    """The files by name. Raises KeyError for a kind of file that no browser is to be given."""
    files = {}
    for path in paths:
        content = path.read_bytes()
        files[path.name] = PageFile(content, TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return files


def example_files(folder: Path = EXAMPLES) -> dict[str, PageFile]:
    """The list of suggested questions and the pictures that it names; nothing where the folder is not installed."""
    listing = folder / "pictures.jsonl"
    if not listing.is_file():
        return {}
    names = {Path(json.loads(line)["file"]).name for line in listing.read_text("utf-8").splitlines() if line}
    return read_files([listing, *(folder / name for name in sorted(names))])


def add_page(app: FastAPI, model: str) -> None:
    """Add the routes of the page; with the examples if `model`, the served name, is that of the bundled one."""
    files = read_files(path for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES)
    examples = example_files() if model == EXAMPLES_OF else {}

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return _sent(files.get("index.html"), request)

    @app.api_route("/page/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page_file(name: str, request: Request) -> Response:
        return _sent(files.get(name), request)

    @app.api_route("/examples/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def example(name: str, request: Request) -> Response:
        return _sent(examples.get(name), request)


def _sent(file: PageFile | None, request: Request) -> Response:
    if file is None:
        raise HTTPException(404)
    headers = {**HEADERS, "etag": file.etag}
    if _known(request.headers.get("if-none-match", ""), file.etag):
        return Response(status_code=304, headers=headers)
    # The HTTP server leaves the body out of an answer to HEAD, with its length in place.
    return Response(file.content, headers=headers, media_type=file.kind)


def _known(given: str, etag: str) -> bool:
    """Whether an If-None-Match header names this version; proxies mark theirs as weak."""
    tags = {tag.strip().removeprefix("W/") for tag in given.split(",")}
    return etag in tags or "*" in tags
