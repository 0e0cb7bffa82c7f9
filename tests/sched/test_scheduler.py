"""Whose turn it is: tokens, images and memory, one small story each."""

from __future__ import annotations

from foveate.core.errors import EncodeFailed, InvalidImage
from foveate.core.values import Failed, Finished, Output
from tests.sched.made import Rig, decoding, taken

# --- tokens ---


def test_several_prompts_share_a_step_oldest_first() -> None:
    rig = Rig(step_tokens=10)
    for uid, length in ((1, 4), (2, 3), (3, 8)):
        rig.submit(uid, length)
    assert taken(rig.step()) == {1: 4, 2: 3, 3: 3}


def test_decode_comes_first_and_prompts_get_at_most_the_mixed_share() -> None:
    rig = Rig(step_tokens=10, mixed_tokens=5)
    decoding(rig, 1, 2)
    rig.submit(3, 3)
    rig.submit(4, 40)
    assert taken(rig.step()) == {1: 1, 2: 1, 3: 3, 4: 2}
    assert taken(rig.step()) == {1: 1, 2: 1, 3: 1, 4: 5}
    for uid in (1, 2, 3):
        rig.scheduler.abort(uid)
    assert taken(rig.step()) == {4: 10}


def test_an_atomic_span_larger_than_what_decoding_leaves_has_its_turn() -> None:
    rig = Rig(step_tokens=10, mixed_tokens=3)
    decoding(rig, 1, 2)
    rig.submit(3, 2, ("a", 9), 2, atomic=True)
    assert taken(rig.step()) == {1: 1, 2: 1, 3: 2}
    rig.land("a")
    assert taken(rig.step()) == {3: 9, 1: 1}
    assert taken(rig.step()) == {1: 1, 2: 1, 3: 2}


def test_a_chunk_never_ends_inside_an_atomic_span() -> None:
    rig = Rig(step_tokens=6)
    rig.submit(1, 4, ("a", 4), 2, atomic=True)
    rig.step()
    rig.land("a")
    assert taken(rig.step()) == {1: 6}
    rig = Rig(step_tokens=6)
    rig.submit(2, 3, ("a", 4), 3, atomic=True)
    rig.submit(1, 1, ("a", 4), 9, atomic=True)
    assert taken(rig.step()) == {2: 3, 1: 1}
    rig.land("a")
    assert taken(rig.step()) == {2: 6}  # the other one's image would not fit whole
    assert taken(rig.step()) == {2: 1, 1: 5}


def test_drafts_leave_their_tokens_to_other_decoders_and_to_prompts() -> None:
    rig = Rig(step_tokens=8, mixed_tokens=2)
    decoding(rig, 1, 2)
    for uid in (1, 2):
        rig.scheduler.propose(uid, (5,) * 9)
    plan = rig.plan()
    assert [(piece.uid, len(piece.tokens), piece.draft_len) for piece in plan.slices] == [(1, 7, 6), (2, 1, 0)]
    rig.commit(plan)
    rig.submit(3, 9)
    rig.step()
    for uid in (1, 2):
        rig.scheduler.propose(uid, (5,) * 9)
    assert taken(rig.plan()) == {1: 5, 2: 1, 3: 2}


def test_accepted_drafts_come_out_as_one_burst() -> None:
    rig = Rig()
    decoding(rig, 1)
    rig.scheduler.propose(1, (5, 6, 8))
    plan = rig.plan()
    assert plan.slices[0].tokens == (7, 5, 6, 8)
    assert rig.commit(plan, 5, 6, 1) == [Output(1, (5, 6, 1))]
    plan = rig.plan()
    assert (plan.slices[0].start_at, plan.slices[0].tokens) == (4 + 3, (1,))


def test_proposals_for_strangers_are_ignored() -> None:
    rig = Rig()
    rig.submit(1, 4)
    rig.scheduler.propose(1, (5,))
    rig.scheduler.propose(2, (5,))
    assert taken(rig.step()) == {1: 4}


# --- images ---


def test_prefill_goes_up_to_the_first_late_image_and_on_when_it_lands() -> None:
    rig = Rig()
    rig.submit(1, 3, ("a", 4), 2, ("b", 4), 1)
    plan = rig.step()
    assert (plan.started, plan.encode, taken(plan)) == ((1,), ("a", "b"), {1: 3})
    assert taken(rig.step()) == {}
    rig.land("b")
    assert taken(rig.step()) == {}
    rig.land("a")
    assert taken(rig.step()) == {1: 11}


def test_without_streaming_a_request_waits_for_all_its_images() -> None:
    rig = Rig(stream=False)
    rig.submit(1, 3, ("a", 4), 2, ("b", 4), 1)
    assert taken(rig.step()) == {}
    rig.land("a")
    assert taken(rig.step()) == {}
    rig.land("b")
    assert taken(rig.step()) == {1: 14}


def test_others_fill_the_step_while_one_waits_for_its_image() -> None:
    rig = Rig()
    rig.submit(1, ("a", 4), 1)
    rig.submit(2, 5)
    assert taken(rig.step()) == {2: 5}


def test_images_of_the_line_are_encoded_when_the_encoder_would_idle() -> None:
    rig = Rig(slots=1)
    rig.submit(1, 4)
    rig.submit(2, 4, ("x", 3), 1)
    plan = rig.step()
    assert (plan.started, plan.encode) == ((1,), ("x",))


