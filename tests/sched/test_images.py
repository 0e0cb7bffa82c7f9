"""Images: each key encoded once, in order of need, within the rows there are, and dropped when nobody needs it."""

from __future__ import annotations

from foveate.sched.images import Images, State
from foveate.sched.request import Request
from tests.sched.made import made_request


def made_images(*requests: Request, rows: int = 100, ahead: int = 2, stream: bool = True) -> Images:
    images = Images(rows, ahead, stream)
    for request in requests:
        images.hold(request)
    return images


def asked(images: Images, *running: Request, line: tuple[Request, ...] = ()) -> str:
    return " ".join(images.plan(list(running), line)[0])


def dropped(images: Images, *running: Request, line: tuple[Request, ...] = ()) -> str:
    return " ".join(images.plan(list(running), line)[1])


def encode_all(images: Images, *running: Request, line: tuple[Request, ...] = ()) -> list[str]:
    """The order in which keys are asked for when each lands at once."""
    order: list[str] = []
    while keys := images.plan(list(running), line)[0]:
        for key in keys:
            images.land(key)
        order += keys
    return order


def test_the_soonest_needed_image_of_every_request_comes_first_then_age() -> None:
    old = made_request(1, ("a", 1), ("b", 1), ("c", 1), 1, uid=1)
    young = made_request(1, ("x", 1), ("y", 1), 1, uid=2)
    assert encode_all(made_images(old, young, ahead=1), old, young) == ["a", "x", "b", "y", "c"]
    assert encode_all(made_images(old, young, ahead=9), old, young) == ["a", "x", "b", "y", "c"]


def test_waiting_for_whole_requests_takes_them_one_after_the_other() -> None:
    old = made_request(1, ("a", 1), ("b", 1), 1, uid=1)
    young = made_request(1, ("x", 1), 1, uid=2)
    assert encode_all(made_images(old, young, stream=False), old, young) == ["a", "b", "x"]


def test_an_image_that_prefill_has_passed_is_not_encoded_for_it() -> None:
    request = made_request(1, ("a", 2), ("b", 2), 1)
    request.computed = 3
    assert encode_all(made_images(request), request) == ["b"]


def test_equal_images_are_encoded_once() -> None:
    twice = made_request(1, ("a", 2), 1, ("a", 2), 1, uid=1)
    other = made_request(3, ("a", 2), ("b", 1), 1, uid=2)
    images = made_images(twice, other)
    assert encode_all(images, twice, other) == ["a", "b"]
    assert images.rows(State.LANDED) == 3


def test_only_so_many_are_outstanding() -> None:
    request = made_request(("a", 1), ("b", 1), ("c", 1), 1)
    images = made_images(request, ahead=2)
    assert asked(images, request) == "a b"
    assert asked(images, request) == ""
    images.land("b")
    assert asked(images, request) == "c"


def test_two_images_that_fit_but_not_together_follow_each_other() -> None:
    """B27: the second waits for the first to be used up, instead of both waiting for ever."""
    request = made_request(1, ("a", 6), ("b", 7), 1)
    images = made_images(request, rows=10)
    assert images.plan([request], ()) == (("a",), ())
    images.land("a")
    assert images.plan([request], ()) == ((), ())  # prefill can use the rows of the first now
    request.computed = 7
    assert images.plan([request], ()) == (("b",), ("a",))


def test_rows_kept_for_a_recompute_give_way_first_then_those_needed_last() -> None:
    done = made_request(1, ("p", 3), 9, uid=1)
    request = made_request(1, ("a", 4), ("b", 3), ("c", 3), 1, uid=2)
    images = made_images(done, request, rows=9, ahead=9)
    for key in "pbc":
        images._images[key].state = State.LANDED
        images.landed.add(key)
    done.computed = 9
    assert images.plan([done, request], ()) == (("a",), ("p", "c"))
    assert images.rows(State.LANDED) + images.rows(State.ENCODING) == 7


def test_nothing_smaller_overtakes_an_image_that_waits_for_room() -> None:
    big = made_request(1, ("a", 4), ("b", 8), 1, uid=1)
    small = made_request(1, ("x", 2), ("y", 3), ("z", 1), 1, uid=2)
    images = made_images(big, small, rows=10, ahead=1)
    assert encode_all(images, big, small) == ["a", "x"]  # y and z would fit, b is before them
    big.computed = 5
    assert images.plan([big, small], ()) == (("b",), ("a",))


def test_images_of_the_line_are_encoded_only_when_the_running_ones_have_theirs() -> None:
    running = made_request(1, ("a", 4), 1, uid=1)
    waiting = made_request(1, ("x", 4), ("y", 4), 1, uid=2)
    images = made_images(running, waiting, rows=8, ahead=2)
    assert encode_all(images, running, line=(waiting,)) == ["a", "x"]  # rows in use never give way to the line
    late = made_request(1, ("b", 4), 1, uid=3)
    images.hold(late)
    assert images.plan([running, late], (waiting,)) == (("b",), ("x",))  # but the line gives way
    images.land("b")
    assert asked(images, running, late, line=(waiting,)) == ""


