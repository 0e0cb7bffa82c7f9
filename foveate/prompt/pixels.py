"""From encoded pictures to pixels: measured and keyed from the header at once, decoded and resized later.

Owns the resize rule that fixes a picture's grid, the limits that a picture must keep, its content key, and the full
decode with everything that a mode or a flag can hide: orientation, transparency, palettes, depth, inks. Promises that
the same bytes under the same rules are one key, that nothing is decoded before the limits are known to hold, and that
unusable bytes end in `InvalidImage`. Colour profiles are ignored throughout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from foveate.core.config import PictureLimits
from foveate.core.errors import InvalidImage, TooLarge
from foveate.core.images import BlockRules, block_len, cells_of
from foveate.core.values import Frame, ImageRules
from foveate.prompt.block_size import block_grid, block_picture
from foveate.prompt.formats import Header, open_picture, read_header, refusals

_TURNS = (
    None,
    Image.Transpose.FLIP_LEFT_RIGHT,
    Image.Transpose.ROTATE_180,
    Image.Transpose.FLIP_TOP_BOTTOM,
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)  # what undoes EXIF orientation 1..8 (Exif 2.3, tag 0x0112)
_WHITE = (255, 255, 255)
LEFT_OVER = 4  # times the area after resizing: a larger picture is resized at once
Rules = ImageRules | BlockRules


@dataclass(frozen=True, slots=True)
class Picture:
    """One encoded picture, measured from its header: a `core.values.PixelSource`.

    `size` is (width, height) as seen, after orientation; `grid` counts patches (down, across); `param` is the path in
    the request that errors name.
    """

    data: bytes = field(repr=False)
    header: Header
    rules: Rules
    param: str
    key: str
    grid: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        width, height = self.header.size
        return (height, width) if self.header.orientation >= 5 else (width, height)

    @property
    def rows(self) -> int:
        if isinstance(self.rules, BlockRules):
            return block_len(cells_of(self.grid, self.rules.cell))
        return self.grid[0] * self.grid[1] // self.rules.merge**2

    def pixels(self) -> np.ndarray:
        """Decode and resize: uint8 [height, width, 3], the grid's size in pixels. Raises InvalidImage."""
        down, across = self.grid
        with refusals(self.param):
            image = self._decode()
            if isinstance(self.rules, BlockRules):
                return np.array(block_picture(image, self.grid, self.rules))
            size = (across * self.rules.patch, down * self.rules.patch)
            return np.array(image.resize(size, Image.Resampling.BICUBIC))

    def frame(self) -> np.ndarray | Frame:
        """As `pixels`, but the resizing is left over where that is the same to the byte and worth it.

        A picture much larger than what it becomes is cheaper to keep and to move when it is small. Raises InvalidImage.
        """
        size = (self.grid[0] * self.rules.patch, self.grid[1] * self.rules.patch)
        if isinstance(self.rules, BlockRules) or not _can_wait(self.size, size):
            return self.pixels()
        with refusals(self.param):
            return Frame(np.array(self._decode()), size)

    def _decode(self) -> Image.Image:
        """The first frame as RGB in its right orientation."""
        image = open_picture(self.data, self.param)
        image.load()  # before anything else: other calls would swallow what it has to complain about
        if image.size != self.header.size:
            raise InvalidImage("the picture's header and its pixels have different sizes", self.param)
        turn = _TURNS[self.header.orientation - 1]
        flat = _flatten(image)
        return flat if turn is None else flat.transpose(turn)


