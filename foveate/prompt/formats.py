"""What a picture's bytes are: format, size, mode and orientation, read from the header without decoding a pixel.

Owns the list of accepted formats, how each is told by its first bytes, and the opening of its decoder. Promises that
whatever the bytes hold, the only exception is `InvalidImage` with a plain sentence, and that Pillow's own warnings
reach nobody. Refuses to know limits, grids and where the bytes came from.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from foveate.core.errors import InvalidImage

# What a decoder may raise on hostile bytes. Warnings belong to it for processes that turn them into errors.
DECODER_FAULTS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    AssertionError,
    EOFError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Warning,
)
_PNG_START = b"\x89PNG\r\n\x1a\n"
_AVIF_BRANDS = (b"avif", b"avis")
# The decoder's class is named rather than searched for: only these parsers ever see a client's bytes.
_DECODERS: tuple[tuple[str, type[ImageFile.ImageFile]], ...] = (
    ("PNG", PngImagePlugin.PngImageFile),
    ("JPEG", JpegImagePlugin.JpegImageFile),  # of an MPO file it reads the first picture
    ("WebP", WebPImagePlugin.WebPImageFile),
    ("GIF", GifImagePlugin.GifImageFile),
    ("BMP", BmpImagePlugin.BmpImageFile),
    ("TIFF", TiffImagePlugin.TiffImageFile),
    ("AVIF", AvifImagePlugin.AvifImageFile),
)
ACCEPTED = tuple(name for name, _ in _DECODERS if name != "AVIF" or AvifImagePlugin.SUPPORTED)


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says. `size` is (width, height) as stored; `orientation` is what is left to apply, 1 to 8."""

    format: str
    size: tuple[int, int]
    mode: str
    orientation: int


def sniff(data: bytes) -> str | None:
    """The accepted format that the first bytes announce, or None. A declared MIME type has no say."""
    head = data[:12]
    if head.startswith(_PNG_START):
        return "PNG"
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "TIFF"
    if head[4:8] == b"ftyp":
        return "AVIF" if _is_avif(data) else None
    return "BMP" if head[:2] == b"BM" else None


def _is_avif(data: bytes) -> bool:
    """Whether a file-type box names an AVIF brand, as its own or among the compatible ones (ISO 14496-12, 4.3)."""
    size = min(int.from_bytes(data[:4], "big"), 1024)
    brands = [data[8:12], *(data[at : at + 4] for at in range(16, size, 4))]
    return "AVIF" in ACCEPTED and any(brand in _AVIF_BRANDS for brand in brands)


@contextmanager
def refusals(param: str) -> Iterator[None]:
    """Turn whatever a decoder raises into an InvalidImage for the request field `param`."""
    try:
        yield
    except DECODER_FAULTS as fault:
        raise InvalidImage(f"the picture cannot be read: {_reason(fault)}", param) from None


def _reason(fault: BaseException) -> str:
    """One plain clause for a decoder's fault; its own words only where they are words."""
    if isinstance(fault, MemoryError):
        return "it needs too much memory"
    if isinstance(fault, Image.DecompressionBombError):
        return "it has too many pixels"
    text = str(fault)
    plain = isinstance(fault, (OSError, SyntaxError, ValueError)) and re.fullmatch(r"[A-Za-z][\w ,.()/-]{3,80}", text)
    return text if plain and not re.search(r"0x|_|index|driver|Plugin", text) else "its data is damaged"


def read_header(data: bytes, param: str) -> Header:
    """Header facts of a picture; InvalidImage when the format is not accepted or the header cannot be read."""
    image = open_picture(data, param)
    return Header(sniff(data) or "", image.size, image.mode, _orientation(image, data))


def open_picture(data: bytes, param: str) -> ImageFile.ImageFile:
    """A Pillow image that has read its header and no pixel; InvalidImage as in `read_header`."""
    kind = sniff(data)
    if kind is None:
        what = "is empty" if not data else "has an unknown format"
        raise InvalidImage(f"the picture {what}; accepted formats: {', '.join(ACCEPTED)}", param)
    # Idempotent: the filter list holds it once, in front, however often it is asked for. A scoped filter would not
    # do, because entering and leaving scopes is not safe across the threads that decode.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    with refusals(param):
        return dict(_DECODERS)[kind](io.BytesIO(data))


def _orientation(image: ImageFile.ImageFile, data: bytes) -> int:
    """EXIF orientation still to be applied after decoding; 1 where there is none or it makes no sense."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return 1  # Pillow turns TIFF pictures while decoding, and reports the turned size
    value = _exif_orientation(image)
    if value is None and isinstance(image, PngImagePlugin.PngImageFile):
        value = _late_png_orientation(data)
    return value or 1


def _exif_orientation(image: ImageFile.ImageFile) -> int | None:
    try:
        # The base class's method: PNG's own would decode the picture to look behind its pixels.
        value = Image.Image.getexif(image).get(ExifTags.Base.Orientation)
    except DECODER_FAULTS:
        return None  # damaged metadata leaves the picture itself usable
    return value if isinstance(value, int) and 1 <= value <= 8 else None


def _late_png_orientation(data: bytes) -> int | None:
    """Orientation from metadata chunks behind a PNG's pixels, where the format allows them too."""
    chunks = list(_png_chunks(data))
    kinds = [kind for kind, _ in chunks]
    if b"IDAT" not in kinds:
        return None
    late = [chunk for kind, chunk in chunks[kinds.index(b"IDAT") :] if kind in (b"eXIf", b"iTXt", b"zTXt", b"tEXt")]
    if not late:
        return None
    # The same file with its late metadata in front and its pixels left out: opening reads it, nothing is decoded.
    outline = b"".join((_PNG_START, chunks[0][1], *late, struct.pack(">I4sI", 0, b"IDAT", zlib.crc32(b"IDAT"))))
    try:
        return _exif_orientation(PngImagePlugin.PngImageFile(io.BytesIO(outline)))
    except DECODER_FAULTS:
        return None


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Type and bytes of each complete chunk of a PNG file; pixel data comes without its bytes."""
    at = len(_PNG_START)
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            return
        yield kind, b"" if kind in (b"IDAT", b"fdAT") else data[at:end]
        at = end
