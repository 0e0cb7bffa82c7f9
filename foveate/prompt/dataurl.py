"""Bytes out of a `data:` URL: tolerant of how clients wrap base64, strict about what it means.

Accepts white space around lines, the URL-safe alphabet, percent-encoding and missing padding, because each of them
still means exactly one string of bytes. Refuses everything else: a lenient decoder that skips what it does not know
returns other bytes without an error. The declared MIME type is ignored; the bytes decide what they are.
"""

from __future__ import annotations

import base64
import re

import numpy as np

from foveate.core.config import PictureLimits
from foveate.core.errors import InvalidRequest, TooLarge

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_INNER_SPACE = re.compile(rb"[^ \t\r\n\f] +[^ \t\r\n\f]")
_HEAD_LEN = 1024  # characters; a media type is a few dozen


def data_url(url: str, limits: PictureLimits, param: str) -> bytes:
    """The bytes of a `data:` URL (RFC 2397), base64 or percent-encoded.

    Raises TooLarge beyond `limits.image_bytes`, before decoding, and InvalidRequest for anything that does not mean
    exactly one string of bytes. `param` is the request field that errors name.
    """
    head, comma, body = url[:_HEAD_LEN].partition(",")
    if head[:5].lower() != "data:":
        raise InvalidRequest("the picture must be a URL that starts with data:", param)
    if not comma:
        raise InvalidRequest("the data: URL has no comma between its type and its data", param)
    body = url[len(head) + 1 :]
    try:
        raw = body.encode("ascii")
    except UnicodeEncodeError:
        raise InvalidRequest("the data: URL holds characters outside ASCII", param) from None
    coded = head.lower().rstrip().endswith(";base64")
    if len(raw) > 6 * limits.image_bytes + 1024:  # beyond what percent-encoding and line breaks can add
        raise too_large(limits, param)
    if b"%" in raw:
        raw = _percent_decoded(raw)
    if coded:
        return _base64_bytes(raw, limits, param)
    if len(raw) > limits.image_bytes:
        raise too_large(limits, param)
    return raw


def _percent_decoded(raw: bytes) -> bytes:
    """Each `%` with two hexadecimal digits as the byte that they spell; array-wise, since a body may hold millions."""
    values = np.full(256, 16, np.uint8)
    for value, digits in enumerate(zip(b"0123456789abcdef", b"0123456789ABCDEF", strict=True)):
        values[list(digits)] = value
    codes = np.frombuffer(raw, np.uint8)
    at = np.flatnonzero(codes[:-2] == ord("%"))
    high, low = values[codes[at + 1]], values[codes[at + 2]]
    valid = (high < 16) & (low < 16)
    at, out, kept = at[valid], codes.copy(), np.ones(len(codes), bool)
    out[at] = high[valid] * 16 + low[valid]
    kept[at + 1] = kept[at + 2] = False
    return out[kept].tobytes()


def _base64_bytes(raw: bytes, limits: PictureLimits, param: str) -> bytes:
    if b" " in raw and _INNER_SPACE.search(raw):
        # Dropping it could lose a digit: form decoding turns every plus sign into a space.
        raise InvalidRequest("the base64 data has a space inside a line (a plus sign lost in URL decoding?)", param)
    text = raw.translate(_FROM_URL_SAFE, b" \t\r\n\f")
    digits = text.rstrip(b"=")
    padding_len = len(text) - len(digits)
    if len(digits) * 3 // 4 > limits.image_bytes:
        raise too_large(limits, param)
    if digits.translate(None, _ALPHABET):
        raise InvalidRequest("the base64 data holds characters that are not base64", param)
    missing = -len(digits) % 4
    if missing == 3 or padding_len > missing:
        raise InvalidRequest("the base64 data has an impossible length or padding", param)
    data = base64.b64decode(digits + b"=" * missing)
    if missing and base64.b64encode(data[-(3 - missing) :])[:-missing] != digits[missing - 4 :]:
        raise InvalidRequest("the base64 data ends inside a byte (cut off or altered?)", param)
    return data


def too_large(limits: PictureLimits, param: str) -> TooLarge:
    """The refusal of a picture that has more bytes than `limits.image_bytes`."""
    return TooLarge(f"the picture has more than the {limits.image_bytes:,} bytes that are allowed", param)
