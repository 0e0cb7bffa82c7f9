"""Stops a running engine at a chosen stage of a request, so that a test can act exactly there.

Owns the gates in the encoder and in the step, and counts what went through them. A closed gate lets what it is
closed for say that it has arrived, and holds it until the test opens it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from foveate.core.plan import StepPlan, StepResult
from tests.cases.oracle import House


class Gate:
    """Open unless closed for the call that `holds` tells; `passed` counts all calls."""

    def __init__(self) -> None:
        self.passed = 0
        self.reached = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._holds: Callable[[Any], bool] = lambda call: False

    def close(self, holds: Callable[[Any], bool]) -> None:
        self._holds = holds
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self, call: Any) -> None:
        self.passed += 1
        if not self._open.is_set() and self._holds(call):
            self.reached.set()
            assert self._open.wait(120), "a test forgot its gate"


class GatedExecutor:
    """The engine's executor behind a gate that sees each plan."""

    def __init__(self, inner: Any, gate: Gate) -> None:
        self.inner, self.rows, self.gate = inner, inner.rows, gate

    def execute(self, plan: StepPlan) -> StepResult:
        self.gate.pass_through(plan)
        return self.inner.execute(plan)

    def draft(self, wishes: Any) -> Any:
        return self.inner.draft(wishes)

    def stop_drafting(self) -> None:
        self.inner.stop_drafting()


@contextmanager
def gated(house: House) -> Iterator[tuple[Gate, Gate]]:
    """(encode gate, step gate) of a house whose encoder is a thread; both are open again at the end."""
    loop = house.engine.loop
    tower, executor = loop._encoder.worker._tower, loop._executor
    encode, step, plain = Gate(), Gate(), tower.encode

    def encode_gated(pixels: list[Any]) -> Any:
        encode.pass_through(pixels)
        return plain(pixels)

    tower.encode, loop._executor = encode_gated, GatedExecutor(executor, step)
    try:
        yield encode, step
    finally:
        encode.open()
        step.open()
        house.settle()
        tower.encode, loop._executor = plain, executor