def _can_wait(size: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Whether a picture of `size` (width, height) may be resized to `wanted` (height, width) elsewhere."""
    (width, height), (tall, wide) = size, wanted
    # Some versions of Pillow then begin with the other pass, which rounds otherwise.
    flattened = height > tall and height - tall > 2 * (width - wide)
    return not flattened and width * height <= LEFT_OVER * tall * wide


def measure(data: bytes, rules: Rules, limits: PictureLimits, param: str) -> Picture:
    """A picture from its encoded bytes, of which only the header is parsed.

    Hashes all bytes, so keep it off the event loop. Raises TooLarge beyond `limits.image_bytes`, and InvalidImage for
    any other limit, an unknown format or a broken header.
    """
    if len(data) > limits.image_bytes:
        raise TooLarge(f"the picture has {len(data):,} bytes; at most {limits.image_bytes:,} are allowed", param)
    header = read_header(data, param)
    _check_size(header.size, limits, param)
    width, height = header.size if header.orientation < 5 else header.size[::-1]
    return Picture(data, header, rules, param, _content_key(data, header, rules), image_grid(width, height, rules))


def check_total(pictures: Sequence[Picture], limits: PictureLimits) -> None:
    """Refuse pictures that are each fine but together too much: TooLarge for bytes, InvalidImage for pixels."""
    total = sum(len(picture.data) for picture in pictures)
    if total > limits.total_bytes:
        raise TooLarge(f"the pictures have {total:,} bytes; at most {limits.total_bytes:,} per request", "messages")
    area = sum(math.prod(picture.size) for picture in pictures)
    if area > limits.total_pixels:
        text = f"the pictures have {area:,} pixels together; at most {limits.total_pixels:,} per request are allowed"
        raise InvalidImage(text, "messages")


def image_grid(width: int, height: int, rules: Rules) -> tuple[int, int]:
    """Patches (down, across) of a picture; for Qwen whole merge blocks, the area scaled into the model's range.

    The rule of Qwen2-VL's image processor ("smart resize"); halves round to the even number, as Python's `round` does.
    """
    if isinstance(rules, BlockRules):
        return block_grid(width, height, rules)
    block = rules.patch * rules.merge
    sides = [round(side / block) for side in (height, width)]
    area = sides[0] * sides[1] * block**2
    if area > rules.max_pixels:
        shrink = math.sqrt(height * width / rules.max_pixels)
        sides = [max(1, math.floor(side / shrink / block)) for side in (height, width)]
    elif area < rules.min_pixels:
        grow = math.sqrt(rules.min_pixels / (height * width))
        sides = [math.ceil(side * grow / block) for side in (height, width)]
    return sides[0] * rules.merge, sides[1] * rules.merge


def _check_size(size: tuple[int, int], limits: PictureLimits, param: str) -> None:
    width, height = size
    what = f"the picture is {width}x{height}"
    if width * height > limits.image_pixels:
        raise InvalidImage(f"{what}; at most {limits.image_pixels:,} pixels are allowed", param)
    if max(size) > limits.max_side:
        raise InvalidImage(f"{what}; its longer side may have at most {limits.max_side:,} pixels", param)
    if max(size) > limits.aspect_ratio * min(size):
        raise InvalidImage(f"{what}; its sides may differ by a factor of {limits.aspect_ratio} at most", param)


def _content_key(data: bytes, header: Header, rules: Rules) -> str:
    """SHA-256 in hex over all that decides the rows: the bytes, what was read of them, and the processor's options."""
    digest = hashlib.sha256(data).hexdigest()
    options: tuple[object, ...]
    if isinstance(rules, BlockRules):
        options = ("block", rules.patch, rules.cell, rules.min_pixels, rules.max_tokens, rules.max_ratio)
    else:
        options = (rules.patch, rules.merge, rules.min_pixels, rules.max_pixels, rules.mean, rules.std)
    facts = (digest, header.format, header.size, header.mode, header.orientation, options)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _flatten(image: Image.Image) -> Image.Image:
    """RGB on white, whatever the mode: transparency composited, deep greys scaled, inks turned into light."""
    if image.mode.startswith("I") or image.mode == "F":
        return _deep_grey(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        canvas = Image.new("RGB", image.size, _WHITE)
        canvas.paste(image, mask=image.getchannel("A"))
        return canvas
    return image if image.mode == "RGB" else image.convert("RGB")


def _deep_grey(image: Image.Image) -> Image.Image:
    """Grey values beyond 8 bits as RGB: the high byte of 16-bit values (as Pillow does for 16-bit colour).

    Values outside that range carry no scale of their own: fractions count from black 0 to white 1, anything else is
    stretched from its smallest to its largest value.
    """
    values = np.asarray(image)  # [height, width]
    if image.mode == "F":
        values = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = values.min(), values.max()
    if image.mode == "F" and low >= 0 and high <= 1:
        grey = np.rint(values * 255)
    elif image.mode != "F" and low >= 0 and high <= 0xFFFF:
        grey = values >> 8
    else:
        grey = np.rint((values.astype(np.float64) - low) * (255 / max(float(high) - float(low), 1e-300)))
    if isinstance(hidden := image.info.get("transparency"), int):
        grey = np.where(values == hidden, 255, grey)  # the one value that a 16-bit PNG declares transparent
    return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
