"""Measuring, keys, limits and decoding of pictures of every mode and format."""

from __future__ import annotations

import dataclasses
import io
import math
import pickle
import struct
import tracemalloc
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from foveate.core.config import PictureLimits
from foveate.core.errors import InvalidImage, TooLarge
from foveate.core.values import ImageRules
from foveate.prompt.formats import ACCEPTED, read_header
from foveate.prompt.pixels import check_total, image_grid, measure
from tests.prompt.vocabulary import LIMITS, RULES, encoded

RANDOM = np.random.RandomState(0)
PHOTO = Image.fromarray(RANDOM.randint(0, 256, (64, 96, 3), np.uint8))  # exactly 2x3 blocks: no resize
RAMPS = np.meshgrid(np.linspace(0, 255, 96), np.linspace(0, 255, 64))
SMOOTH = Image.fromarray(np.stack([*RAMPS, np.full((64, 96), 40.0)], 2).astype(np.uint8))
FORMS = ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"]


def pixels(data: bytes, rules: ImageRules = RULES) -> np.ndarray:
    return measure(data, rules, LIMITS, "p").pixels()


def near(a: np.ndarray, b: np.ndarray | Image.Image, most: float) -> bool:
    return a.shape == np.asarray(b).shape and np.abs(a.astype(int) - np.asarray(b).astype(int)).mean() <= most


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_with_header(width: int, height: int, depth: int = 8, colour: int = 0, *more: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    rest = more or (png_chunk(b"IDAT", zlib.compress(b"")), png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + b"".join(rest)


# --- the resize rule -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "rows"), [((224, 224), 64), ((640, 480), 300), ((1024, 768), 768), ((1920, 1080), 2040)]
)
def test_rows_of_known_sizes(size: tuple[int, int], rows: int) -> None:
    released = dataclasses.replace(RULES, min_pixels=65536, max_pixels=16777216)
    assert math.prod(image_grid(*size, released)) // 4 == rows


@given(st.integers(1, 6000), st.integers(1, 6000), st.sampled_from([(65536, 16777216), (1024, 65536), (3136, 100352)]))
def test_the_grid_stays_in_the_models_range(width: int, height: int, bounds: tuple[int, int]) -> None:
    rules = dataclasses.replace(RULES, min_pixels=bounds[0], max_pixels=bounds[1])
    down, across = image_grid(width, height, rules)
    assert down % 2 == across % 2 == 0 and min(down, across) > 0
    if max(width, height) <= 200 * min(width, height):
        assert bounds[0] <= down * across * 256
        assert down * across * 256 <= bounds[1] or min(down, across) == 2


def test_equals_the_reference_processor_byte_for_byte() -> None:
    from transformers import Qwen2VLImageProcessorPil

    sizes = [(70, 100), (37, 150), (64, 96), (16, 800), (48, 80), (5, 5), (300, 500), (900, 20), (33, 31)]
    for smallest, largest in ((1024, 65536), (65536, 16777216)):
        rules = dataclasses.replace(RULES, min_pixels=smallest, max_pixels=largest)
        bounds = {"shortest_edge": smallest, "longest_edge": largest}
        raw = Qwen2VLImageProcessorPil(patch_size=16, size=bounds, do_rescale=False, do_normalize=False)
        for height, width in sizes:
            image = Image.fromarray(RANDOM.randint(0, 256, (height, width, 3), np.uint8))
            picture = measure(encoded(image), rules, LIMITS, "p")
            want = raw(images=[image], return_tensors="np")
            assert [1, *picture.grid] == want["image_grid_thw"][0].tolist()
            assert np.array_equal(patches(picture.pixels()), want["pixel_values"])


def patches(values: np.ndarray) -> np.ndarray:
    """uint8 [height, width, 3] as the processor lays patches out: [patches, 3 * 2 * 16 * 16]."""
    down, across = values.shape[0] // 32, values.shape[1] // 32
    x = values.transpose(2, 0, 1).reshape(3, down, 2, 16, across, 2, 16).transpose(1, 4, 2, 5, 0, 3, 6)
    return np.repeat(x[:, :, :, :, :, None], 2, axis=5).reshape(down * across * 4, -1)


@given(st.integers(1, 5000), st.integers(1, 5000))
@settings(max_examples=300, deadline=None)
def test_grids_of_the_reference_processor(height: int, width: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    if max(height, width) <= 200 * min(height, width):
        want = smart_resize(height, width, factor=32, min_pixels=1024, max_pixels=65536)
        assert image_grid(width, height, RULES) == (want[0] // 16, want[1] // 16)


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(27, 257), (1, 1), (500, 19), (2, 1), (1, 200)])
def test_B06_tiny_pictures_are_scaled_up(width: int, height: int) -> None:
    image = Image.new("RGB", (width, height), (200, 100, 50))
    picture = measure(encoded(image), RULES, LIMITS, "p")
    got = picture.pixels()
    assert got.shape == (picture.grid[0] * 16, picture.grid[1] * 16, 3) and picture.rows >= 1
    assert (got == (200, 100, 50)).all()


def test_B06_extreme_sides_are_refused_with_the_limit() -> None:
    with pytest.raises(InvalidImage, match="factor of 200 at most") as caught:
        measure(encoded(Image.new("L", (1, 500))), RULES, LIMITS, "messages.0")
    assert caught.value.param == "messages.0" and caught.value.code == "invalid_image"
    with pytest.raises(InvalidImage, match="at most 65,535 pixels"):
        measure(png_with_header(66000, 1000), RULES, LIMITS, "p")


@pytest.mark.parametrize(
    "data",
    [
        png_with_header(50000, 50000),
        png_with_header(13000, 13000),
        png_with_header(2**31 - 1, 2**31 - 1),
        b"GIF89a"
        + struct.pack("<HH", 65535, 65535)
        + b"\0\0\0,\0\0\0\0"
        + struct.pack("<HH", 65535, 65535)
        + b"\0\2\0;",
        b"BM"
        + struct.pack("<IHHI", 0, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 9000, 9000, 1, 24, 0, 0, 0, 0, 0, 0),
        b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x3e\0" * 2 + b"VP8 \0\0\0\0",
    ],
    ids=["png-50000", "png-13000", "png-2**31", "gif", "bmp", "webp"],
)
def test_B09_bombs_are_refused_from_the_header(data: bytes) -> None:
    tracemalloc.start()
    try:
        with warnings.catch_warnings(), pytest.raises(InvalidImage):
            warnings.simplefilter("error")
            measure(data, RULES, LIMITS, "p")
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_B09_a_real_bomb_is_not_decoded() -> None:
    rows = zlib.compress(b"\0" * (12000 * 12001))
    data = png_with_header(12000, 12000, 8, 0, png_chunk(b"IDAT", rows), png_chunk(b"IEND", b""))
    assert len(data) < 150_000
    with pytest.raises(InvalidImage, match="12000x12000; at most 67,108,864 pixels"):
        measure(data, RULES, LIMITS, "p")


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_B09_compressed_texts_do_not_unfold(kind: bytes) -> None:
    bomb = zlib.compress(b"x" * (80 * 2**20))
    head = b"note\0\1\0\0\0" if kind == b"iTXt" else b"note\0\0"
    more = (png_chunk(kind, head + bomb), png_chunk(b"IDAT", zlib.compress(b"\0\0")), png_chunk(b"IEND", b""))
    data = png_with_header(1, 1, 8, 0, *more)
    tracemalloc.start()
    try:
        pixels(data)
    except InvalidImage:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 * 2**20


def test_limits_are_those_given() -> None:
    data = encoded(PHOTO)
    for limits, reason in (
        (PictureLimits(image_pixels=64 * 96 - 1), "at most 6,143 pixels"),
        (PictureLimits(max_side=95), "at most 95 pixels"),
        (PictureLimits(aspect_ratio=1), "factor of 1 at most"),
    ):
        with pytest.raises(InvalidImage, match=reason):
            measure(data, RULES, limits, "p")
    with pytest.raises(TooLarge, match="bytes"):
        measure(data, RULES, PictureLimits(image_bytes=len(data) - 1), "p")
    assert measure(data, RULES, PictureLimits(image_bytes=len(data), image_pixels=64 * 96, max_side=96), "p").rows == 6


def test_totals_of_a_request() -> None:
    picture = measure(encoded(PHOTO), RULES, LIMITS, "p")
    exact = PictureLimits(total_bytes=3 * len(picture.data), total_pixels=3 * 64 * 96)
    check_total([picture] * 3, exact)
    with pytest.raises(InvalidImage, match=r"18,432 pixels together; at most 18,431"):
        check_total([picture] * 3, dataclasses.replace(exact, total_pixels=18431))
    with pytest.raises(TooLarge, match="per request"):
        check_total([picture] * 3, dataclasses.replace(exact, total_bytes=exact.total_bytes - 1))


# --- formats and orientation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_B12_every_accepted_format(form: str) -> None:
    data = encoded(SMOOTH, form)
    picture = measure(data, RULES, LIMITS, "p")
    assert picture.header.format.upper() == form and picture.size == (96, 64)
    assert near(picture.pixels(), Image.open(io.BytesIO(data)).convert("RGB"), 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        b"<!DOCTYPE html><html><body>not found</body></html>",
        b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100),
        b"\0\0\0\x14ftypmp42\0\0\0\0isom" + bytes(100),
        b"\0\0\1\0\1\0" + bytes(50),
        b"%PDF-1.7",
        b"8BPS\0\1" + bytes(40),
        b"P6 1 1 255 abc",
        b"\xff\xd8",
        bytes(1000),
    ],
    ids=["empty", "svg", "html", "heic", "mp4", "ico", "pdf", "psd", "ppm", "short", "zeros"],
)
def test_B12_unknown_formats_list_the_accepted_ones(data: bytes) -> None:
    with pytest.raises(InvalidImage) as caught:
        measure(data, RULES, LIMITS, "p")
    assert all(name in caught.value.message for name in ACCEPTED)
    assert "<" not in caught.value.message and "BytesIO" not in caught.value.message


