"""Data URLs: what clients send decodes to the same bytes or not at all."""

from __future__ import annotations

import base64
import contextlib
import string
import textwrap
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.config import PictureLimits
from foveate.core.errors import InvalidRequest, TooLarge
from foveate.prompt.fetch import data_url

LIMITS = PictureLimits()
# Bytes whose base64 has plus signs, slashes and padding.
DATA = bytes(range(256)) * 3 + b"\xfb\xef\xbe\xff\xfe"
TEXT = base64.b64encode(DATA).decode()
assert "+" in TEXT and "/" in TEXT and TEXT.endswith("=")


def read(body: str, head: str = "data:image/png;base64,") -> bytes:
    return data_url(head + body, LIMITS, "messages.0.content.1.image_url.url")


@pytest.mark.parametrize(
    "body",
    [
        TEXT,
        TEXT.replace("+", "-").replace("/", "_"),
        TEXT.rstrip("="),
        TEXT.replace("+", "%2B"),
        quote(TEXT, safe=""),
        "\n".join(textwrap.wrap(TEXT, 76)),
        "\r\n\t".join(textwrap.wrap(TEXT, 64)),
        "\n    ".join(textwrap.wrap(TEXT, 60)),
        f"  {TEXT}\n",
    ],
    ids=["plain", "url-safe", "unpadded", "plus-escaped", "all-escaped", "lines-76", "crlf-tab", "indented", "around"],
)
def test_B11_tolerated_spellings_mean_the_same_bytes(body: str) -> None:
    assert read(body) == DATA


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (TEXT.replace("+", " "), "space inside a line"),
        (TEXT[:40] + "#" + TEXT[40:], "not base64"),
        (TEXT[:40] + "=" + TEXT[40:], "not base64"),
        (TEXT[:40] + "é" + TEXT[40:], "outside ASCII"),
        (TEXT[:40] + "\0" + TEXT[40:], "not base64"),
        (TEXT[:40] + "%00" + TEXT[40:], "not base64"),
        (TEXT[:40] + "%zz" + TEXT[40:], "not base64"),
        (TEXT + "=", "length or padding"),
        ("QUJDR", "length or padding"),
        ("QUI=QUI=", "not base64"),
        ("QUJ=", "inside a byte"),
        ("QR==", "inside a byte"),
        ("QUJDRA====", "length or padding"),
    ],
)
def test_B11_everything_else_is_refused(body: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        read(body)
    assert caught.value.param == "messages.0.content.1.image_url.url" and len(caught.value.message) < 200


@pytest.mark.parametrize("url", [TEXT, "", "data:", "data:image/png;base64", "http://x/a.png", "dat", "/etc/passwd"])
def test_B11_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        data_url(url, LIMITS, "p")
    assert TEXT[:20] not in caught.value.message


@pytest.mark.parametrize("head", ["data:;base64,", "DATA:image/JPEG;Base64,", "data:x/y;charset=utf-8;base64,"])
def test_B14_the_declared_type_has_no_say(head: str) -> None:
    assert read(TEXT, head) == DATA


@given(st.binary(max_size=100))
def test_any_bytes_come_back(data: bytes) -> None:
    assert read(base64.b64encode(data).decode()) == data
    assert read(quote(data, safe=""), "data:,") == data


@given(st.text("%2Bb0gG+", max_size=20))
def test_percent_signs_are_read_as_the_standard_library_reads_them(text: str) -> None:
    assert read(text, "data:,") == unquote_to_bytes(text)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_B11_one_wrong_character_never_gives_other_bytes(data: bytes, draw: st.DataObject) -> None:
    """Whatever is put in between: the same bytes, or refused. Digits of base64 itself do mean other bytes."""
    text = base64.b64encode(data).decode()
    at = draw.draw(st.integers(0, len(text)))
    digits = "+/-_%=" + string.ascii_letters + string.digits
    letter = draw.draw(st.characters(codec="utf-8", exclude_characters=digits))
    with contextlib.suppress(InvalidRequest):
        assert read(text[:at] + letter + text[at:]) == data


@pytest.mark.parametrize("head", ["data:;base64,", "data:,"])
def test_too_large_is_known_before_decoding(head: str) -> None:
    limits = PictureLimits(image_bytes=99)
    with pytest.raises(TooLarge, match="99 bytes"):
        data_url(head + "A" * 136, limits, "p")
    assert len(data_url("data:;base64," + "A" * 132, limits, "p")) == 99
