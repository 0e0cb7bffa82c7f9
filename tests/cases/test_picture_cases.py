"""Cases B01 to B17: pictures as they come, through every way in that this server has, answered or plainly refused."""

from __future__ import annotations

import base64
import io
import socket
import struct
import urllib.parse
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image, ImageOps

from tests.cases.oracle import House, open_house, part, refused, url, user
from tests.support.engines import png
from tests.support.pillow_images import SOURCE, pictures
from tests.support.web import PictureHost

Way = Callable[[bytes], str]


def gradient(width: int, height: int) -> Image.Image:
    """A picture in which every turn looks different."""
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([x * 255 // max(1, width - 1), y * 255 // max(1, height - 1), (x + 2 * y) % 256], -1)
    return Image.fromarray(rgb.astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.fixture(params=["data", "http", "file"])
def way(request: pytest.FixtureRequest, web: PictureHost, tmp_path: Path) -> Way:
    """From bytes to a URL of one kind: every path by which a picture can come in."""

    def make(data: bytes) -> str:
        if request.param == "data":
            return url(data)
        if request.param == "http":
            web.pages["/way"] = data
            return web.url("/way")
        (tmp_path / "picture").write_bytes(data)
        return f"file://{tmp_path}/picture"

    return make


@pytest.fixture(scope="module")
def any_house(folder: Path, web: PictureHost, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = str(tmp_path_factory.getbasetemp())
    nets = {"allowed_media_networks": "127.0.0.0/8", "allowed_media_ports": str(web.port)}
    with open_house(folder, media_path=root, **nets) as house:
        yield house
        house.check()


@pytest.mark.parametrize("kind", ["JPEG", "WebP", "PNG", "TIFF", "AVIF"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_B01_orientation_is_applied_on_every_way_in(any_house: House, way: Way, kind: str, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    picture = gradient(96, 64)
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {} if kind == "PNG" else {"quality": 95}
    turned = encoded(picture, kind, exif=exif, **options)
    with Image.open(io.BytesIO(turned)) as opened:
        baked = encoded(ImageOps.exif_transpose(opened.convert("RGB") if kind == "TIFF" else opened))
    with Image.open(io.BytesIO(baked)) as check:
        assert check.size == ((64, 96) if turn >= 5 else (96, 64))
    got, want = any_house.ask(part(way(turned)), "which way up?"), any_house.ask(baked, "which way up?")
    assert got.same(want) and got.usage == want.usage


@pytest.mark.parametrize("turn", range(1, 9))
def test_B01_orientation_is_applied_in_the_other_apis(house: House, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    turned = encoded(gradient(96, 64), "JPEG", quality=95, subsampling=0, exif=exif)
    with Image.open(io.BytesIO(turned)) as opened:
        baked = encoded(ImageOps.exif_transpose(opened))
    where, question = url(turned, "image/jpeg"), "which way up?"
    source = {"type": "base64", "media_type": "image/jpeg", "data": where.partition(",")[2]}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": question}]
    parts = [{"type": "input_image", "image_url": where}, {"type": "input_text", "text": question}]
    asked = {
        "/v1/messages": {"messages": [{"role": "user", "content": blocks}], "max_tokens": 8},
        "/v1/responses": {"input": [{"role": "user", "content": parts}], "max_output_tokens": 8, "store": False},
    }
    want = house.ask(baked, question, ignore_eos=False)
    for path, body in asked.items():
        got = house.http.post(path, json=body | {"temperature": 0}).json()
        assert got["usage"]["input_tokens"] == want.usage["prompt_tokens"]
        said = got["content"] if "content" in got else [part for item in got["output"] for part in item["content"]]
        assert "".join(part["text"] for part in said) == want.text


def test_B01_turned_pictures_are_different_pictures(house: House) -> None:
    answers = []
    for turn in (1, 3, 6, 8):
        exif = Image.Exif()
        exif[0x0112] = turn
        answers.append(house.ask(encoded(gradient(96, 64), "JPEG", exif=exif), "which way up?"))
    assert not any(a.same(b) for i, a in enumerate(answers) for b in answers[:i])


def test_B02_grey_equals_its_copy_in_colour(house: House) -> None:
    flat = Image.new("L", (224, 224), 128)
    jpeg = encoded(flat, "JPEG", quality=85)
    with Image.open(io.BytesIO(jpeg)) as grey:
        colour = encoded(grey.convert("RGB"))
    assert house.ask(jpeg, "grey?").same(house.ask(colour, "grey?"))
    twins = [encoded(flat), encoded(flat.convert("LA")), encoded(flat.convert("RGBA")), encoded(flat.convert("RGB"))]
    answers = [house.ask(twin, "grey?") for twin in twins]
    assert all(answer.same(answers[0]) for answer in answers)
    both = house.ask(jpeg, encoded(gradient(64, 64), "JPEG"), "compare")
    assert both.usage["prompt_tokens_details"]["images"] == 2


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA", "1", "I;16", "CMYK", "YCCK"])
def test_B04_modes_equal_their_flattened_copy(house: House, mode: str) -> None:
    y, x = np.mgrid[0:64, 0:64]
    if mode == "RGBA":
        hidden = np.zeros((64, 64, 4), np.uint8)
        hidden[..., 0] = 255  # red that alpha 0 hides
        data, flat = encoded(Image.fromarray(hidden)), Image.new("RGB", (64, 64), "white")
    elif mode == "P":
        palette = Image.new("P", (64, 64), 3)
        palette.putpalette([255, 0, 0] * 8)
        data, flat = encoded(palette, transparency=3), Image.new("RGB", (64, 64), "white")
    elif mode == "LA":
        data, flat = encoded(Image.new("LA", (64, 64), (0, 0))), Image.new("RGB", (64, 64), "white")
    elif mode == "1":
        bits = Image.fromarray(((x // 8 + y // 8) % 2 * 255).astype(np.uint8)).convert("1")
        data, flat = encoded(bits), bits.convert("RGB")
    elif mode == "I;16":
        data = encoded(Image.fromarray((x * 1024).astype(np.uint16)))
        flat = Image.fromarray((x * 4).astype(np.uint8)).convert("RGB")
    else:
        inks = gradient(64, 64).convert("CMYK")
        data = encoded(inks, "JPEG", quality=100, **({"keep_rgb": False} if mode == "YCCK" else {}))
        with Image.open(io.BytesIO(data)) as opened:
            flat = opened.convert("RGB")
    assert house.ask(data, "what?").same(house.ask(encoded(flat), "what?"))


@pytest.mark.parametrize("size", [(27, 257), (1, 1), (1, 200), (500, 19), (2, 1)])
def test_B06_small_and_thin_pictures_are_scaled_up(house: House, size: tuple[int, int]) -> None:
    answer = house.ask(png(1, *size), "small?")
    assert answer.usage["prompt_tokens_details"]["image_tokens"] >= 1


def test_B06_beyond_the_aspect_ratio_the_limit_is_named(house: House) -> None:
    message = refused(house.post(user(png(1, 1, 500), "thin?")), 400, "invalid_image")
    assert "200" in message and "1x500" in message
    house.ask(png(1), "and on it goes")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP", "GIF", "TIFF", "BMP", "AVIF"])
def test_B08_cut_off_files_are_refused_with_a_reason(house: House, kind: str) -> None:
    whole = encoded(gradient(200, 160), kind)
    for stream in (False, True):
        for kept in (len(whole) - 128, len(whole) // 2, 40):
            response = house.post(user(whole[:kept], "cut?"), stream=stream)
            if response.status_code != 200:  # some formats carry nothing that matters at their end
                message = refused(response, 400, "invalid_image", "messages[0].content[0].image_url.url")
                assert "cannot be read" in message
        refused(house.post(user(whole[: len(whole) // 2], "cut?"), stream=stream), 400, "invalid_image")


def test_B08_a_broken_picture_among_good_ones(house: House) -> None:
    cut = encoded(gradient(100, 100))[:-200]
    response = house.post(user(png(1), png(2), cut, png(3), "cut?"))
    refused(response, 400, "invalid_image", "messages[0].content[2].image_url.url")


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises a huge picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [12_000, 13_000, 50_000, 100_000])
def test_B09_bombs_are_refused_from_their_header(house: House, side: int) -> None:
    before = psutil.Process().memory_info().rss
    for _ in range(8):
        message = refused(house.post(user(bomb(side, side), "boom")), 400, "invalid_image")
        assert f"{side}x{side}" in message and "67,108,864" in message
    assert psutil.Process().memory_info().rss - before < 64 * 2**20


def test_B09_a_real_bomb_is_not_decoded(house: House) -> None:
    data = encoded(Image.new("L", (12_000, 12_000)))
    assert len(data) < 200_000
    before = psutil.Process().memory_info().rss
    refused(house.post(user(data, "boom")), 400, "invalid_image")
    assert psutil.Process().memory_info().rss - before < 64 * 2**20


def test_B09_pixels_of_a_request_are_limited_together(house: House) -> None:
    message = refused(house.post(user(*[bomb(8000, 8000)] * 5, "boom")), 400, "invalid_image")
    assert "together" in message


def test_B11_spellings_of_base64_that_mean_the_same(house: House) -> None:
    data = png(3)
    text = base64.b64encode(data).decode()
    assert "+" in text and "/" in text
    want = house.ask(data, "same?")
    lines = "\r\n".join(text[i : i + 76] for i in range(0, len(text), 76))
    same = [text.replace("+", "-").replace("/", "_"), lines, text.rstrip("="), urllib.parse.quote(text, safe="")]
    for spelling in same:
        assert house.ask(part("data:image/png;base64," + spelling), "same?").same(want)
    bad = [text.replace("+", " "), text[:100] + "#" + text[100:], text[:-6], text[:50] + "é" + text[50:]]
    for spelling in bad:
        refused(house.post(user(part("data:image/png;base64," + spelling))), 400)
    refused(house.post(user(part(text))), 400)


HTML = b"<html><body>not a picture</body></html>"
SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
HEIC = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + b"\x00" * 64


@pytest.mark.parametrize("data", [HTML, SVG, HEIC, b"", b"\x00" * 100, b"%PDF-1.7"], ids=str)
def test_B12_unknown_formats_are_told_what_is_accepted(any_house: House, way: Way, data: bytes) -> None:
    response = any_house.post(user(part(way(data)), "what?"))
    if response.json()["error"]["message"].endswith("status 404"):  # the test's web server has nothing for no bytes
        return
    message = refused(response, 400, "invalid_image")
    assert "PNG" in message and "JPEG" in message and "AVIF" in message


@pytest.mark.parametrize("mime", ["image/jpeg", "application/octet-stream", "", "text/html", "image/tiff;x=y"])
def test_B14_bytes_decide_and_not_what_they_are_called(house: House, mime: str) -> None:
    data = png(4)
    assert house.ask(part(url(data, mime)), "what?").same(house.ask(data, "what?"))


def test_B15_a_fetch_that_fails_is_an_error_and_costs_nothing(house: House, web: PictureHost) -> None:
    def broken(page: Any) -> None:
        page.send_response(500)
        page.send_header("Content-Length", "0")
        page.end_headers()

    def short(page: Any) -> None:
        page.send_response(200)
        page.send_header("Content-Length", "1000")
        page.end_headers()
        page.wfile.write(b"x")
        page.close_connection = True

    web.pages |= {"/500": broken, "/short": short, "/html": HTML}
    before = house.service.stats().totals
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed_port = taken.getsockname()[1]
    urls = [web.url(path) for path in ("/404", "/500", "/short", "/html")]
    urls += [f"http://127.0.0.1:{closed_port}/x", "http://no-such-host.invalid/x", "http://", "http://[::1/x"]
    for where in urls:
        for stream in (False, True):
            refused(house.post(user(part(where), "what?"), stream=stream), 400)
    house.settle()
    assert house.service.stats().totals == before


def test_B17_pictures_below_the_limit_pass_and_larger_ones_are_413(house: House) -> None:
    jpeg = encoded(gradient(64, 64), "JPEG")
    want = house.ask(jpeg, "how large?")
    for size in (4, 15):
        padded = jpeg + bytes(size * 2**20 - len(jpeg))  # what follows the end mark is no part of the picture
        assert house.ask(padded, "how large?").same(want)
    refused(house.post(user(jpeg + bytes(21 * 2**20), "how large?")), 413, "request_too_large")
    refused(house.post(user(*[jpeg + bytes(17 * 2**20)] * 4, "how large?")), 413, "request_too_large")


NAMED = """
hopper_orientation_2.jpg hopper_orientation_5.webp hopper_orientation_8.jpg orientation_rectangle.jpg transparent.png
p_trns_single.png 1_trns.png tRNS_null_1x1.png truncated_jpeg.jpg truncated_image.png truncated_end_chunk.png
broken_data_stream.png broken.png apng/chunk_no_fctl.png decompression_bomb.gif decompression_bomb.ico
png_decompression_dos.png bmp/b/reallybig.bmp bmp/b/badwidth.bmp bmp/b/shortfile.bmp avif/hopper.heif fujifilm.mpo
l2rgb_read.bmp ultrahdr.jpg zero_width.gif unknown_compression_method.png seek_too_large.tif bmp/q/pal8oversizepal.bmp
apng/syntax_num_frames_zero.png tiff_tiled_jpeg_oob_read.tif hopper_webp.tif hopper_unknown_pixel_mode.tif
"""
REFUSED = """
truncated_jpeg.jpg truncated_image.png truncated_end_chunk.png broken_data_stream.png broken.png apng/chunk_no_fctl.png
decompression_bomb.gif decompression_bomb.ico png_decompression_dos.png bmp/b/reallybig.bmp bmp/b/badwidth.bmp
bmp/b/shortfile.bmp avif/hopper.heif l2rgb_read.bmp zero_width.gif unknown_compression_method.png
"""


@pytest.mark.skipif(not SOURCE.is_file(), reason=f"{SOURCE.name} is missing: run tools/pillow_images.py")
def test_B01_B04_B06_B08_B09_B12_B17_the_named_files_of_pillow(house: House) -> None:
    """All of its files go through the decoder in tests/prompt; the ones that the cases name go through the server."""
    found = {name: data for name, data in pictures() if name in NAMED.split()}
    assert set(REFUSED.split()) < set(found) and len(found) > 25
    for name, data in found.items():
        response = house.post(user(data, name), max_tokens=1)
        if name in REFUSED.split():
            refused(response, 400, "invalid_image")
        elif response.status_code != 200:
            refused(response, 400)
