"""The README's curl command, run as it stands against a real server on the bundled model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from foveate.show.demo import _server

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.model


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_command_of_the_readme_gets_the_right_answer() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"<!-- test: curl -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    with _server(0) as url:
        command = block.group(1).replace("http://127.0.0.1:8000", url)
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "325"


def test_the_files_that_the_readme_names_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target
