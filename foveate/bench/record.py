"""Where and how figures came to be, and how they are summed up: the part that every benchmark ends with.

Owns the record beside the figures (date, machine, commit, command), medians with their spread, and the one JSON line.
Promises that the record names what was really run: the commit is marked when files differ from it. Refuses to know
what was measured.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from foveate.core.config import usable_cores

ROOT = Path(__file__).resolve().parents[2]


def record(devices: Sequence[str] = ()) -> dict[str, Any]:
    """Date, machine, commit and command of this run; `devices` are the names of accelerators that took part."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(devices),
        "commit": commit(),
        "command": command(),
    }


def command() -> str:
    """The command line of this process, as one types it."""
    program = Path(sys.argv[0])
    script = program.suffix == ".py" and program.parent.name == "bench"
    return " ".join([f"python bench/{program.name}" if script else "foveate", *sys.argv[1:]])


def machine(devices: Sequence[str] = ()) -> str:
    """Accelerators, processor and cores, and the version of torch, in words."""
    parts = [*dict.fromkeys(name for name in devices if name != "cpu")]
    parts += [f"{usable_cores()} cores ({_processor()})"]
    with suppress(PackageNotFoundError):  # a client of a distant server needs none
        parts.append(f"torch {version('torch')}")
    return ", ".join(parts)


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def commit() -> str | None:
    """The short name of the commit, with `+` when tracked files differ from it; None outside a repository."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        return name + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def summed(values: Sequence[float]) -> dict[str, float]:
    """The median, and half the range as the spread."""
    return {
        "median": round(statistics.median(values), 5),
        "spread": round((max(values) - min(values)) / 2, 5),
        "count": len(values),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def share(least: float | None, took: float | None) -> float | None:
    """How near `took` came to the least that is possible; None where one of both is not known."""
    return round(least / took, 3) if least and took else None


def line(figures: Mapping[str, Any], devices: Sequence[str] = ()) -> str:
    """The one JSON line that ends a run."""
    return json.dumps({**figures, "record": record(devices)})
