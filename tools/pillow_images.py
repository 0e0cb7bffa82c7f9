"""Fetches Pillow's source package once, because its test images are the best hostile pictures there are.

Usage: python tools/pillow_images.py. Puts the package of the installed version into `.venv/pillow-images`, where the
tests look for it; they skip with a message when it is not there. Never fails: without a network there is less to test.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import PIL

FOLDER = Path(__file__).resolve().parent.parent / ".venv" / "pillow-images"
PATIENCE_S = 180


def main() -> None:
    package = FOLDER / f"pillow-{PIL.__version__}.tar.gz"
    if package.is_file():
        return
    print(f"fetching the test images of Pillow {PIL.__version__} (47 MB, once)", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    what = ["--no-binary", "pillow", "--no-deps", "--dest", str(FOLDER), f"pillow=={PIL.__version__}"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", *what]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        done = False
    if not done or not package.is_file():
        print("they could not be had: the test over them will be skipped", flush=True)


if __name__ == "__main__":
    main()
