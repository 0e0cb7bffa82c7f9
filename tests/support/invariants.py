"""The equivalences of the design, each one function; each failure names the likely cause.

Owns what "the same answer" means. A greedy token may differ only where the two best logits are closer than float
rounding can tell, which the tiny models avoid; so every comparison is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tests.support.harness import Drive, Job, Landing, Outcome, at_once, late


def _tokens(outcomes: Sequence[Outcome]) -> list[list[int]]:
    return [outcome.tokens for outcome in outcomes]


def alone(jobs: Sequence[Job], kind: str = "dense") -> list[list[int]]:
    """The reference: each job by itself, everything roomy, images ready at once."""
    return [list(_alone(Job(job.prompt, job.pictures, job.sampling, job.ending), kind)) for job in jobs]


@cache
def _alone(job: Job, kind: str) -> tuple[int, ...]:
    return tuple(Drive(kind).run([job])[0].tokens)


def chunked_is_whole(jobs: Sequence[Job], step_tokens: int, kind: str = "dense") -> None:
    got = _tokens([Drive(kind, step_tokens=step_tokens, mixed_tokens=step_tokens).run([job])[0] for job in jobs])
    assert got == alone(jobs, kind), (
        f"chunks of {step_tokens}: state, positions or image rows are cut at the wrong token"
    )


def batched_is_alone(jobs: Sequence[Job], kind: str = "dense", **limits: object) -> None:
    got = _tokens(Drive(kind, **limits).run(jobs))
    assert got == alone(jobs, kind), "a request read another's pages, state slot, positions or image rows"


def late_is_ready(jobs: Sequence[Job], landing: Landing, kind: str = "dense", **limits: object) -> None:
    got = _tokens(Drive(kind, landing=landing, **limits).run(jobs))
    assert got == alone(jobs, kind), "prefill passed an image that had not landed, or took rows of another"


def streamed_is_sequential(jobs: Sequence[Job], seed: int, kind: str = "dense") -> None:
    streamed = _tokens(Drive(kind, landing=late(seed)).run(jobs))
    sequential = _tokens(Drive(kind, landing=late(seed), stream=False).run(jobs))
    assert streamed == sequential, "the frontier changes the answer"


def preempted_is_undisturbed(jobs: Sequence[Job], pages: int, kind: str = "dense", landing: Landing = at_once) -> int:
    """Returns how often someone was preempted, so that the test can insist that it happened."""
    outcomes = Drive(kind, pages=pages, landing=landing).run(jobs)
    assert _tokens(outcomes) == alone(jobs, kind), "recompute lost output, image rows, positions or state"
    return sum(outcome.preemptions for outcome in outcomes)


def abort_leaves_the_rest(jobs: Sequence[Job], leaver: int, step: int, kind: str = "dense", **limits: object) -> None:
    """`Drive.run` itself asserts that the pools are whole."""
    from dataclasses import replace

    left = [replace(job, leaves_at=step) if uid == leaver else job for uid, job in enumerate(jobs)]
    outcomes = Drive(kind, landing=late(step), **limits).run(left)
    want = alone(jobs, kind)
    for uid, outcome in enumerate(outcomes):
        expected = want[uid][: len(outcome.tokens)] if uid == leaver else want[uid]
        assert outcome.tokens == expected, f"request {uid} was changed by the leaving of {leaver}"
        assert outcome.end is not None, f"request {uid} has no end"
