"""The door: what never fits is told so with numbers, what is too much for now is busy, and the line is fair."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foveate.core.errors import Busy, ContextLengthExceeded
from foveate.core.values import Ending
from foveate.sched.admission import WaitingLine, refuse_what_never_fits
from foveate.sched.request import Request
from tests.sched.made import made_limits, made_prompt, made_request


@pytest.mark.parametrize(
    ("limits", "numbers"),
    [
        ({"max_ctx": 29}, ("20 prompt tokens", "12 of them of images", "10 output", "make 30", "29")),
        ({"pages": 7}, ("20 prompt tokens", "make 30", "28")),
        ({"image_rows": 6}, ("image 2", "7 rows", "at most 6")),
        ({"step_tokens": 6}, ("image 2", "7 tokens", "runs 6")),
        ({"image_rows": 11, "stream": False}, ("12 rows together", "at most 11")),
    ],
)
def test_what_can_never_fit_is_refused_with_the_numbers(limits: dict[str, int], numbers: tuple[str, ...]) -> None:
    prompt = made_prompt(4, ("a", 5), ("b", 7), 4, atomic=True)
    with pytest.raises(ContextLengthExceeded) as caught:
        refuse_what_never_fits(prompt, Ending(10), made_limits(**limits))
    assert all(number in caught.value.message for number in numbers), caught.value.message


@pytest.mark.parametrize(
    "limits",
    [{"max_ctx": 30}, {"pages": 8}, {"image_rows": 7}, {"step_tokens": 7}, {"image_rows": 12, "stream": False}],
)
def test_what_just_fits_is_not_refused(limits: dict[str, int]) -> None:
    prompt = made_prompt(4, ("a", 5), ("b", 7), 4, atomic=True)
    refuse_what_never_fits(prompt, Ending(10), made_limits(**limits))


def test_the_same_picture_twice_counts_its_rows_once() -> None:
    prompt = made_prompt(("a", 5), 1, ("a", 5), 1)
    refuse_what_never_fits(prompt, Ending(1), made_limits(image_rows=5, stream=False))


def line_of(*requests: Request, **limits: int) -> WaitingLine:
    line = WaitingLine(made_limits(**limits))
    for request in requests:
        line.join(request)
    return line


def test_the_line_is_full_by_requests_rows_or_bytes() -> None:
    one = made_request(2, ("a", 5), 1)
    one.held_bytes = 50
    for limits, words in (
        ({"queue_requests": 1}, "1 requests"),
        ({"queue_image_rows": 9}, "5 image rows"),
        ({"queue_bytes": 99}, "50 bytes"),
    ):
        with pytest.raises(Busy, match=words):
            line_of(one, **limits).refuse_when_full(replace(one.prompt), 50, free_slots=0)
    line_of(one, queue_requests=2, queue_image_rows=10, queue_bytes=100).refuse_when_full(replace(one.prompt), 50, 0)


def test_choices_of_one_answer_do_not_stand_in_each_others_way() -> None:
    one = made_request(2, ("a", 5), 1)
    one.held_bytes = 50
    tight = {"queue_requests": 1, "queue_image_rows": 5, "queue_bytes": 50}
    line_of(one, one, one, **tight).refuse_when_full(one.prompt, 50, free_slots=0)
    with pytest.raises(Busy, match="5 image rows"):
        other = made_request(2, ("b", 5), 1)
        line_of(other, one, queue_requests=9, queue_image_rows=9).refuse_when_full(one.prompt, 50, free_slots=0)


def test_a_free_slot_is_not_a_wait_and_an_empty_line_takes_any_size() -> None:
    big = made_request(2, ("a", 50), 1)
    line_of(queue_requests=1, queue_image_rows=9, queue_bytes=1).refuse_when_full(big.prompt, 500, free_slots=0)
    line_of(made_request(1), queue_requests=0).refuse_when_full(made_prompt(1), 0, free_slots=2)
    with pytest.raises(Busy):
        line_of(made_request(1), made_request(1), queue_requests=0).refuse_when_full(made_prompt(1), 0, free_slots=2)


def test_the_retry_time_grows_with_the_line() -> None:
    line = line_of(*[made_request(1) for _ in range(20)], queue_requests=20, slots=4)
    with pytest.raises(Busy) as caught:
        line.refuse_when_full(made_prompt(1), 0, 0)
    assert caught.value.retry_after_s == 6


def test_small_requests_pass_a_blocked_one_only_so_often() -> None:
    large = made_request(50, uid=0)
    line = line_of(large, *[made_request(1, uid=uid) for uid in range(1, 6)], bypass=2)

    def small(request: Request) -> bool:
        return len(request.prompt.tokens) == 1

    assert [one.uid for one in (line.call(small), line.call(small)) if one] == [1, 2]
    assert line.call(small) is None and large.passed == 2
    assert line.call(lambda request: True) is large
    assert getattr(line.call(small), "uid", None) == 3


def test_first_come_first_served_and_the_preempted_before_all() -> None:
    first, second, third = (made_request(1, uid=uid) for uid in range(3))
    line = line_of(first, second)
    line.rejoin(third)
    line.leave(first)
    assert [line.call(lambda _: True), line.call(lambda _: True), line.call(lambda _: True)] == [third, second, None]
