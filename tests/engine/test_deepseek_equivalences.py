"""DeepSeek V4 with images: answers never depend on chunks, batches, late images, pressure or other people's leaving."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from foveate.core.errors import ContextLengthExceeded
from foveate.core.values import Ending, Failed, Sampling
from foveate.sched.admission import refuse_what_never_fits
from tests.models.v4_naive import Naive, Prompt
from tests.support import invariants
from tests.support.harness import ROOMY, Drive, Job, late, tiny
from tests.support.tiny_v4 import tiny_v4_config, tiny_v4_tensors
from tests.support.v4_jobs import PLACEHOLDER, make_v4_job, v4_job

KIND = "v4_vision"
LARGEST = 45  # tokens of a block at most, as the tiny config has it


def workload(seed: int, count: int, **extra: Any) -> list[Job]:
    rng = random.Random(seed)
    return [
        make_v4_job(100 * seed + i, rng.choice([0, 1, 1, 2, 4]), rng.randint(6, 40), at=rng.randint(0, 6), **extra)
        for i in range(count)
    ]


def test_tokens_equal_the_description() -> None:
    """Pixels to greedy token, against tower rows placed by hand in the slow text model."""
    job = make_v4_job(1, 2, 14, ending=Ending(3))
    tower, prompt = tiny(KIND)[1], Prompt(list(job.prompt.tokens))
    for span, picture in zip(job.prompt.spans, job.pictures, strict=True):
        rows = tower.encode([picture.pixels()])[0]
        prompt.rows |= {span.start_at + i: row for i, row in enumerate(rows)}
        prompt.blocks.append((span.start_at, span.end_at))
    naive, want = Naive(tiny_v4_tensors(KIND), tiny_v4_config(KIND)), list[int]()
    for _ in range(3):
        want.append(int(naive.logits(prompt)[-1].argmax()))
        prompt.ids.append(want[-1])
    assert Drive(KIND).run([job])[0].tokens == want


@pytest.mark.parametrize("size", [LARGEST, 50, 64])
def test_chunked_is_whole(size: int) -> None:
    invariants.chunked_is_whole([make_v4_job(1, 0), make_v4_job(2, 1), make_v4_job(3, 4)], size, KIND)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_text_is_cut_anywhere(size: int) -> None:
    invariants.chunked_is_whole([make_v4_job(1, 0), make_v4_job(9, 0, 40)], size, KIND)


def test_blocks_are_never_split() -> None:
    drive = Drive(KIND, step_tokens=48, mixed_tokens=20, slots=3)
    drive.run(workload(5, 6))
    seen = 0
    for plan in drive.plans:
        for piece in plan.slices:
            for span in piece.spans:
                assert piece.start_at <= span.start_at and span.end_at <= piece.end_at
                seen += 1
    assert seen > 6


def test_chunked_is_whole_with_sixteen_images() -> None:
    invariants.chunked_is_whole([make_v4_job(4, 16, 60)], 64, KIND)


def test_batched_is_alone() -> None:
    invariants.batched_is_alone(workload(5, 6), KIND)
    invariants.batched_is_alone(workload(6, 8), KIND, slots=3, step_tokens=48, mixed_tokens=10)


def test_sampled_and_penalised_answers_do_not_depend_on_the_batch_either() -> None:
    """Penalties count neither a block's tokens nor the pads before it."""
    wish = Sampling(temperature=0.9, top_p=0.95, presence_penalty=0.3, repetition_penalty=1.1)
    sampled = [make_v4_job(70 + i, i % 3, 20, sampling=wish) for i in range(5)]
    invariants.batched_is_alone(sampled, KIND, step_tokens=48, mixed_tokens=10, slots=2)


@pytest.mark.parametrize("seed", range(3))
def test_late_images_in_any_order(seed: int) -> None:
    invariants.late_is_ready(workload(10 + seed, 4), late(seed), KIND, encode_ahead=4)


@pytest.mark.parametrize("images", [1, 2, 16])
def test_streamed_is_sequential(images: int) -> None:
    invariants.streamed_is_sequential([make_v4_job(20, images, 40), make_v4_job(21, 1)], images, KIND)


def test_preempted_is_undisturbed() -> None:
    jobs = workload(30, 5, ending=Ending(30))
    assert invariants.preempted_is_undisturbed(jobs, pages=34, kind=KIND) > 0
    assert invariants.preempted_is_undisturbed(jobs, pages=34, kind=KIND, landing=late(3)) > 0


