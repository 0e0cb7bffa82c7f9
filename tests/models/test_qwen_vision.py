"""The vision tower against transformers' processor and tower, alone and in company."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from foveate.core.values import Frame
from foveate.models.qwen3_5_vision import GRIDS_KEPT, Qwen35Vision
from foveate.models.registry import load_vision
from tests.models.oracle import Oracle

SIZES = ((64, 96), (32, 32), (256, 256), (32, 512), (160, 32), (96, 160))


def pictures() -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    return tuple(random.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in SIZES)


@torch.no_grad()
def test_rows_equal_the_reference(oracle: Oracle) -> None:
    pixels = oracle.pixels(pictures())
    want = oracle.reference.model.get_image_features(pixels["pixel_values"], pixels["image_grid_thw"]).pooler_output
    got = oracle.tower.encode(list(pictures()))
    for mine, theirs, (height, width) in zip(got, want, SIZES, strict=True):
        assert mine.shape == (height * width // 1024, oracle.tower.out_size)
        assert (mine - theirs).abs().max() < 1e-5


def test_an_image_encodes_alike_alone_and_in_company(oracle: Oracle) -> None:
    together = oracle.tower.encode(list(pictures()))
    for picture, rows in zip(pictures(), together, strict=True):
        assert (oracle.tower.encode([picture])[0] - rows).abs().max() < 1e-5


def test_patches_and_normalisation_equal_the_processor(oracle: Oracle) -> None:
    tower = oracle.tower
    assert isinstance(tower, Qwen35Vision)
    want = oracle.pixels(pictures())["pixel_values"].view(-1, 3, 2, 16, 16)
    frames = [tower._patches(torch.from_numpy(picture)) for picture in pictures()]
    got = tower._normalise(torch.cat(frames)).view(-1, 16, 16, 3).permute(0, 3, 1, 2)
    assert (want[:, :, 0] - want[:, :, 1]).abs().max() == 0, "a still fills both frames"
    assert (got - want[:, :, 0]).abs().max() < 1e-6


def test_facts_of_grids_are_kept_for_the_last_ones_only(oracles: dict[str, Oracle]) -> None:
    tower = load_vision(oracles["dense"].folder, "cpu", torch.float32)
    assert isinstance(tower, Qwen35Vision)
    first = np.zeros((32, 32, 3), dtype=np.uint8)
    want = tower.encode([first])[0]
    for width in range(2, GRIDS_KEPT + 4):
        tower.encode([np.zeros((32, 32 * width, 3), dtype=np.uint8)])
        if width % 4 == 0:
            tower.encode([first])
    assert len(tower._grids) == GRIDS_KEPT
    assert (2, 2) in tower._grids, "a grid in use stays"
    assert (2, 4) not in tower._grids, "the one longest out of use went"
    assert torch.equal(tower.encode([first])[0], want)


def test_a_read_only_picture_is_taken_as_it_is(oracles: dict[str, Oracle]) -> None:
    picture = np.frombuffer(bytes(32 * 32 * 3), dtype=np.uint8).reshape(32, 32, 3)
    assert oracles["dense"].tower.encode([picture])[0].shape == (1, 64)


def test_a_picture_that_is_still_to_be_resized_is_the_same_picture(oracles: dict[str, Oracle]) -> None:
    tower, picture = oracles["dense"].tower, pictures()[5][:90, :150]
    resized = np.asarray(Image.fromarray(picture).resize((160, 96), Image.Resampling.BICUBIC))
    assert torch.equal(tower.encode([Frame(picture, (96, 160))])[0], tower.encode([resized])[0])
