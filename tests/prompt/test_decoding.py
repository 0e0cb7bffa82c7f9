"""Decoding pictures of every format, orientation and mode, whole and damaged."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from foveate.core.config import PictureLimits
from foveate.core.errors import InvalidImage
from foveate.prompt.formats import ACCEPTED
from foveate.prompt.pixels import image_grid, measure
from tests.prompt.drawings import (
    FORMS,
    LIMITS,
    RANDOM,
    RULES,
    SMOOTH,
    encoded,
    near,
    pixels,
    png_chunk,
    png_with_header,
)

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


@pytest.mark.parametrize("form", FORMS)
def test_measuring_decodes_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, loads = encoded(SMOOTH, form), []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: loads.append(image))
    assert measure(data, RULES, LIMITS, "p").rows == 6
    assert loads == []