def test_a_failed_image_fails_whoever_needs_it_and_nobody_else() -> None:
    rig = Rig(slots=2)
    rig.submit(1, 3, ("a", 4), 1)
    rig.submit(2, 3, ("b", 4), 1)
    rig.submit(3, 3, ("a", 4), 1)
    rig.step()
    events = rig.scheduler.lost("a", OSError("secret path"), rig.now)
    assert [event.uid for event in events] == [1, 3]
    assert all(
        isinstance(e, Failed) and isinstance(e.error, EncodeFailed) and "secret" not in str(e.error) for e in events
    )
    assert rig.scheduler.lost("a", OSError(), rig.now) == []
    rig.land("b")
    assert taken(rig.step()) == {2: 5}


def test_an_error_of_ours_reaches_the_request_as_it_is() -> None:
    rig = Rig()
    rig.submit(1, ("a", 4), 1)
    rig.step()
    error = InvalidImage("a truncated picture")
    assert rig.scheduler.lost("a", error, rig.now) == [Failed(1, error)]


def test_a_lost_image_does_not_hurt_a_request_that_is_past_it() -> None:
    """Its rows were given up after use, and are wanted again by another request."""
    rig = Rig(image_rows=4)
    rig.submit(1, ("a", 4), 1, max_new=50)
    rig.step()
    rig.land("a")
    rig.step()
    rig.submit(2, ("b", 4), 1)
    plan = rig.step()
    assert (plan.encode, plan.drop) == (("b",), ("a",))
    rig.land("b")
    rig.step()
    rig.submit(3, ("a", 4), 1)
    assert rig.step().encode == ("a",)
    assert [event.uid for event in rig.scheduler.lost("a", OSError(), rig.now)] == [3]
    assert 1 in taken(rig.step())


def test_a_failure_during_a_step_keeps_its_memory_until_the_step_is_over() -> None:
    rig = Rig()
    rig.submit(1, 5, ("a", 4), 1)
    plan = rig.plan()
    assert [event.uid for event in rig.scheduler.lost("a", OSError(), rig.now)] == [1]
    assert rig.scheduler.stats().leased_pages == 2 and rig.scheduler.busy
    assert rig.commit(plan) == []
    assert rig.scheduler.stats().leased_pages == 0


# --- memory ---


def test_the_newest_is_preempted_and_comes_back_first_with_its_output() -> None:
    rig = Rig(pages=4, page_len=4, slots=3)
    rig.submit(1, 7, max_new=9)
    rig.submit(2, 3, max_new=9)
    rig.submit(3, 1, max_new=4)
    assert rig.step().started == (1, 2)  # the third would leave no page to grow into
    assert taken(rig.step()) == {1: 1, 2: 1}
    plan = rig.step()
    assert (taken(plan), rig.scheduler.stats().preemptions) == ({1: 1}, 1)
    while not plan.started:
        plan = rig.step()
    back = plan.slices[0]
    assert (plan.started, back.uid, back.start_at, back.tokens[:3]) == ((2, 3), 2, 0, (0, 1, 2))
    assert len(back.tokens) > 3 and back.draw is not None and back.draw.index == len(back.tokens) - 3
    while rig.scheduler.busy:
        rig.step()
    ends = {event.uid: event for event in rig.events if isinstance(event, Finished)}
    assert {uid: (end.reason, end.timings.preemptions) for uid, end in ends.items()} == {
        1: ("length", 0),
        2: ("length", 1),
        3: ("length", 0),
    }
    assert sum(len(e.tokens) for e in rig.events if isinstance(e, Output) and e.uid == 2) == 9


def test_a_draft_takes_no_page_that_another_request_lacks() -> None:
    for pages, length in ((4, 4), (5, 8), (6, 11)):  # at last all that the answer has room for
        rig = Rig(pages=pages, page_len=4)
        for uid in (1, 2):
            rig.submit(uid, 3, max_new=13)
        rig.step()
        rig.step()  # both at the end of their first page, each about to take its second
        rig.scheduler.propose(1, (5,) * 20)
        assert taken(rig.plan()) == {1: length, 2: 1}


def test_preempted_image_requests_keep_their_rows_while_there_is_room() -> None:
    """B33: rows are kept or encoded again; either way the request continues."""
    for image_rows, encoded_again in ((8, False), (4, True)):
        rig = Rig(pages=6, page_len=4, image_rows=image_rows)
        rig.submit(1, 7, max_new=13)
        rig.submit(2, ("a", 3), 1, max_new=12)
        rig.step()
        rig.land("a")
        while not rig.scheduler.stats().preemptions:
            rig.step()
        rig.submit(3, ("b", 4), 1, max_new=1)  # small enough to start before the preempted one
        encoded: list[str] = []
        while rig.scheduler.busy:
            plan = rig.step()
            encoded += plan.encode
            rig.land(*plan.encode)
        assert ("a" in encoded) == encoded_again
        assert sum(len(e.tokens) for e in rig.events if isinstance(e, Output) and e.uid == 2) == 12


def test_a_small_request_may_start_beside_a_blocked_large_one_but_not_for_ever() -> None:
    rig = Rig(pages=10, page_len=4, slots=4, bypass=2)
    rig.submit(1, 20, max_new=8)
    rig.step()
    rig.submit(2, 30, max_new=8)
    for uid in range(3, 9):
        rig.submit(uid, 2, max_new=1)
    order = [uid for _ in range(40) for uid in rig.step().started]
    assert order == [3, 4, 2, 5, 6, 7, 8]
