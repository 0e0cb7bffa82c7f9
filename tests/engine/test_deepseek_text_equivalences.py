"""DeepSeek V4's text model in the engine: chunks, batches, pressure, leaving and guesses never change an answer."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from typing import Any

import pytest

from foveate.core.config import Settings
from foveate.core.values import Ending, Prompt, Sampling, plain_positions
from foveate.engine.build import draft_limits
from foveate.run.draft import NgramDrafter
from foveate.sched.speculate import DraftLimits
from tests.spec.guessing import Knowing
from tests.support import invariants
from tests.support.engines import answer_of, request, serving
from tests.support.harness import Drive, Job, Outcome, late, tiny
from tests.support.tiny_v4 import V4_KINDS, VOCAB
from tests.support.v4_jobs import make_v4_job

FULL = DraftLimits(draft_len=6, adaptive=False)


def text_job(seed: int, length: int, **extra: Any) -> Job:
    rng = random.Random(seed)
    ids = tuple(rng.randrange(VOCAB) for _ in range(length))
    return Job(Prompt(ids, plain_positions(length)), **extra)


def workload(seed: int, count: int, longest: int = 90, **extra: Any) -> list[Job]:
    rng = random.Random(seed)
    return [text_job(100 * seed + i, rng.randint(1, longest), at=rng.randint(0, 6), **extra) for i in range(count)]


@pytest.mark.parametrize("kind", V4_KINDS)
@pytest.mark.parametrize("size", [1, 3, 7, 64])
def test_chunked_is_whole(kind: str, size: int) -> None:
    invariants.chunked_is_whole([text_job(1, 2), text_job(2, 40), text_job(3, 150)], size, kind)


@pytest.mark.parametrize("kind", V4_KINDS)
def test_batched_is_alone(kind: str) -> None:
    invariants.batched_is_alone(workload(5, 6), kind)
    invariants.batched_is_alone(workload(6, 8), kind, slots=3, step_tokens=24, mixed_tokens=10)


def test_a_page_may_hold_less_than_a_window() -> None:
    """The released ratio of 128 on pages of 8 tokens, and of 48, which it does not divide."""
    jobs = [text_job(8, 140, ending=Ending(140)), text_job(9, 260)]
    invariants.batched_is_alone(jobs, "v4_official", step_tokens=50, mixed_tokens=20)
    invariants.batched_is_alone(jobs, "v4_official", page_len=48, pages=60)


def test_sampled_answers_do_not_depend_on_the_batch_either() -> None:
    wish = Sampling(temperature=0.9, top_p=0.95, presence_penalty=0.3)
    sampled = [text_job(70 + i, 20 + i, sampling=replace(wish, seed=i)) for i in range(5)]
    invariants.batched_is_alone(sampled, "v4", step_tokens=16, mixed_tokens=8, slots=2)


@pytest.mark.parametrize("kind", V4_KINDS)
def test_preempted_is_undisturbed(kind: str) -> None:
    jobs = workload(30, 5, 60, ending=Ending(40))
    assert invariants.preempted_is_undisturbed(jobs, pages=20, kind=kind) > 0


@pytest.mark.parametrize("step", [0, 1, 2, 5, 13])
def test_abort_at_any_step(step: int) -> None:
    jobs = [text_job(50 + i, 24 + i) for i in range(3)]
    for leaver in range(3):
        invariants.abort_leaves_the_rest(jobs, leaver, step, "v4", step_tokens=24, mixed_tokens=16)


def check(jobs: list[Job], kind: str, **drive: Any) -> list[Outcome]:
    """Run with a drafter that is often right; the tokens must be those of each job alone without one."""
    want = invariants.alone(jobs, kind)
    outcomes = Drive(kind, drafter=Knowing(want, 0.7), drafts=FULL, **drive).run(jobs)
    assert [outcome.tokens for outcome in outcomes] == want, "speculation changed the answer"
    accepted = sum(sum(outcome.timings.accepted) for outcome in outcomes)
    assert 20 < accepted < sum(outcome.timings.drafted for outcome in outcomes) - 10
    return outcomes


@pytest.mark.parametrize("kind", V4_KINDS)
@pytest.mark.parametrize("batch", [1, 4])
def test_guesses_change_nothing(kind: str, batch: int) -> None:
    check(workload(40 + batch, 4, ending=Ending(40)), kind, slots=batch)


def test_guesses_after_images_under_pressure() -> None:
    jobs = [make_v4_job(600 + i, i % 3, 20 + 5 * i, at=i, ending=Ending(30)) for i in range(5)]
    outcomes = check(jobs, "v4_vision", pages=34, step_tokens=64, mixed_tokens=48, landing=late(2))
    assert sum(outcome.preemptions for outcome in outcomes) > 0


def test_ngram_lookup_needs_nothing_of_the_model() -> None:
    jobs = workload(44, 3, 40, ending=Ending(40))
    outcomes = Drive("v4", drafter=NgramDrafter(), drafts=DraftLimits(8, lookback=8192)).run(jobs)
    assert [outcome.tokens for outcome in outcomes] == invariants.alone(jobs, "v4")


def test_trees_are_never_asked_of_it(caplog: pytest.LogCaptureFixture) -> None:
    model, wish = tiny("v4")[0], Settings(draft="ngram", draft_len=4, draft_tree=24)
    with caplog.at_level(logging.WARNING, logger="foveate.engine.build"):
        assert draft_limits(NgramDrafter(4), model.verifies_trees, wish).tree == 0
    assert "verifies chains only" in caplog.text
    assert draft_limits(NgramDrafter(4), tiny("dense")[0].verifies_trees, wish).tree == 24


@pytest.mark.parametrize("kind", V4_KINDS)
async def test_a_whole_engine_answers(kind: str) -> None:
    """Four conversations at once, guessed for by lookup, say what each says alone."""
    asked = [request(f"hi {i} " * (3 + 9 * i), max_tokens=24) for i in range(4)]
    async with serving(tiny(kind)[2], draft="none", max_concurrency=1) as service:
        want = [(await answer_of(service, one))[0] for one in asked]
    async with serving(tiny(kind)[2], draft="ngram", draft_tree=16, step_tokens=64) as service:
        got = await asyncio.gather(*(answer_of(service, one) for one in asked))
    assert [text for text, _ in got] == want and len(set(want)) > 1
