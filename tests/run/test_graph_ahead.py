"""Decoding ahead of the plan changes no token: not when others come, go, are preempted or end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from foveate.core.values import Ending, Finished, Sampling
from foveate.models.interface import NOTHING
from foveate.run.ahead import Ahead
from foveate.run.graphs import EvenSteps, Program
from tests.run.test_graph_step import EvenDrive, even_steps, fresh, piece, tokens
from tests.support.harness import Job, Outcome, late, make_job
from tests.support.invariants import alone


class AheadDrive(EvenDrive):
    """The synchronous engine that decodes ahead; counts steps that were launched and that followed by themselves."""

    def __init__(self, kind: str = "dense", **extra: Any) -> None:
        super().__init__(kind, **extra)
        self.runner.even = self._even
        self.followed = 0
        self.runner.ahead = Ahead(Counted(self._even, self))  # type: ignore[arg-type]


class Counted:
    """Even steps whose advances are counted."""

    def __init__(self, even: EvenSteps, drive: AheadDrive) -> None:
        self._even, self._drive = even, drive
        self.memory, self.fits, self.launch = even.memory, even.fits, even.launch

    def advance(self, program: Program) -> Program:
        self._drive.followed += 1
        return self._even.advance(program)


def check(jobs: list[Job], kind: str = "dense", **drive: Any) -> tuple[AheadDrive, list[Outcome]]:
    want = alone(jobs, kind)
    ahead = AheadDrive(kind, **drive)
    outcomes = ahead.run(jobs)
    for uid, outcome in enumerate(outcomes):
        full = want[uid] if jobs[uid].leaves_at is None else want[uid][: len(outcome.tokens)]
        assert outcome.tokens == full, f"request {uid}: what was run ahead changed the answer"
    return ahead, outcomes


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe"])
def test_alone_almost_every_step_follows_by_itself(kind: str) -> None:
    drive, _ = check([make_job(1, 1, 20, ending=Ending(60))], kind)
    assert drive.followed >= 48  # all but those that need a new page


@pytest.mark.parametrize("seed", range(4))
def test_who_comes_and_goes_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)
    jobs = [
        make_job(
            100 * seed + i,
            rng.choice([0, 0, 1, 2]),
            rng.randint(8, 30),
            at=rng.randint(0, 40),
            ending=Ending(rng.randint(1, 30)),
            leaves_at=rng.choice([None, None, rng.randint(41, 60)]),
            sampling=Sampling(temperature=rng.choice([0.0, 0.0, 0.8]), seed=i),
        )
        for i in range(10)
    ]
    drive, _ = check(jobs, slots=rng.choice([2, 4]), landing=late(seed))
    assert drive.followed > 0


@pytest.mark.parametrize("seed", range(3))
def test_preemption_forgets_what_was_run_ahead(seed: int) -> None:
    jobs = [make_job(700 + 10 * seed + i, i % 2, 20, at=3 * i, ending=Ending(40)) for i in range(6)]
    drive, outcomes = check(jobs, slots=4, pages=26, max_ctx=120)
    assert sum(outcome.preemptions for outcome in outcomes) > 0, "nobody was preempted, so the test shows nothing"
    assert drive.followed > 10


def test_logprobs_penalties_and_samples_are_not_run_ahead() -> None:
    ways = [Sampling(temperature=0.0, logprobs=2), Sampling(temperature=0.0, presence_penalty=1.0), Sampling(seed=3)]
    jobs = [make_job(50 + i, 0, 12, sampling=way, ending=Ending(12)) for i, way in enumerate(ways)]
    assert check(jobs)[0].followed == 0


def test_a_slice_that_is_planned_late_finds_what_was_run_ahead() -> None:
    """A live sequence may be left out of a plan; running its token again would count it twice in its state."""
    rng, memory = random.Random(0), fresh("dense")
    even = even_steps("dense", memory)
    ahead = Ahead(even)
    slices = [piece(n, 0, tokens(rng, 1)) for n in range(2)]
    first, rest = ahead.execute(tuple(slices))
    assert not rest
    following = [piece(n, 1, list(first[n].tokens)) for n in range(2)]
    one, rest = ahead.execute((following[1],))
    assert set(one) == {1} and not rest
    other, rest = ahead.execute((following[0],))
    assert set(other) == {0} and not rest
    again = even_steps("dense", fresh("dense"))
    again.run(slices, NOTHING)
    _, look = again.run(following, NOTHING)
    assert [other[0].tokens[0], one[1].tokens[0]] == look().best


def test_a_finished_sequence_is_run_once_too_often_and_nobody_hears_of_it() -> None:
    jobs = [make_job(9 + i, 0, 10, at=8 * i, ending=Ending(5)) for i in range(2)]
    drive, outcomes = check(jobs, slots=1)
    assert all(isinstance(outcome.end, Finished) and len(outcome.tokens) == 5 for outcome in outcomes)
    assert drive.followed > 4
