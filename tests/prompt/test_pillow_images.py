"""Every test image of Pillow's source package is a picture or a clean refusal, in bounded memory and time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.pillow_images import SOURCE


@pytest.mark.skipif(not SOURCE.is_file(), reason=f"{SOURCE.name} is missing: run tools/pillow_images.py")
def test_all_of_pillows_pictures() -> None:
    """In a process of its own, so that its memory can be told from that of the tests before."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.pillow_images", str(SOURCE)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0 and "Warning" not in run.stderr, run.stderr
    out = json.loads(run.stdout)
    assert out["wrong"] == {} and out["differs"] == {}
    assert out["read"] > 600 and len(out["refused"]) > 20
    assert all("<" not in text and len(text) < 200 for text in out["refused"].values())
    assert out["peak_mib"] < 300
    assert out["slowest_s"] < 2  # a limit of the decoder's CPU time that the project promises, far above what it takes