def test_preempted_with_short_row_room_encodes_again() -> None:
    jobs = [make_v4_job(40 + i, 2, 24, ending=Ending(40)) for i in range(5)]
    drive = Drive(KIND, pages=34, image_rows=60, landing=late(1))
    outcomes = drive.run(jobs)
    assert [outcome.tokens for outcome in outcomes] == invariants.alone(jobs, KIND)
    assert sum(outcome.preemptions for outcome in outcomes) > 0
    assert drive.encodes > 10, "nothing was encoded again, so the test shows nothing"


@pytest.mark.parametrize("step", [0, 1, 3, 8, 21])
def test_abort_at_any_step(step: int) -> None:
    jobs = [make_v4_job(50 + i, i % 3, 24) for i in range(3)]
    for leaver in range(3):
        invariants.abort_leaves_the_rest(jobs, leaver, step, KIND, step_tokens=48, mixed_tokens=16)


def test_a_shared_picture_is_encoded_once_wherever_it_stands() -> None:
    """The same picture behind texts of other lengths has other pads before it and the same rows."""
    pictures = make_v4_job(60, 2).pictures
    jobs = [v4_job([20] * n + [PLACEHOLDER, 30, PLACEHOLDER, 40], pictures) for n in (3, 4, 5, 6)]
    assert {job.prompt.spans[0].lead_len for job in jobs} == {0, 1, 2, 3}
    drive = Drive(KIND, landing=late(2))
    outcomes = drive.run(jobs)
    assert [outcome.tokens for outcome in outcomes] == invariants.alone(jobs, KIND)
    assert drive.encodes == 2


def test_prefill_stops_at_the_first_image_that_is_not_there() -> None:
    job = make_v4_job(61, 3, 30)
    spans = job.prompt.spans
    lands = {5: spans[0].key, 11: spans[1].key, 17: spans[2].key}
    drive = Drive(KIND, landing=lambda step, submitted: [k for s, k in lands.items() if s == step and k in submitted])
    assert drive.run([job])[0].tokens == invariants.alone([job], KIND)[0]
    for span, last in zip(spans, (5, 11, 17), strict=True):
        ends = [piece.end_at for plan in drive.plans[:last] for piece in plan.slices]
        assert max(ends) == span.start_at, "up to the image, its pads among what is run ahead"


def test_decoders_go_on_while_blocks_larger_than_their_share_prefill() -> None:
    talker = Job(make_v4_job(90, 0, 8).prompt, ending=Ending(40))
    viewers = [make_v4_job(91 + i, 2, 20, at=5 + i) for i in range(3)]
    assert min(max(span.rows for span in job.prompt.spans) for job in viewers) > 8
    drive = Drive(KIND, step_tokens=64, mixed_tokens=8)
    outcomes = drive.run([talker, *viewers])
    assert [outcome.tokens for outcome in outcomes] == invariants.alone([talker, *viewers], KIND)
    talks = [any(piece.uid == 0 for piece in plan.slices) for plan in drive.plans]
    assert talks[:40] == [True] * 40, "a token in every step"
    shared = [plan for plan in drive.plans[:40] if any(piece.spans for piece in plan.slices)]
    assert len(shared) >= 4, "and blocks in some of the same steps"


def test_a_block_larger_than_a_step_is_refused_at_the_door() -> None:
    job = make_v4_job(2, 1)
    rows = job.prompt.spans[0].rows
    limits = replace(ROOMY, step_tokens=rows - 1)
    with pytest.raises(ContextLengthExceeded, match=f"needs {rows} tokens in one step, but a step runs {rows - 1}"):
        refuse_what_never_fits(job.prompt, job.ending, limits)


def test_rows_that_are_not_finite_fail_their_own_request() -> None:
    jobs = [make_v4_job(80, 1, 20), make_v4_job(81, 1, 20), make_v4_job(82, 0, 20)]
    drive = Drive(KIND)
    tower = drive.tower

    class Sick:
        out_size = tower.out_size

        def encode(self, pixels: list[Any]) -> list[torch.Tensor]:
            rows = tower.encode(pixels)
            sick = np.array_equal(pixels[0], jobs[0].pictures[0].pixels())
            return [part * float("nan") if sick else part for part in rows]

    drive.tower = Sick()
    outcomes = drive.run(jobs)
    assert isinstance(outcomes[0].end, Failed)
    assert [outcome.tokens for outcome in outcomes[1:]] == invariants.alone(jobs[1:], KIND)
