"""The floors of docs/flow.md hold: imports point downwards only, run inside functions only where that is allowed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "foveate"

# Each floor, and the foveate packages it may import beside itself.
MAY_IMPORT = {
    "core": set(),
    "ops": {"core"},
    "models": {"ops", "core"},
    "sched": {"core"},
    "run": {"models", "ops", "core"},
    "prompt": {"core"},
    "engine": {"sched", "run", "core"},
    "service": {"prompt", "engine", "core"},
    "server": {"service", "core"},
    "offline": {"core", "engine", "service"},
    "show": {"core", "evals"},
    "evals": {"core"},
    "bench": {"core", "engine", "service"},
    "cli": {"core", "engine", "service", "server", "show", "evals", "bench"},
    "demo": set(),
}
HEAVY = {"torch", "numpy", "PIL", "transformers", "jinja2", "fastapi", "uvicorn", "httpx", "pydantic", "tokenizers"}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    """The floor a file stands on: its package, or its own name for files of the top folder."""
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, at top level?) for every import statement of a file."""
    tree = ast.parse(path.read_text())
    top = set(ast.walk(ast.Module([n for n in tree.body if not isinstance(n, (ast.FunctionDef, ast.ClassDef))], [])))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or "", node in top


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_imports_point_downwards(path: Path) -> None:
    here = room(path)
    if here == "__init__":
        return
    assert here in MAY_IMPORT, f"{here} is on no floor: name it in docs/flow.md and here"
    for name, _ in imports(path):
        parts = name.split(".")
        if parts[0] == "foveate" and len(parts) > 1:
            assert parts[1] == here or parts[1] in MAY_IMPORT[here], f"{dotted(path)} may not import {name}"


@pytest.mark.parametrize("floor", ["core", "sched"])
def test_policy_and_values_know_no_library(floor: str) -> None:
    for path in modules():
        if room(path) == floor:
            found = {name.split(".")[0] for name, _ in imports(path)} & HEAVY
            assert not found, f"{dotted(path)} imports {found}"


def test_no_import_cycles() -> None:
    graph = {
        dotted(path): {name for name, top in imports(path) if top and name.startswith("foveate")} for path in modules()
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def test_transformers_and_dflash_are_for_tests_only() -> None:
    for path in modules():
        for name, _ in imports(path):
            assert name.split(".")[0] not in {"transformers", "dflash", "openai", "anthropic"}, dotted(path)


def test_environment_is_read_in_config_only() -> None:
    for path in modules():
        if dotted(path) != "foveate.core.config":
            for node in ast.walk(ast.parse(path.read_text())):
                reads = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
                assert not reads, f"{dotted(path)} reads the environment"
