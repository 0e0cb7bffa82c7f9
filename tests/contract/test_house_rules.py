"""The shapes of section 4 of the design hold for every source file: sizes, names, headers, no mutable globals."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(p for top in ("foveate", "recipe") for p in (ROOT / top).rglob("*.py"))
BANNED = ("Manager", "Handler", "Helper", "Utils", "Impl")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[Function]:
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, Function)]


def length(node: Function) -> int:
    """Lines of code: a docstring explains and does not count."""
    body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_file_and_function_sizes(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= 400, f"{lines} lines"
    for node in functions(path):
        assert length(node) <= 60, f"{node.name}: {length(node)} lines"
        args = [
            a for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if a.arg not in ("self", "cls")
        ]
        # A GPU kernel takes pointers, strides and sizes one by one; nothing else may.
        kernel = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
        assert kernel or len(args) <= 6, f"{node.name}: {len(args)} parameters"


def test_functions_are_short_on_the_whole() -> None:
    lengths = [length(node) for path in SOURCES for node in functions(path)]
    assert median(lengths) <= 10


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_says_what_it_owns(path: Path) -> None:
    if path.name != "__init__.py":
        doc = ast.get_docstring(ast.parse(path.read_text()))
        assert doc, "no module docstring"
        assert 3 <= len(doc.splitlines()) <= 40 or path.stat().st_size < 1500, "header of 3 to 12 lines, a tree may add"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_names_and_inheritance(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            assert not node.name.endswith(BANNED) and not node.name.startswith("Base"), node.name
            assert len(node.bases) <= 1, f"{node.name} has several bases"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_mutable_module_state(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        value = getattr(node, "value", None) if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        names = [t.id for t in getattr(node, "targets", [getattr(node, "target", None)]) if isinstance(t, ast.Name)]
        if isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)):
            assert all(n.isupper() or n == "__all__" or (n.startswith("_") and n[1:].isupper()) for n in names), names
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Global), "global statement"
