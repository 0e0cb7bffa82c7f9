"""Faults on purpose: makes the encoder, a step or the drafter fail, so that tests can see what a server does about it.

Owns the meaning of the `inject-fault` setting. Off by default; only who starts the server can switch it on, never a
request. Wraps what would fail in earnest, so that every path behind it is the real one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from foveate.core.errors import ConfigError
from foveate.core.plan import DraftGuess, DraftWish, StepPlan, StepResult
from foveate.models.drafting import Seen
from foveate.models.interface import Memory, MemorySpec, VisionTower
from foveate.run.draft import Drafter
from foveate.run.runner import Runner


def _raise() -> None:
    raise RuntimeError("planted fault")


def _hang() -> None:
    time.sleep(86_400)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _run_out() -> None:
    raise torch.OutOfMemoryError("planted fault")


_ENCODER: dict[str, Callable[[], None]] = {
    "encode-raise": _raise,
    "encode-hang": _hang,
    "encode-die": _die,
    "encode-memory": _run_out,
}
_STEP: dict[str, Callable[[], None]] = {"step-raise": _raise, "step-memory": _run_out}
_DRAFT: dict[str, Callable[[], None]] = {
    "observe-raise": _raise,
    "observe-memory": _run_out,
    "propose-raise": _raise,
    "propose-memory": _run_out,
}
_KINDS = (*_ENCODER, *_STEP, *_DRAFT)


class FaultyTower:
    """A vision tower that fails at its n-th image and works before and after."""

    def __init__(self, tower: VisionTower, fault: Callable[[], None], at: int) -> None:
        self._tower, self._fault, self._left = tower, fault, at
        self.out_size = tower.out_size

    def encode(self, pixels: list[Any]) -> list[Tensor]:
        self._left -= 1
        if self._left == 0:
            self._fault()
        return self._tower.encode(pixels)


class FaultyRunner:
    """An executor that fails at its n-th step and works before and after."""

    def __init__(self, runner: Runner, fault: Callable[[], None], at: int) -> None:
        self._runner, self._fault, self._left = runner, fault, at
        self.rows = runner.rows

    def draft(self, wishes: Sequence[DraftWish]) -> list[DraftGuess]:
        return self._runner.draft(wishes)

    def stop_drafting(self) -> None:
        self._runner.stop_drafting()

    def execute(self, plan: StepPlan) -> StepResult:
        self._left -= 1
        if self._left == 0:
            self._fault()
        return self._runner.execute(plan)


class FaultyDrafter:
    """A drafter that fails from its n-th look (`observe`) or guess (`propose`) on, and works before."""

    def __init__(self, drafter: Drafter, kind: str, at: int) -> None:
        self._drafter, self._fault, self._left = drafter, _DRAFT[kind], at
        self._at_look = kind.startswith("observe")
        self.name, self.capture = drafter.name, drafter.capture
        self.lookback, self.most_len = drafter.lookback, drafter.most_len

    def memory_spec(self) -> MemorySpec:
        return self._drafter.memory_spec()

    def observe(self, seen: Seen, memory: Memory) -> None:
        self._count(self._at_look)
        self._drafter.observe(seen, memory)

    def propose(self, wishes: Sequence[DraftWish], memory: Memory) -> list[DraftGuess]:
        self._count(not self._at_look)
        return self._drafter.propose(wishes, memory)

    def _count(self, counts: bool) -> None:
        self._left -= counts
        if counts and self._left <= 0:
            self._fault()


def faulty_tower(tower: VisionTower, wish: str) -> VisionTower | FaultyTower:
    """The tower with the fault that the setting asks for; as it is when it asks for none of the encoder's."""
    kind, at = _parse(wish)
    return FaultyTower(tower, _ENCODER[kind], at) if kind in _ENCODER else tower


def faulty_runner(runner: Runner, wish: str) -> Runner | FaultyRunner:
    """The runner with the fault that the setting asks for; as it is when it asks for none of a step's or drafter's.

    Raises ConfigError for a drafter's fault where there is no drafter.
    """
    kind, at = _parse(wish)
    if kind in _DRAFT:
        if runner.drafter is None:
            raise ConfigError(f"inject-fault {kind} needs a drafter: see draft")
        runner.drafter = FaultyDrafter(runner.drafter, kind, at)
    return FaultyRunner(runner, _STEP[kind], at) if kind in _STEP else runner


def _parse(wish: str) -> tuple[str, int]:
    """KIND:N as a kind and a count; ("", 0) for no wish. Raises ConfigError for anything else."""
    if not wish:
        return "", 0
    kind, _, at = wish.partition(":")
    if kind not in _KINDS or not at.isdigit() or int(at) < 1:
        raise ConfigError(f"inject-fault is KIND:N with KIND one of {', '.join(_KINDS)}")
    return kind, int(at)
