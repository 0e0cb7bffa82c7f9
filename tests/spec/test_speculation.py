"""Speculation changes nothing: same tokens with and without, in the batch, after images, under pressure."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from foveate.core.values import Ending, Sampling
from foveate.run.draft import NgramDrafter
from foveate.sched.speculate import DraftLimits
from tests.spec.guessing import Knowing
from tests.support.harness import Drive, Job, Outcome, late, make_job
from tests.support.invariants import alone

FULL = DraftLimits(draft_len=6, adaptive=False)
SAMPLED = Sampling(
    temperature=0.8, top_p=0.95, top_k=40, seed=3, presence_penalty=0.4, repetition_penalty=1.1, logprobs=2
)


def jobs_with_images(seed: int, count: int, **extra) -> list[Job]:
    rng = random.Random(seed)
    return [
        make_job(500 * seed + i, rng.choice([0, 1, 2, 4]), rng.randint(8, 40), at=rng.randint(0, 8), **extra)
        for i in range(count)
    ]


def check(jobs: list[Job], tree: bool = False, kind: str = "dense", right: float = 0.7, **drive) -> list[Outcome]:
    """Run with a drafter that is often right; the tokens must be those of each job alone without one."""
    want = alone(jobs, kind)
    drafter = Knowing(want, right, tree=tree)
    limits = replace(FULL, tree=24) if tree else FULL
    outcomes = Drive(kind, drafter=drafter, drafts=limits, **drive).run(jobs)
    for uid, outcome in enumerate(outcomes):
        full = want[uid] if jobs[uid].leaves_at is None else want[uid][: len(outcome.tokens)]
        assert outcome.tokens == full, f"request {uid}: speculation changed the answer"
    return outcomes


def accepted(outcomes: list[Outcome]) -> int:
    return sum(sum(outcome.timings.accepted) for outcome in outcomes)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe"])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_greedy_is_greedy(kind: str, batch: int, tree: bool) -> None:
    jobs = jobs_with_images(batch, 4, ending=Ending(24))
    outcomes = check(jobs, tree, kind, slots=batch)
    assert accepted(outcomes) > 20, "nothing was accepted, so the test shows nothing"
    drafted = sum(outcome.timings.drafted for outcome in outcomes)
    assert drafted > accepted(outcomes) + 10, "nothing was rejected"


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_images_early_late_twice_and_after_long_text(tree: bool) -> None:
    from foveate.prompt.layout import lay_out
    from tests.support.harness import Patch
    from tests.support.tiny import IMAGE_PAD, VISION_END, VISION_START

    one, two = Patch("one", (6, 4), 1), Patch("two", (2, 8), 2)
    text = [random.Random(5).randrange(256) for _ in range(150)]
    mark = [VISION_START, IMAGE_PAD, VISION_END]
    shapes = [
        (mark + text[:20], (one,)),
        (text[:20] + mark, (one,)),
        (text[:5] + mark + text[5:9] + mark + text[9:12], (one, one)),
        (text + mark + text[:3] + mark, (one, two)),
    ]
    jobs = [Job(lay_out(ids, IMAGE_PAD, pictures, 2), pictures, ending=Ending(20)) for ids, pictures in shapes]
    assert accepted(check(jobs, tree)) > 20
    assert accepted(check(jobs, tree, slots=1)) > 20
    assert accepted(check(jobs, tree, landing=late(3), step_tokens=40, mixed_tokens=16)) > 20


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_under_pressure(tree: bool) -> None:
    jobs = jobs_with_images(9, 6, ending=Ending(30))
    outcomes = check(jobs, tree, pages=30, step_tokens=32, mixed_tokens=16)
    assert sum(outcome.preemptions for outcome in outcomes) > 0 and accepted(outcomes) > 20


@pytest.mark.parametrize("step", [3, 6, 9, 14])
def test_aborts_between(step: int) -> None:
    jobs = [replace(job, at=0) for job in jobs_with_images(11, 4, ending=Ending(24))]
    for leaver in range(4):
        left = [replace(job, leaves_at=step) if uid == leaver else job for uid, job in enumerate(jobs)]
        check(left, tree=leaver % 2 == 0, pages=40)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_sampled_answers_are_the_very_same(tree: bool) -> None:
    jobs = [replace(job, sampling=replace(SAMPLED, seed=i)) for i, job in enumerate(jobs_with_images(13, 5))]
    assert accepted(check(jobs, tree)) > 10


def test_stop_ids_and_lengths_cut_bursts() -> None:
    """A stop id in the middle of an accepted burst ends the answer there; min_new forbids it until its time."""
    base = jobs_with_images(17, 3, ending=Ending(24))
    jobs = []
    for job, tokens in zip(base, alone(base), strict=True):
        stop = frozenset([tokens[7]])
        jobs += [replace(job, ending=Ending(24, stop)), replace(job, ending=Ending(24, stop, 10))]
        jobs += [replace(job, ending=Ending(count)) for count in (1, 2, 9)]
    outcomes = check(jobs, right=0.95)
    assert any(outcome.end.reason == "stop" for outcome in outcomes if hasattr(outcome.end, "reason"))


def test_logprobs_of_accepted_tokens() -> None:
    from foveate.core.values import Output

    job = make_job(77, 1, 20, sampling=replace(SAMPLED, temperature=0.0), ending=Ending(20))
    want = alone([job])
    got = []
    for drafter in (None, Knowing(want, 0.9)):
        drive = Drive(drafter=drafter, drafts=FULL if drafter else None)
        seen, publish = [], drive._publish
        drive._publish = lambda events, outcomes, seen=seen, publish=publish: (
            seen.extend(one for event in events if isinstance(event, Output) for one in event.logprobs),
            publish(events, outcomes),
        )
        assert drive.run([job])[0].tokens == want[0]
        got.append(seen)
    assert [one.token for one in got[0]] == [one.token for one in got[1]] == want[0]
    for one, two in zip(*got, strict=True):
        assert one.logprob == pytest.approx(two.logprob, abs=1e-4)
        assert [token for token, _ in one.top] == [token for token, _ in two.top]


def test_ngram_lookup() -> None:
    jobs = jobs_with_images(19, 4, ending=Ending(40))
    # A tiny random model falls into loops soon, which is what an n-gram drafter lives on.
    outcomes = Drive(drafter=NgramDrafter(), drafts=DraftLimits(8, lookback=8192)).run(jobs)
    assert [outcome.tokens for outcome in outcomes] == alone(jobs)


def test_numbers_add_up() -> None:
    job = make_job(78, 1, 20, ending=Ending(40))
    timings = check([job], right=1.0)[0].timings
    assert 1 + timings.decode_steps + sum(timings.accepted) == 40
    assert timings.tokens_per_step == pytest.approx(39 / timings.decode_steps) and timings.tokens_per_step > 2
    assert list(timings.accepted) == sorted(timings.accepted, reverse=True)