def test_keys_without_a_request_are_dropped_with_the_next_plan_and_only_then() -> None:
    one, two = made_request(("a", 1), ("b", 1), 1, uid=1), made_request(("b", 1), ("c", 1), 1, uid=2)
    images = made_images(one, two)
    assert encode_all(images, one, two) == ["a", "b", "c"]
    images.release(one)
    assert images.has_leftovers and "a" in images.landed
    assert dropped(images, two) == "a" and not images.has_leftovers
    images.release(two)
    assert set(dropped(images).split()) == {"b", "c"} and images.is_empty


def test_a_request_that_comes_in_time_takes_over_the_rows() -> None:
    one, two = made_request(("a", 1), 1, uid=1), made_request(("a", 1), 1, uid=2)
    images = made_images(one)
    encode_all(images, one)
    images.release(one)
    images.hold(two)
    assert images.plan([two], ()) == ((), ()) and "a" in images.landed


def test_a_late_landing_is_dropped_again() -> None:
    request = made_request(("a", 1), 1)
    images = made_images(request)
    assert asked(images, request) == "a"
    images.release(request)
    assert dropped(images) == "a" and images.is_empty
    images.land("a")
    assert images.has_leftovers and "a" not in images.landed
    assert dropped(images) == "a" and images.is_empty


def test_a_late_landing_serves_whoever_asks_for_the_same_picture_meanwhile() -> None:
    one, two = made_request(("a", 4), 1, uid=1), made_request(("a", 4), 1, uid=2)
    images = made_images(one)
    assert asked(images, one) == "a"
    images.release(one)
    assert dropped(images) == "a"
    images.hold(two)
    images.land("a")
    assert "a" in images.landed and images.plan([two], ()) == ((), ())
    images.land("a")  # and once more is harmless
    assert images.rows(State.LANDED) == 4


def test_a_failure_counts_only_while_the_image_is_encoding() -> None:
    request = made_request(("a", 1), 1)
    images = made_images(request)
    assert not images.lose("a") and not images.lose("unknown")
    assert asked(images, request) == "a"
    assert images.lose("a")
    assert asked(images, request) == "a"  # whoever still refers to it later has it tried again
    images.land("a")
    assert not images.lose("a") and "a" in images.landed


def keeping(rows: int = 100) -> Images:
    return Images(rows, 2, stream=True, keep=True)


def shown(images: Images, *requests: Request) -> None:
    """All images of these requests land; then the requests end."""
    for request in requests:
        images.hold(request)
    encode_all(images, *requests)
    for request in requests:
        images.release(request)


def test_rows_are_kept_for_a_later_request_that_sends_the_picture_again() -> None:
    images = keeping()
    shown(images, made_request(1, ("a", 2), ("b", 3), 1, uid=1))
    assert images.has_leftovers and dropped(images) == "" and not images.has_leftovers
    assert images.is_empty and not images.landed and (images.kept_count, images.kept_rows) == (2, 5)
    again = made_request(1, ("b", 3), ("c", 1), 1, uid=2)
    images.hold(again)
    assert images.landed == {"b"} and asked(images, again) == "c"
    assert (images.kept_count, images.rows(State.LANDED)) == (1, 3)
    assert (images.lookups, images.hits) == (4, 1)


def test_kept_rows_give_way_to_any_image_longest_unused_first() -> None:
    images = keeping(rows=6)
    shown(images, made_request(1, ("a", 2), 1, uid=1))
    shown(images, made_request(1, ("b", 2), 1, uid=2))
    shown(images, made_request(1, ("a", 2), 1, uid=3))  # used again: younger than b now
    other = made_request(1, ("c", 3), 1, uid=4)
    images.hold(other)
    assert images.plan([other], ()) == (("c",), ("b",))
    assert images.kept_rows == 2 and images.rows(State.ENCODING) == 3


def test_rows_that_a_failed_request_used_are_not_kept_nor_those_under_way() -> None:
    images = keeping()
    failed = made_request(1, ("a", 1), 1, uid=1)
    images.hold(failed)
    encode_all(images, failed)
    images.doubt(failed)
    images.release(failed)
    gone = made_request(1, ("b", 1), 1, uid=2)
    images.hold(gone)
    assert images.plan([gone], ()) == (("b",), ("a",))
    images.release(gone)
    assert dropped(images) == "b" and not images.kept_count


def test_an_answer_that_comes_twice_leaves_kept_rows_alone_and_all_can_be_forgotten() -> None:
    images = keeping()
    shown(images, made_request(1, ("a", 1), 1, uid=1))
    assert dropped(images) == ""
    images.land("a")
    assert not images.has_leftovers and images.kept_count == 1
    images.forget_kept()
    assert images.has_leftovers and dropped(images) == "a" and not images.kept_count
