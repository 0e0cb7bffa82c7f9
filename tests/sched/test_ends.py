"""How requests end: finished, refused, aborted at any moment, or failed; once, and with everything given back."""

from __future__ import annotations

import pytest

from foveate.core.errors import Busy, ContextLengthExceeded, StepFailed
from foveate.core.plan import SliceResult, StepResult
from foveate.core.values import Failed, Finished, Output
from tests.sched.made import Rig, decoding, taken


def test_every_end_is_told_once_with_its_reason_and_times() -> None:
    rig = Rig(slots=1)
    rig.submit(1, 2, ("a", 3), 1, max_new=2)  # at 0
    rig.submit(2, 4, max_new=1)
    rig.step()  # planned at 1, committed at 2
    rig.now += 3
    rig.land("a")  # at 5
    rig.step()  # 6 to 7
    assert rig.events == [Output(1, (7,))]
    rig.step()  # 8 to 9
    end = rig.events[-1]
    assert isinstance(end, Finished) and (end.uid, end.reason) == (1, "length")
    times = end.timings
    assert (times.queued_s, times.prefill_s, times.waited_s) == (1.0, 2.0, 3.0)
    assert (times.first_token_s, times.generation_s, times.preemptions) == (7.0, 2.0, 0)
    assert [(one.key, one.rows, one.prefill_start_s, one.prefill_end_s) for one in times.images] == [("a", 3, 6.0, 7.0)]
    rig.step()
    assert isinstance(rig.events[-1], Finished) and rig.events[-1].timings.queued_s == 10.0
    rig.step()
    assert not rig.scheduler.busy


def test_an_abort_in_the_line_frees_its_place_at_once() -> None:
    """B38: of twenty that waited, the one that is left starts next."""
    rig = Rig(slots=1)
    for uid in range(21):
        rig.submit(uid, 4, max_new=1)
    rig.plan()
    for uid in range(1, 20):
        rig.scheduler.abort(uid)
    rig.scheduler.abort(0)
    rig.scheduler.abort(0)
    assert rig.scheduler.stats().waiting == 1


def test_an_abort_during_a_step_voids_its_result_and_frees_memory_after_it() -> None:
    """B36: one step at most, then slots and pages are back."""
    rig = Rig()
    decoding(rig, 1, 2)
    plan = rig.plan()
    rig.scheduler.abort(1)
    rig.scheduler.abort(1)
    assert rig.scheduler.stats().leased_slots == 2
    assert rig.commit(plan) == [Output(2, (7,))]
    assert rig.scheduler.stats().leased_slots == 1


def test_images_of_aborted_and_waiting_requests_hold_nothing_up() -> None:
    """B40: a hundred times encoded and aborted, the rows are back and the next request is served."""
    rig = Rig(image_rows=6, slots=1)
    for uid in range(100):
        rig.submit(uid, ("a" + str(uid), 6), 1)
        plan = rig.step()
        rig.land(*plan.encode)
        rig.scheduler.abort(uid)
    assert len(rig.step().drop) == 1 and not rig.scheduler.busy
    for uid in range(100, 104):
        rig.submit(uid, (f"b{uid}", 6), 1, max_new=1)
    while rig.scheduler.busy:
        rig.land(*rig.step().encode)
    assert sum(isinstance(event, Finished) for event in rig.events) == 4


def test_an_encode_nobody_waits_for_is_cancelled() -> None:
    rig = Rig()
    rig.submit(1, ("a", 4), 1)
    assert rig.step().encode == ("a",)
    rig.scheduler.abort(1)
    assert rig.scheduler.busy and rig.step().drop == ("a",) and not rig.scheduler.busy
    rig.land("a")
    assert rig.scheduler.busy and rig.step().drop == ("a",) and not rig.scheduler.busy


def test_abort_all_leaves_nothing() -> None:
    rig = Rig(slots=1)
    for uid in range(3):
        rig.submit(uid, 4, ("a", 3), 1)
    plan = rig.plan()
    assert rig.scheduler.abort_all() == (0, 1, 2)
    rig.commit(plan)
    rig.step()
    assert not rig.scheduler.busy and rig.scheduler.abort_all() == ()
    rig.scheduler.assert_whole()


def test_a_refused_request_leaves_no_trace() -> None:
    """B28, B44: what never fits does not enter the line, and the line says when it is full."""
    rig = Rig(slots=1, queue_requests=1, max_ctx=40)
    with pytest.raises(ContextLengthExceeded):
        rig.submit(1, ("a", 20), 15, max_new=6)
    assert not rig.scheduler.busy
    rig.submit(1, 4)
    rig.submit(2, 4)
    with pytest.raises(Busy) as caught:
        rig.submit(3, ("b", 4), 1)
    assert caught.value.retry_after_s >= 1
    assert rig.step().encode == () and rig.scheduler.stats().waiting == 1


def test_a_failed_step_fails_its_cohort_and_no_more() -> None:
    rig = Rig()
    decoding(rig, 1, 2, 3)
    rig.submit(4, ("a", 4), 1)
    plan = rig.plan()
    rig.scheduler.abort(3)
    events = rig.scheduler.fail(plan, RuntimeError("CUDA something"), rig.now)
    assert [event.uid for event in events] == [1, 2]
    assert all(isinstance(e, Failed) and isinstance(e.error, StepFailed) and "CUDA" not in str(e.error) for e in events)
    assert rig.scheduler.stats().leased_slots == 1
    rig.land("a")
    assert taken(rig.step()) == {4: 5}


def test_an_error_in_one_slice_fails_one_request() -> None:
    rig = Rig()
    decoding(rig, 1, 2)
    plan = rig.plan()
    result = StepResult(plan.number, (SliceResult(1, error=ValueError("x")), SliceResult(2, (7,))))
    failed, output = rig.scheduler.commit(plan, result, rig.now)
    assert isinstance(failed, Failed) and failed.uid == 1 and output == Output(2, (7,))


def test_a_result_that_does_not_answer_the_plan_changes_nothing() -> None:
    rig = Rig()
    rig.submit(1, 4)
    plan = rig.plan()
    good = SliceResult(1, (7,))
    for bad in (
        StepResult(plan.number + 1, (good,)),
        StepResult(plan.number, ()),
        StepResult(plan.number, (good, good)),
        StepResult(plan.number, (SliceResult(2, (7,)),)),
        StepResult(plan.number, (SliceResult(1, (7, 7)),)),
        StepResult(plan.number, (SliceResult(1),)),
    ):
        with pytest.raises(AssertionError):
            rig.scheduler.commit(plan, bad, rig.now)
    assert [event.uid for event in rig.scheduler.fail(plan, AssertionError(), rig.now)] == [1]
    rig.scheduler.assert_whole()


def test_one_plan_is_open_at_a_time_but_an_empty_one_needs_no_commit() -> None:
    rig = Rig()
    assert rig.plan().slices == () and rig.plan().slices == ()
    rig.submit(1, 4)
    rig.plan()
    with pytest.raises(AssertionError, match="still open"):
        rig.plan()
