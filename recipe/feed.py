"""Processes that draw packs ahead of the trainer, and the order in which packs are used.

Owns the worker processes, the shared buffers and the schedule (each pack once, or twice with a lag between). Promises
that step `s` sees the same pack in every run, whatever the speed of the machine. Refuses to know what is in a pack.
"""

import mmap
import multiprocessing as mp
import os
import queue
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from recipe.encode import Encoder
from recipe.packs import Draw, Packs, fill_pack


def schedule(steps: int, uses: int, lag: int) -> list[int]:
    """The pack of every step: fresh ones in order and, with `uses` 2, each once more `lag` packs later."""
    if uses not in (1, 2):
        raise ValueError("a pack is used once or twice")
    out: list[int] = []
    fresh = 0
    while len(out) < steps:
        out.append(fresh)
        if uses == 2 and fresh >= lag:
            out.append(fresh - lag)
        fresh += 1
    return out[:steps]


@dataclass(frozen=True)
class FeedPlan:
    """What the feed draws: seed, number of steps, where to begin, how many processes and buffers."""

    seed: int
    steps: int
    begin: int = 0
    uses: int = 2
    lag: int = 96
    ahead: int = 64
    workers: int = 15


@dataclass(frozen=True)
class Filling:
    """What encodes conversations, made from a tokenizer, and what fills a pack with them."""

    encoder: Callable[[Tokenizer], Any] = Encoder
    fill: Callable[..., list[str]] = fill_pack


@dataclass(frozen=True)
class Job:
    """What a drawing process needs to know; `memory` is shared, `stride` bytes a pack."""

    shape: Packs
    memory: mmap.mmap
    stride: int
    tokenizer: Path
    draw: Draw
    seed: int
    filling: Filling


class PackFeed:
    """Packs in schedule order; make it before the GPU is touched (its processes are forked)."""

    def __init__(
        self, shape: Packs, tokenizer: Path, draw: Draw, plan: FeedPlan, filling: Filling | None = None
    ) -> None:
        """filling: how a family's packs are filled; the Qwen reader's where nothing is said."""
        self.shape, self.plan = shape, plan
        self.order = schedule(plan.steps, plan.uses, plan.lag)[plan.begin :]
        self.left = Counter(self.order)
        self.fresh = list(dict.fromkeys(self.order))
        slots = min(plan.ahead + (plan.lag if plan.uses == 2 else 0) + 2, len(self.fresh))
        self.stride = -(-shape.nbytes // 4096) * 4096
        self.memory = mmap.mmap(-1, self.stride * max(slots, 1))
        context = mp.get_context("fork")
        self.tasks, self.done = context.Queue(), context.Queue()
        self.ready: dict[int, int] = {}
        self.handed = 0
        for slot in range(slots):
            self._hand_out(slot)
        job = Job(shape, self.memory, self.stride, tokenizer, draw, plan.seed, filling or Filling())
        queues = (self.tasks, self.done)
        self.processes = [context.Process(target=_work, args=(job, *queues), daemon=True) for _ in range(plan.workers)]
        for process in self.processes:
            process.start()

    def _hand_out(self, slot: int) -> None:
        if self.handed < len(self.fresh):
            self.tasks.put((self.fresh[self.handed], slot))
            self.handed += 1

    def buffers(self) -> Iterator[NDArray[np.uint8]]:
        """The raw bytes of each step's pack, in order; a buffer is valid until the next one is asked for."""
        for pack in self.order:
            while pack not in self.ready:
                number, slot = self._wait()
                self.ready[number] = slot
            slot = self.ready[pack]
            yield np.frombuffer(self.memory, np.uint8, self.shape.nbytes, slot * self.stride)
            self.left[pack] -= 1
            if not self.left[pack]:
                del self.ready[pack]
                self._hand_out(slot)

    def _wait(self) -> tuple[int, int]:
        while True:
            try:
                item = self.done.get(timeout=20)
            except queue.Empty:
                if not any(process.is_alive() for process in self.processes):
                    raise RuntimeError("every drawing process has ended") from None
                continue
            if isinstance(item, str):
                raise RuntimeError(f"a drawing process failed:\n{item}")
            return item

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(timeout=5)


def _work(job: Job, tasks: Any, done: Any) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder = job.filling.encoder(Tokenizer.from_file(str(job.tokenizer)))
    while True:
        number, slot = tasks.get()
        out = job.shape.view(job.memory, slot * job.stride)
        try:
            job.filling.fill(job.shape, encoder, job.draw, f"{job.seed}/{number}", out)
        except Exception:  # the trainer must hear of it, whatever it was
            done.put(traceback.format_exc())
            return
        done.put((number, slot))
