"""The arithmetic of one request: cursor and frontier, drafts, the end of an answer, and where its time went."""

from __future__ import annotations

from itertools import pairwise

import pytest

from foveate.core.plan import Slice, SliceResult
from foveate.core.values import Ending, Logprob, Prompt, Sampling, Span, plain_positions
from foveate.sched.blocks import Pool
from foveate.sched.request import Account, Request
from tests.sched.made import GREEDY, PLACEHOLDER, made_request


def running(request: Request, pool: Pool | None = None) -> Request:
    """The request with more than enough memory."""
    request.lease = (pool or Pool(pages=50, slots=1, page_len=4)).lease()
    request.lease.grow(200)
    return request


def ran(request: Request, take: int, *tokens: int) -> tuple[tuple[int, ...], str | None]:
    piece = request.slice(take)
    logprobs = tuple(Logprob(token, 0.0) for token in tokens)
    kept, kept_logprobs, reason = request.advance(piece, SliceResult(request.uid, tokens, logprobs))
    assert [one.token for one in kept_logprobs] == list(kept)
    return kept, reason


@pytest.mark.parametrize(
    ("computed", "landed", "streamed", "whole"),
    [
        (0, "", 3, 0),  # up to the first image
        (3, "", 0, 0),
        (0, "a", 9, 0),  # up to the second one
        (0, "b", 3, 0),  # a later image alone is of no use
        (5, "a", 4, 0),
        (5, "", 0, 0),  # in the middle of rows that were given up
        (7, "", 2, 0),  # past the first image it is not asked for again
        (7, "b", 7, 7),
        (0, "ab", 14, 14),
        (12, "", 2, 2),
    ],
)
def test_wants_what_is_known_up_to_the_frontier(computed: int, landed: str, streamed: int, whole: int) -> None:
    request = made_request(3, ("a", 4), 2, ("b", 3), 2)
    request.computed = computed
    assert request.want(landed, stream=True) == streamed
    assert request.want(landed, stream=False) == whole


def test_atomic_spans_are_never_split_against_brute_force() -> None:
    for first in range(4):
        for gap in range(3):
            request = made_request(first, ("a", 3), gap, ("b", 2), 2, atomic=True)
            edges = [at for span in request.prompt.spans for at in range(span.start_at + 1, span.end_at)]
            for end_at in range(len(request.prompt.tokens) + 1):
                best = max(at for at in range(end_at + 1) if at not in edges)
                assert request.whole_spans(end_at) == best


def test_the_least_slice_is_one_token_or_an_atomic_span_at_the_cursor() -> None:
    request = made_request(2, ("a", 3), 2, atomic=True)
    assert [_least(request, at) for at in (0, 2, 5)] == [1, 3, 1]
    assert _least(made_request(2, ("a", 3), 2), 2) == 1


def _least(request: Request, computed: int) -> int:
    request.computed = computed
    return request.least_len()


def test_a_slice_holds_tokens_positions_spans_and_pages_of_its_window() -> None:
    request = running(made_request(3, ("a", 4), 2))
    request.computed = 2
    piece = request.slice(3)
    assert (piece.start_at, piece.end_at, piece.tokens) == (2, 5, (2, PLACEHOLDER, PLACEHOLDER))
    assert list(piece.positions[0]) == [2, 3, 4] and piece.spans == request.prompt.spans
    assert piece.draw is None and piece.draft_len == 0
    request.computed = 7
    assert request.slice(2).spans == () and request.slice(2).draw is not None and request.slice(1).draw is None


def test_tokens_of_every_window_are_those_of_the_whole() -> None:
    request = running(made_request(4, max_new=9))
    request.output = [50, 51, 52]
    request.draft = (60, 61)
    whole = (0, 1, 2, 3, 50, 51, 52, 60, 61)
    for start_at in range(7):  # the cursor never stands inside a draft
        for end_at in range(start_at + 1, 10):
            request.computed, request.draft = start_at, (60, 61)
            piece = request.slice(end_at - start_at)
            assert piece.tokens == whole[start_at:end_at]
            assert piece.draft_len == max(0, end_at - 7) == len(request.draft)


def test_a_draw_knows_its_place_and_gets_history_only_when_penalties_need_it() -> None:
    spans = (Span("a", 1, 2, (2, 4)),)
    prompt = Prompt((5, 99, 99, 99, 6), plain_positions(5), spans)  # the third 99 is a user's own text
    plain = running(Request(1, prompt, GREEDY, Ending(9, frozenset({3}), min_new=2), Account(0.0)))
    draw = plain.slice(5).draw
    assert draw is not None and (draw.index, draw.history, draw.forbidden) == (0, (), {3})
    penalised = running(Request(1, prompt, Sampling(repetition_penalty=1.2), Ending(9), Account(0.0)))
    penalised.output, penalised.computed = [8, 9], 6
    draw = penalised.slice(1).draw
    assert draw is not None and (draw.index, draw.output_len, draw.history) == (2, 2, (5, 99, 6, 8, 9))
    assert not draw.forbidden


