"""Answers never depend on chunks, batches, late images, pressure or other people's leaving."""

from __future__ import annotations

import random

import pytest

from foveate.core.values import Ending, Sampling
from tests.support import invariants
from tests.support.harness import Drive, late, make_job

KINDS = ["dense", "dense_tied", "moe"]


def workload(seed: int, count: int, **extra) -> list:
    rng = random.Random(seed)
    return [
        make_job(100 * seed + i, rng.choice([0, 1, 1, 2, 4]), rng.randint(6, 40), at=rng.randint(0, 6), **extra)
        for i in range(count)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3, 7, 64])
def test_chunked_is_whole(kind: str, size: int) -> None:
    invariants.chunked_is_whole([make_job(1, 0), make_job(2, 1), make_job(3, 4)], size, kind)


def test_chunked_is_whole_with_sixteen_images() -> None:
    for size in (7, 64):
        invariants.chunked_is_whole([make_job(4, 16, 60)], size)


@pytest.mark.parametrize("kind", KINDS)
def test_batched_is_alone(kind: str) -> None:
    invariants.batched_is_alone(workload(5, 8), kind)
    invariants.batched_is_alone(workload(6, 12), kind, slots=3, step_tokens=24, mixed_tokens=10)


def test_sampled_answers_do_not_depend_on_the_batch_either() -> None:
    sampled = [
        make_job(70 + i, i % 3, 20, sampling=Sampling(temperature=0.9, top_p=0.95, seed=i, presence_penalty=0.3))
        for i in range(6)
    ]
    invariants.batched_is_alone(sampled)
    invariants.batched_is_alone(sampled, step_tokens=16, mixed_tokens=8, slots=2)


@pytest.mark.parametrize("seed", range(6))
def test_late_images_in_any_order(seed: int) -> None:
    invariants.late_is_ready(workload(10 + seed, 5), late(seed), encode_ahead=4)


@pytest.mark.parametrize("images", [1, 2, 4, 16])
def test_streamed_is_sequential(images: int) -> None:
    invariants.streamed_is_sequential([make_job(20, images, 40), make_job(21, 1)], images)


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_is_undisturbed(kind: str) -> None:
    jobs = workload(30, 6, ending=Ending(30))
    assert invariants.preempted_is_undisturbed(jobs, pages=26, kind=kind) > 0
    assert invariants.preempted_is_undisturbed(jobs, pages=26, kind=kind, landing=late(3)) > 0


def test_preempted_with_short_row_room_encodes_again() -> None:
    jobs = [make_job(40 + i, 2, 24, ending=Ending(40)) for i in range(6)]
    drive = Drive(pages=30, image_rows=40, landing=late(1))
    outcomes = drive.run(jobs)
    assert [outcome.tokens for outcome in outcomes] == invariants.alone(jobs)
    assert sum(outcome.preemptions for outcome in outcomes) > 0
    assert drive.encodes > 12, "nothing was encoded again, so the test shows nothing"


@pytest.mark.parametrize("step", [0, 1, 2, 3, 5, 8, 13, 21])
def test_abort_at_any_step(step: int) -> None:
    jobs = [make_job(50 + i, i % 4, 24) for i in range(4)]
    for leaver in range(4):
        invariants.abort_leaves_the_rest(jobs, leaver, step, step_tokens=24, mixed_tokens=16)


def test_a_shared_picture_is_encoded_once() -> None:
    job = make_job(60, 2)
    drive = Drive(landing=late(2))
    outcomes = drive.run([job, job, job])
    assert outcomes[0].tokens == outcomes[1].tokens == outcomes[2].tokens == invariants.alone([job])[0]
    assert drive.encodes == 2


def test_prefill_stops_at_the_first_image_that_is_not_there() -> None:
    """The signature: while image 2 is out, image 1 and the text before image 2 are prefilled, nothing further."""
    job = make_job(61, 3, 30)
    spans = job.prompt.spans
    lands = {5: spans[0].key, 11: spans[1].key, 17: spans[2].key}
    drive = Drive(landing=lambda step, submitted: [key for s, key in lands.items() if s == step and key in submitted])
    drive.run([job])
    reached: dict[int, int] = {}
    for step, plan in enumerate(drive.plans):
        for piece in plan.slices:
            reached[step] = piece.end_at
    assert max(end for step, end in reached.items() if step < 5) == spans[0].start_at
    assert max(end for step, end in reached.items() if step < 11) == spans[1].start_at
    assert max(end for step, end in reached.items() if step < 17) == spans[2].start_at