@pytest.mark.parametrize("form", FORMS)
def test_B08_every_cut_of_a_file_is_refused_or_read(form: str) -> None:
    data = encoded(SMOOTH, form)
    whole, refused = pixels(data), 0
    for keep in sorted({*range(0, len(data), max(1, len(data) // 60)), *range(len(data) - 12, len(data))}):
        try:
            assert pixels(data[:keep]).shape == whole.shape
        except InvalidImage as error:
            refused += 1
            assert not {"<", ">", "0x", "\n", "BytesIO"} & set(error.message.split()) and len(error.message) < 200
    assert refused > 20


@given(form=st.sampled_from(FORMS), data=st.data())
@settings(max_examples=300, deadline=None)
def test_B08_altered_bytes_raise_nothing_else(form: str, data: st.DataObject) -> None:
    raw = bytearray(encoded(SMOOTH.resize((32, 32)), form))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        picture = measure(bytes(raw), RULES, PictureLimits(image_pixels=2**20), "p")
        assert picture.pixels().shape == (picture.grid[0] * 16, picture.grid[1] * 16, 3)
    except InvalidImage as error:
        assert error.param == "p" and error.message


def test_B08_faults_are_named_in_plain_words() -> None:
    data = encoded(SMOOTH, "JPEG")
    with pytest.raises(InvalidImage, match=r"cannot be read: image file is truncated"):
        pixels(data[:-128])


def turned_source(orientation: int) -> Image.Image:
    """Where the turn shows: eight distinct corners and edges."""
    return ImageOps.exif_transpose(_tagged(SMOOTH, orientation))


def _tagged(image: Image.Image, orientation: int) -> Image.Image:
    copy = image.copy()
    copy.getexif()[0x0112] = orientation
    return copy


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "MPO"])
def test_B01_orientation_is_applied(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if form == "WEBP" else {"quality": 95} if form in ("JPEG", "MPO", "AVIF") else {}
    if form == "MPO":
        options |= {"save_all": True, "append_images": [SMOOTH.resize((32, 32))]}
    data = encoded(SMOOTH, form, exif=exif, **options)
    picture = measure(data, RULES, LIMITS, "p")
    want = turned_source(orientation)
    assert picture.size == want.size and picture.size == ((96, 64) if orientation < 5 else (64, 96))
    assert picture.grid == image_grid(*want.size, RULES)
    lossy = form in ("JPEG", "MPO", "AVIF")
    assert near(picture.pixels(), want, 6 if lossy else 0)
    reopened = Image.open(io.BytesIO(data))
    reopened.load()
    assert np.array_equal(picture.pixels(), ImageOps.exif_transpose(reopened).convert("RGB"))


def test_B01_orientation_behind_a_pngs_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(SMOOTH, "PNG")
    end = data.index(b"IEND") - 4
    late = data[:end] + png_chunk(b"eXIf", exif.tobytes()[6:]) + data[end:]
    picture = measure(late, RULES, LIMITS, "p")
    assert picture.size == (64, 96) and near(picture.pixels(), turned_source(6), 0)
    xmp = b'XML:com.adobe.xmp\0\0\0\0\0<rdf tiff:Orientation="3"/>'
    assert measure(data[:end] + png_chunk(b"iTXt", xmp) + data[end:], RULES, LIMITS, "p").header.orientation == 3


@pytest.mark.parametrize("value", [0, 9, 77])
def test_B01_senseless_orientations_are_none(value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    assert measure(encoded(SMOOTH, "PNG", exif=exif), RULES, LIMITS, "p").header.orientation == 1


def test_damaged_exif_leaves_the_picture() -> None:
    data = encoded(SMOOTH, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(9))
    assert near(pixels(data), SMOOTH, 4)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_counts(form: str) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue")]
    data = encoded(
        frames[0], form, save_all=True, append_images=frames[1:], **({"lossless": True} if form == "WEBP" else {})
    )
    assert (pixels(data) == (255, 0, 0)).all()


def test_B14_bytes_decide_and_twins_agree() -> None:
    twins = [
        encoded(SMOOTH, form, **o) for form, o in (("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True}))
    ]
    assert all(near(pixels(data), SMOOTH, 0) for data in twins)
    assert len({measure(data, RULES, LIMITS, "p").key for data in twins}) == 4


# --- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF"])
def test_B02_grey_equals_its_rgb_copy(form: str) -> None:
    grey = Image.new("L", (224, 224), 128)
    options = {"quality": 85} if form == "JPEG" else {"lossless": True} if form == "WEBP" else {}
    got = pixels(encoded(grey, form, **options))
    assert got.shape[2] == 3 and (got == 128).all()


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "RGB"])
def test_B02_modes_agree(mode: str) -> None:
    assert (pixels(encoded(Image.new("L", (224, 224), 128).convert(mode))) == 128).all()


@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF", "AVIF", "GIF"])
def test_B04_alpha_is_composited_on_white(form: str) -> None:
    hidden = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
    assert (pixels(encoded(hidden, form)) == 255).all()


def test_B04_partial_alpha_equals_the_flattened_copy() -> None:
    image = Image.fromarray(RANDOM.randint(0, 256, (64, 96, 4), np.uint8))
    flat = Image.new("RGBA", image.size, "white")
    flat.alpha_composite(image)
    assert np.abs(pixels(encoded(image)).astype(int) - np.asarray(flat.convert("RGB"))).max() <= 1


def transparent(mode: str) -> tuple[Image.Image, object]:
    """A picture in which the left half has the transparent value."""
    image = Image.new("L", (64, 64), 200)
    image.paste(10, (0, 0, 32, 64))
    if mode == "1":
        return image.point(lambda v: 255 * (v > 100)).convert("1"), 0
    if mode == "RGB":
        return image.convert("RGB"), (10, 10, 10)
    if mode == "I;16":
        return Image.fromarray(np.asarray(image).astype(np.uint16) * 257), 2570
    if mode == "P":
        coloured = image.convert("P")
        return coloured, coloured.getpixel((0, 0))
    return image, 10


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "I;16"])
def test_B04_a_transparent_value_shows_white(mode: str) -> None:
    image, value = transparent(mode)
    got = pixels(encoded(image, "PNG", transparency=value))
    assert (got[:, :32] == 255).all()
    assert (got[:, 32:] == (255 if mode == "1" else 200)).all()


def test_B04_palette_with_many_transparencies() -> None:
    image = Image.new("P", (64, 64), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.paste(1, (32, 0, 64, 64))
    got = pixels(encoded(image, "PNG", transparency=bytes([0, 128])))
    assert (got[:, :32] == 255).all() and np.abs(got[:, 32:].astype(int) - (127, 127, 255)).max() <= 1


def test_B04_grey_with_alpha() -> None:
    image = Image.new("LA", (64, 64), (0, 0))
    image.paste((100, 255), (32, 0, 64, 64))
    got = pixels(encoded(image))
    assert (got[:, :32] == 255).all() and (got[:, 32:] == 100).all()


@pytest.mark.parametrize("form", ["PNG", "TIFF", "GIF", "BMP"])
def test_one_bit_and_palette(form: str) -> None:
    ink = Image.new("1", (64, 64), 0)
    ink.paste(1, (0, 0, 32, 64))
    got = pixels(encoded(ink, form))
    assert (got[:, :32] == 255).all() and (got[:, 32:] == 0).all()
    coloured = SMOOTH.quantize(64)
    assert near(pixels(encoded(coloured, form)), coloured.convert("RGB"), 0)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled_and_not_clipped(form: str) -> None:
    ramp = np.tile(np.linspace(0, 65535, 96).astype(np.uint16), (64, 1))
    got = pixels(encoded(Image.fromarray(ramp), form))
    assert np.array_equal(got[..., 0], ramp >> 8) and len(np.unique(got)) == 96


def test_sixteen_bit_colour_and_grey_agree() -> None:
    ramp = np.tile(np.linspace(0, 65535, 96).astype(">u2"), (64, 1))
    lines = np.repeat(ramp[:, :, None], 3, axis=2)
    raw = b"".join(b"\0" + line.tobytes() for line in lines)
    data = png_with_header(96, 64, 16, 2, png_chunk(b"IDAT", zlib.compress(raw)), png_chunk(b"IEND", b""))
    grey = pixels(encoded(Image.fromarray(ramp.astype(np.uint16))))
    assert np.array_equal(pixels(data), grey)


@pytest.mark.parametrize(
    ("values", "want"),
    [
        (np.linspace(0, 1, 96, dtype=np.float32), lambda v: np.rint(v * 255)),
        (np.linspace(-5, 9, 96, dtype=np.float32), lambda v: np.rint((v + 5) * 255 / 14)),
        (np.linspace(0, 65535, 96).astype(np.int32), lambda v: v >> 8),
        (np.linspace(-70000, 90000, 96).astype(np.int32), lambda v: np.rint((v + 70000.0) * 255 / 160000)),
        (np.full(96, 70000, np.int32), lambda v: np.zeros(96)),
        (np.full(96, np.nan, np.float32), lambda v: np.zeros(96)),
    ],
    ids=["unit-float", "float", "int-16", "int-32", "constant", "nan"],
)
def test_deep_grey_tiffs(values: np.ndarray, want) -> None:  # type: ignore[no-untyped-def]
    got = pixels(encoded(Image.fromarray(np.tile(values, (64, 1))), "TIFF"))
    assert np.abs(got[0, :, 0].astype(int) - want(values)).max() <= 1


@pytest.mark.parametrize("form", ["JPEG", "TIFF"])
def test_inks_are_not_inverted(form: str) -> None:
    cmyk = Image.new("CMYK", (64, 64), (0, 255, 255, 0))  # red
    got = pixels(encoded(cmyk, form, **({"quality": 95} if form == "JPEG" else {})))
    assert near(got, Image.new("RGB", (64, 64), (255, 0, 0)), 6)


def adobe_jpeg(transform: int) -> bytes:
    """A white sheet as Adobe stores it: inks inverted (255 is none), with transform 2 as YCC of their complement."""
    white = {0: (255, 255, 255, 255), 2: (0, 128, 128, 255)}[transform]
    stored = Image.new("CMYK", (32, 32), tuple(255 - v for v in white))
    plain = encoded(stored, "JPEG", quality=100)
    at = plain.index(b"Adobe")
    return plain[: at + 11] + bytes([transform]) + plain[at + 12 :]


@pytest.mark.parametrize("transform", [0, 2])
def test_adobe_inks_cmyk_and_ycck(transform: int) -> None:
    assert near(pixels(adobe_jpeg(transform)), Image.new("RGB", (32, 32), "white"), 3)


def test_colour_profiles_are_ignored() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    plain, tagged = encoded(SMOOTH), encoded(SMOOTH, icc_profile=profile)
    assert np.array_equal(pixels(plain), pixels(tagged))


# --- identity --------------------------------------------------------------------------------------------------------


def test_keys_follow_bytes_and_rules_alone() -> None:
    data = encoded(SMOOTH)
    one = measure(data, RULES, LIMITS, "messages.0")
    assert one.key == measure(data, RULES, PictureLimits(max_side=9999), "input.7").key
    assert len(one.key) == 64 and int(one.key, 16) >= 0
    others = [
        measure(encoded(SMOOTH.convert("P")), RULES, LIMITS, "p"),
        measure(encoded(SMOOTH.resize((64, 96))), RULES, LIMITS, "p"),
        measure(encoded(SMOOTH, compress_level=1), RULES, LIMITS, "p"),
        *(measure(data, dataclasses.replace(RULES, **change), LIMITS, "p") for change in (
            {"patch": 14}, {"merge": 1}, {"min_pixels": 2048}, {"max_pixels": 9999}, {"mean": (0.4,) * 3}, {"std": (0.4,) * 3},
        )),
    ]  # fmt: skip
    assert len({one.key, *(other.key for other in others)}) == 1 + len(others)


def test_a_picture_crosses_processes_and_hides_its_bytes() -> None:
    picture = measure(encoded(SMOOTH), RULES, LIMITS, "p")
    again = pickle.loads(pickle.dumps(picture))
    assert again == picture and again.rows == picture.rows and np.array_equal(again.pixels(), picture.pixels())
    assert len(repr(picture)) < 500 and "data" not in repr(picture)
    with pytest.raises(dataclasses.FrozenInstanceError):
        picture.key = "other"  # type: ignore[misc]


def test_many_threads_and_not_one_warning() -> None:
    """A TIFF with broken tags makes Pillow warn while opening and while decoding."""
    data = bytearray(encoded(SMOOTH, "TIFF"))
    count_at = struct.unpack_from("<I", data, 4)[0]
    entries = struct.unpack_from("<H", data, count_at)[0]
    for n in range(entries):  # a tag whose data lies beyond the end
        at = count_at + 2 + 12 * n
        if struct.unpack_from("<H", data, at)[0] == 0x0129 or n == entries - 1:
            struct.pack_into("<HHII", data, at, struct.unpack_from("<H", data, at)[0], 2, 999_999, 0x7FFFFFF0)
    good = encoded(SMOOTH)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(_try, [bytes(data), good] * 40))
    assert not seen


def _try(data: bytes) -> None:
    try:
        pixels(data)
    except InvalidImage:
        pass


def test_headers_alone_are_read() -> None:
    """A picture whose pixels are rubbish measures like any other, and fails when its pixels are wanted."""
    data = png_with_header(96, 64, 8, 2, png_chunk(b"IDAT", b"rubbish" * 9), png_chunk(b"IEND", b""))
    picture = measure(data, RULES, LIMITS, "p")
    assert read_header(data, "p").size == (96, 64) and picture.rows == 6
    with pytest.raises(InvalidImage):
        picture.pixels()