def test_stop_ids_count_only_once_min_new_tokens_stand() -> None:
    ending = Ending(5, frozenset({3}), min_new=2)
    request = running(Request(1, made_request(2).prompt, GREEDY, ending, Account(0.0)))
    assert ran(request, 2, 3) == ((3,), None)
    assert ran(request, 1, 4) == ((4,), None)
    assert request.slice(1).draw is not None and not request.slice(1).draw.forbidden  # type: ignore[union-attr]
    assert ran(request, 1, 3) == ((3,), "stop")


def test_a_burst_is_cut_behind_a_stop_id_and_at_the_limit() -> None:
    request = running(Request(1, made_request(2).prompt, GREEDY, Ending(9, frozenset({3})), Account(0.0)))
    ran(request, 2, 1)
    request.propose((2, 3, 4))
    assert ran(request, 4, 2, 3, 4, 5) == ((2, 3), "stop")
    request = running(Request(1, made_request(2).prompt, GREEDY, Ending(3, frozenset({3})), Account(0.0)))
    ran(request, 2, 1)
    assert ran(request, 1, 2) == ((2,), None)
    assert ran(request, 1, 3) == ((3,), "stop")  # both at once: the model meant to stop


@pytest.mark.parametrize("accepted", range(4))
def test_the_cursor_moves_by_what_was_accepted(accepted: int) -> None:
    request = running(made_request(4))
    ran(request, 4, 10)
    assert (request.computed, request.decoding) == (4, True)
    request.propose((11, 12, 13))
    assert request.want((), True) == 4
    ran(request, 4, *(11, 12, 13, 14)[: accepted + 1])
    assert (request.computed, request.settled_len, request.draft) == (5 + accepted, 6 + accepted, ())
    assert request.decoding and request.want((), True) == 1


def test_a_draft_never_goes_beyond_the_answer_nor_across_min_new() -> None:
    request = running(Request(1, made_request(2).prompt, GREEDY, Ending(6, frozenset({3}), min_new=3), Account(0.0)))
    request.propose((1, 2))
    assert request.draft == ()  # nothing to draft on before the first token
    ran(request, 2, 1)
    request.propose((1,) * 9)
    assert len(request.draft) == 1  # draws number 1 and 2 may not stop, number 3 may
    ran(request, 2, 1, 1)
    request.propose((1,) * 9)
    assert len(request.draft) == 2  # with the token behind them the answer is full
    ran(request, 3, 1, 1)
    request.propose((1,) * 9)
    assert request.draft == () and request.want((), True) == 1


def test_rewind_keeps_the_output_and_runs_it_again() -> None:
    pool = Pool(pages=50, slots=1, page_len=4)
    request = running(made_request(4), pool)
    ran(request, 4, 10)
    ran(request, 1, 11)
    request.rewind()
    assert request.lease is None and (pool.free_pages, pool.free_slots) == (50, 1)
    assert (request.computed, request.output, request.account.preemptions) == (0, [10, 11], 1)
    piece = running(request).slice(6)
    assert piece.tokens == (0, 1, 2, 3, 10, 11) and piece.draw is not None and piece.draw.index == 2


def test_prefill_windows_span_from_the_first_to_the_last_step_of_an_image() -> None:
    request = running(made_request(3, ("a", 4), 1, ("b", 2), 2))
    account = request.account
    ends, clock = [2, 5, 7, 9, 12], 10.0
    for start_at, end_at in pairwise([0, *ends]):
        piece = Slice(1, start_at, (0,) * (end_at - start_at), (), (), 0)
        account.note_prefill(request.prompt.spans, piece, clock, clock + 1)
        clock += 2
    account.note_output(19.0)
    account.note_output(25.0)
    times = account.timings(request.prompt.spans)
    assert [(one.prefill_start_s, one.prefill_end_s) for one in times.images] == [(12.0, 15.0), (16.0, 19.0)]
    assert (times.prefill_s, times.first_token_s, times.generation_s) == (5.0, 19.0, 6.0)
    account.note_prefill(request.prompt.spans, Slice(1, 0, (0,) * 12, (), (), 0), 30.0, 31.0)  # after a preemption
    assert account.timings(request.prompt.spans).images == times.images


def test_queued_and_waited_seconds_add_up_over_several_stretches() -> None:
    account = Account(0.0)
    for start_s, end_s in ((0.0, 2.0), (10.0, 13.0)):
        account.note_queued(start_s, True)
        account.note_queued(end_s, False)
        account.note_stalled(end_s + 1, True)
        account.note_stalled(end_s + 2, True)
        account.note_stalled(end_s + 3, False)
    assert (account.queued_s, account.waited_s) == (5.0, 4.0)
