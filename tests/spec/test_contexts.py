"""What drafters keep of a request is what a plain run would have left, with rejections, preemptions and aborts."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foveate.core.plan import DraftGuess, DraftWish
from foveate.core.values import Ending
from foveate.models.draft_weights import load_block_drafter
from foveate.models.drafting import DraftModel, Seen
from foveate.models.interface import Memory
from foveate.models.qwen3_5 import Qwen35
from foveate.models.qwen3_5_mtp import MtpDrafter
from foveate.models.qwen3_5_weights import load_mtp
from foveate.models.weights import Place
from foveate.run.draft import ModelDrafter
from foveate.sched.speculate import DraftLimits
from tests.spec.guessing import Knowing
from tests.spec.test_dflash import config_of, oracle_of, write
from tests.spec.test_speculation import jobs_with_images
from tests.support.harness import Drive, Job, late, tiny
from tests.support.invariants import alone

KINDS = ("dflash", "sliding", "dflash2", "mtp")


@functools.cache
def model_of(kind: str) -> DraftModel:
    target, _, folder = tiny("dense")
    if kind == "mtp":
        assert isinstance(target, Qwen35)
        return MtpDrafter(load_mtp(folder, target.config, Place(torch.device("cpu"), torch.float32)), target, 4)
    config = config_of(kind)
    place = write(Path(tempfile.mkdtemp(prefix="foveate-draft-")), config, oracle_of(config, 2).state_dict())
    return load_block_drafter(place, target, torch.device("cpu"), torch.float32)


class Mixed(ModelDrafter):
    """Keeps a real drafter's context, asks it too, but proposes what `Knowing` says, which is often right."""

    def __init__(self, kind: str, truth: Sequence[Sequence[int]], tree: bool = False) -> None:
        super().__init__(kind, model_of(kind), "cpu")
        self.knowing = Knowing(truth, 0.6, tree=tree)
        self.guesses: dict[tuple[int, int], tuple[int, ...]] = {}  # the real one's, by uid and index

    def propose(self, wishes: Sequence[DraftWish], memory: Memory) -> list[DraftGuess]:
        for wish, guess in zip(wishes, super().propose(wishes, memory), strict=True):
            assert self.guesses.setdefault((wish.uid, wish.start_at), guess.tokens[:2]) == guess.tokens[:2]
        return [self.knowing._guess(wish) for wish in wishes]

    def observe(self, seen: Seen, memory: Memory) -> None:
        super().observe(seen, memory)
        filled = replace(seen, features=torch.zeros(len(seen.ids), 1), final=torch.zeros(len(seen.ids), 1))
        self.knowing.observe(filled, memory)


def run(kind: str, jobs: list[Job], most: int, tree: bool = False, **drive: object) -> tuple[Drive, Mixed, list]:
    drafter = Mixed(kind, alone(jobs), tree)
    limits = DraftLimits(most, tree=16 if tree else 0, adaptive=False)
    machine = Drive(drafter=drafter, drafts=limits, **drive)
    outcomes = machine.run(jobs)
    for job, outcome, want in zip(jobs, outcomes, alone(jobs), strict=True):
        assert outcome.tokens == (want if job.leaves_at is None else want[: len(outcome.tokens)])
    return machine, drafter, outcomes


def kept(machine: Drive, names: Sequence[str], length: int) -> dict[str, Tensor]:
    """What the last request's pages and slot hold of the drafter, for its first tokens."""
    piece, memory = next(p for plan in reversed(machine.plans) for p in plan.slices), machine.runner._memory
    pages = {name: t[list(piece.pages)].flatten(0, 1)[:length] for name, t in memory.paged.items() if name in names}
    return pages | {name: t[piece.state_slot] for name, t in memory.state.items() if name in names}


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", KINDS)
def test_rejected_drafts_leave_nothing(kind: str, tree: bool) -> None:
    """Contexts, states and the drafter's own guesses are those of a run in which nothing was ever rejected."""
    (job,) = jobs_with_images(41, 1, ending=Ending(31))
    job = replace(job, at=0)
    spec = model_of(kind).memory_spec()
    names = [one.name for one in (*spec.paged, *spec.state)]
    want, plain, _ = run(kind, [job], 1, mixed_tokens=7, step_tokens=7)
    got, mixed, (outcome,) = run(kind, [job], 6, tree)
    assert sum(outcome.timings.accepted) > 5 and outcome.timings.drafted > sum(outcome.timings.accepted) + 5
    length = len(job.prompt.tokens) + 24  # a context is complete up to the last step's beginning
    whole, found = kept(want, names, length), kept(got, names, length)
    for name in (one.name for one in spec.paged):
        assert (found[name] - whole[name]).abs().max() < 1e-5 * (1 + whole[name].abs().max()), name
    both = mixed.guesses.keys() & plain.guesses.keys()
    assert len(both) > 5 and all(mixed.guesses[at][:1] == plain.guesses[at][:1] for at in both)


@pytest.mark.parametrize("kind", KINDS)
def test_preemption_and_aborts_between(kind: str) -> None:
    """`Mixed` asserts that the guess at each place is the same whenever it is asked for, before or after."""
    jobs = [replace(job, at=0) for job in jobs_with_images(43, 6, ending=Ending(28))]
    outcomes = run(kind, jobs, 4, tree=True, pages=28, step_tokens=40, mixed_tokens=16, landing=late(2, 0.5))[2]
    assert sum(outcome.preemptions for outcome in outcomes) > 0
    jobs[1] = replace(jobs[1], leaves_at=7)
    run(kind, jobs, 4, pages=28)
