"""`foveate --help` answers quickly because nothing heavy is imported for it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from foveate.cli import build
build()
heavy = {"torch", "numpy", "PIL", "fastapi", "httpx", "jinja2", "tokenizers", "safetensors"} & set(sys.modules)
assert not heavy, heavy
"""


def test_building_the_command_line_imports_nothing_heavy() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
