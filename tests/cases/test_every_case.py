"""Every case has tests that carry its id in their names, and no test names a case that does not exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
CASES = set((HERE / "ids.txt").read_text().split())


def named() -> dict[str, set[str]]:
    """Case id -> the tests of tests/cases and tests/life that are named after it."""
    found: dict[str, set[str]] = {}
    for path in [*HERE.glob("test_*.py"), *(HERE.parent / "life").glob("test_*.py")]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                for case in re.findall(r"B\d\d", node.name):
                    found.setdefault(case, set()).add(node.name)
    return found


def test_every_case_is_tested_by_name() -> None:
    assert len(CASES) == 44
    assert named().keys() == CASES
