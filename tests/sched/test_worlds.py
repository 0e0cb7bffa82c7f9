"""The property test of the scheduler: random workloads give exactly the plain greedy answers, whatever happens.

`fakes.py` is the model and the oracle, `world.py` drives a workload. The second half plants faults, one at a time, and
sees that the same workloads notice each of them: a property test that cannot fail proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from foveate.sched.admission import WaitingLine
from foveate.sched.blocks import Lease, Pool
from foveate.sched.images import Images, State
from foveate.sched.request import Account, Request
from foveate.sched.scheduler import Scheduler, _Step
from tests.sched.world import run_world

WORLDS = 1500  # about three seconds of an idle core; a longer search is `for seed in range(...): run_world(seed)`
SEARCH = 1500  # a planted fault must show within so many worlds


def test_random_workloads_give_exactly_the_greedy_answers() -> None:
    happened: Counter[str] = Counter()
    for seed in range(WORLDS):
        try:
            happened.update(run_world(seed))
        except AssertionError as error:
            raise AssertionError(f"world {seed}: {error}") from error
    for what in (
        "stop",
        "length",
        "preemptions",
        "idle",
        "mixed",
        "waited",
        "drafted",
        "bursts",
        "evicted",
        "kept",
        "image hits",
        "aborts",
        "lost",
        "failed steps",
        "Busy",
        "ContextLengthExceeded",
    ):
        assert happened[what] > 50, f"the workloads hardly ever have: {what}"


# --- planted faults: name -> what is put in place of the right function ---


def frontier_ignores_landing(self: Request, landed: Any, stream: bool) -> int:
    return self.settled_len + len(self.draft) - self.computed


def frontier_lets_one_token_in(self: Request, landed: Any, stream: bool) -> int:
    late = next((span for span in self.spans_ahead() if span.key not in landed), None)
    end_at = self.settled_len + len(self.draft) if late is None else late.start_at + 1 if stream else 0
    return max(0, end_at - self.computed)


def rewind_keeps_the_cursor(self: Request) -> None:
    self.memory.release()
    self.lease, self.draft = None, ()
    self.account.preemptions += 1


def rewind_forgets_the_output(self: Request) -> None:
    RIGHT_REWIND(self)
    self.output.clear()


def bonus_counts_as_computed(self: Request, piece: Any, outcome: Any) -> Any:
    gave = RIGHT_ADVANCE(self, piece, outcome)
    self.computed += piece.draw is not None and piece.draft_len > 0
    return gave


def rejected_drafts_count_as_computed(self: Request, piece: Any, outcome: Any) -> Any:
    gave = RIGHT_ADVANCE(self, piece, outcome)
    if len(outcome.tokens) <= piece.draft_len:
        self.computed = min(piece.end_at, self.settled_len - 1) if piece.draft_len > 1 else self.computed - 1
    return gave


def tokens_after_a_stop_stay(self: Request, tokens: tuple[int, ...]) -> str | None:
    self.output += tokens
    if self.ending.stop_ids & set(tokens) and len(self.output) > self.ending.min_new:
        return "stop"
    return "length" if len(self.output) >= self.ending.max_new else None


def drafts_ignore_min_new(self: Request, tokens: tuple[int, ...], parents: tuple[int, ...]) -> None:
    self.draft = tokens[: self.ending.max_new - len(self.output) - 1] if self.decoding else ()


def a_page_is_lost(self: Pool, lease: Lease) -> None:
    if lease in self._leases:
        self._leases.remove(lease)
        self._free_pages.extend(lease.pages[1:])
        self._free_slots.append(lease.slot)


def a_page_goes_to_two(self: Pool) -> int:
    return self._free_pages.pop() if len(self._free_pages) % 5 else self._free_pages[-1]


def abort_frees_a_running_step(self: Scheduler, request: Request) -> None:
    RIGHT_FORGET(self, request)
    if request.lease is not None:
        request.lease.release()


def abort_forgets_the_images(self: Images, request: Request) -> None:
    return None


def rows_in_use_give_way(self: Images, running: list[Request]) -> set[str]:
    return set()


def rows_never_give_way(self: Images, rows: int, *others: Any) -> list[str] | None:
    return [] if self._free_rows() >= rows else None


def capacity_is_ignored(self: Images, rows: int, *others: Any) -> list[str] | None:
    return []


def evicted_rows_count_as_landed(self: Images, key: str) -> None:
    self._images[key].state = State.WANTED


def kept_rows_take_no_room(self: Images) -> int:
    return self._capacity_rows - self.rows(State.LANDED) - self.rows(State.ENCODING)


def kept_rows_are_dropped_too(self: Images) -> list[str]:
    kept_before = set(self._kept)
    return RIGHT_SWEEP(self) + [key for key in self._kept if key not in kept_before]


def late_landings_are_forgotten(self: Images, key: str) -> None:
    if key in self._images:
        RIGHT_LAND(self, key)


def lost_images_fail_nobody(self: Request, key: str) -> bool:
    return False


def lost_images_fail_everybody(self: Request, key: str) -> bool:
    return True


def spans_are_split(self: Request, end_at: int) -> int:
    return end_at


def prompts_use_the_whole_step(self: _Step, request: Request, take: int) -> None:
    self.takes[request.uid] = take
    self.token_len -= take


def nobody_is_preempted(self: Scheduler, request: Request, *others: Any) -> bool:
    return request.memory.missing(request.computed + request.least_len()) <= self._pool.free_pages


def stalls_never_end(self: Account, now: float, stalled: bool) -> None:
    self._stalled_since_s = self._stalled_since_s or (now if stalled else None)
    self.waited_s = now - self._stalled_since_s if self._stalled_since_s else 0.0


def the_line_stands_still(self: WaitingLine, fits: Any) -> Request | None:
    return self._line.pop(0) if self._line and self._line[0].passed == 0 and fits(self._line[0]) else None


RIGHT_REWIND, RIGHT_ADVANCE, RIGHT_FORGET = Request.rewind, Request.advance, Scheduler._forget
RIGHT_LAND, RIGHT_SWEEP = Images.land, Images._sweep

FAULTS: tuple[tuple[type, str, Callable[..., Any]], ...] = (
    (Request, "want", frontier_ignores_landing),
    (Request, "want", frontier_lets_one_token_in),
    (Request, "rewind", rewind_keeps_the_cursor),
    (Request, "rewind", rewind_forgets_the_output),
    (Request, "advance", bonus_counts_as_computed),
    (Request, "advance", rejected_drafts_count_as_computed),
    (Request, "_append", tokens_after_a_stop_stay),
    (Request, "propose", drafts_ignore_min_new),
    (Pool, "_take_back", a_page_is_lost),
    (Pool, "_take_page", a_page_goes_to_two),
    (Scheduler, "_forget", abort_frees_a_running_step),
    (Images, "release", abort_forgets_the_images),
    (Images, "_in_use", rows_in_use_give_way),
    (Images, "_room_for", rows_never_give_way),
    (Images, "_room_for", capacity_is_ignored),
    (Images, "_evict", evicted_rows_count_as_landed),
    (Images, "_free_rows", kept_rows_take_no_room),
    (Images, "_sweep", kept_rows_are_dropped_too),
    (Images, "land", late_landings_are_forgotten),
    (Request, "needs", lost_images_fail_nobody),
    (Request, "needs", lost_images_fail_everybody),
    (Request, "whole_spans", spans_are_split),
    (_Step, "give", prompts_use_the_whole_step),
    (Scheduler, "_make_room", nobody_is_preempted),
    (Account, "note_stalled", stalls_never_end),
)


@pytest.mark.parametrize(("owner", "name", "fault"), FAULTS, ids=[fault.__name__ for _, _, fault in FAULTS])
def test_a_planted_fault_is_noticed(
    owner: type, name: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    for seed in range(SEARCH):
        try:
            run_world(seed)
        except (AssertionError, IndexError, KeyError):
            return
    pytest.fail(f"{SEARCH} workloads did not notice: {fault.__name__}")
