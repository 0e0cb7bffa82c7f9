"""The engine's one thread: drain the mailbox, plan, execute, commit, publish, again.

Owns the composition of policy and mechanism and the promise that every request ends in exactly one terminal event:
the broad `except`s of the project stand here, around the step and around guessing. Waits on the mailbox when a plan
is empty and never spins. Refuses to know text, templates, HTTP, and who reads the events.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from foveate.core.errors import Busy, FoveateError, RequestFailed, StepFailed
from foveate.core.observe import RequestView
from foveate.core.plan import DraftGuess, DraftWish, StepPlan, StepResult
from foveate.core.values import Ending, Event, Failed, Finished, Output, PixelSource, Prompt, Sampling, Timings
from foveate.engine.ledger import Ledger, Sink
from foveate.run.embeds import RowStore
from foveate.run.encoder import Decoded, EncoderStream
from foveate.run.encoder_worker import Began, Lost
from foveate.sched.scheduler import Scheduler, Stats

log = logging.getLogger(__name__)
CLOSE_S = 30.0  # for the step under way


class Executor(Protocol):
    """What runs a plan's slices: `run.runner.Runner`, or a fake in tests."""

    rows: RowStore

    def execute(self, plan: StepPlan) -> StepResult: ...

    def draft(self, wishes: Sequence[DraftWish]) -> list[DraftGuess]: ...

    def stop_drafting(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Submit:
    """A request to take in; `held_bytes` is what its pictures hold in host memory while it waits."""

    uid: int
    prompt: Prompt
    sources: tuple[PixelSource, ...]
    sampling: Sampling
    ending: Ending
    sink: Sink
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Together:
    """Requests that are taken in all or none: the choices of one answer."""

    letters: tuple[Submit, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Nobody waits for these requests any more. In one letter, or the end of one would start the next."""

    uids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody wants to see every live request; `reply` is called on the engine's thread."""

    reply: Callable[[tuple[RequestView, ...]], None]


@dataclass(frozen=True, slots=True)
class Nudge:
    """Something happened at the encoder: look."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop: abort what still runs."""


Letter = Together | Abort | Look | Nudge | Stop


class EngineLoop:
    """Runs one scheduler, one executor and one encoder stream on a thread of its own."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        open_encoder: Callable[[Callable[[], None]], EncoderStream | None],
        on_step: Callable[[StepPlan, float], None] = lambda plan, seconds: None,
        threads: Callable[[], None] = lambda: None,
    ) -> None:
        """`open_encoder` receives the nudge to call when something is ready; `threads` runs first on the new thread."""
        self._scheduler, self._executor, self._on_step, self._prepare_thread = scheduler, executor, on_step, threads
        self._mailbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self._encoder = open_encoder(lambda: self._mailbox.put(Nudge()))
        self._ledger = Ledger()
        self._gate, self._accepting = threading.Lock(), True
        self._stopping = False
        self._resting = False  # the last plan had nothing to run, so only a letter can change anything
        self._open_plan: StepPlan | None = None
        self._draft_s = 0.0  # what guessing for the next step has cost
        self._stats = scheduler.stats()
        self._thread = threading.Thread(target=self._run, name="foveate-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, letter: Together | Abort | Look) -> None:
        """Hand a letter in from any thread. After the end a request is answered at once with why it cannot run."""
        with self._gate:
            if self._accepting:
                return self._mailbox.put(letter)
        if isinstance(letter, Together):
            _refuse(letter, Busy("the server is shutting down", retry_after_s=10))
        elif isinstance(letter, Look):
            letter.reply(())

    def close(self) -> None:
        """Abort everything, join the thread and the encoder. Idempotent."""
        self._mailbox.put(Stop())
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("the engine does not end its step; leaving its thread behind")
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None

    @property
    def encodes(self) -> int:
        """Pictures that have gone to the encoder so far, one that was encoded again counted again."""
        return 0 if self._encoder is None else self._encoder.submitted

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def encoder_hung(self) -> bool:
        """Whether the encoder has work and has given no sign for too long; safe to read from any thread."""
        encoder = self._encoder
        return encoder is not None and encoder.is_hung

    def stats(self) -> Stats:
        """The scheduler's numbers as of its last turn; safe to read from any thread."""
        return self._stats

    # ---------------------------------------------------------------- the loop

    def _run(self) -> None:
        self._prepare_thread()
        while not self._stopping:
            try:
                self._turn()
            except Exception as error:  # our own bug: nobody may be left waiting for an answer that cannot come
                log.exception("engine turn failed")
                self._fail_all(error)
        with self._gate:
            self._accepting = False
        self._fail_all(Busy("the server is shutting down", retry_after_s=10))
        self._direct_encoder(self._scheduler.plan(time.monotonic()))
        self._stats, self._resting = self._scheduler.stats(), True

    def _turn(self) -> None:
        self._read_mail()
        self._resting = False
        self._poll_encoder()
        plan = self._scheduler.plan(time.monotonic())
        self._direct_encoder(plan)
        if plan.slices:
            self._step(plan)
        self._stats = self._scheduler.stats()
        self._resting = not plan.slices

    def _step(self, plan: StepPlan) -> None:
        began_s, self._open_plan = time.monotonic(), plan
        try:
            result = self._executor.execute(plan)
        except Exception as error:  # a failed step may have spoiled memory: its cohort fails, the server lives
            log.exception("step %d failed with %d slice(s)", plan.number, len(plan.slices))
            failure = error if isinstance(error, FoveateError) else StepFailed("a model step failed")
            self._publish(self._scheduler.fail(plan, failure, time.monotonic()))
        else:
            self._publish(self._scheduler.commit(plan, result, time.monotonic()))
            self._scheduler.note_cost(plan, self._draft_s + time.monotonic() - began_s)
        self._open_plan = None
        self._draft()
        self._on_step(plan, time.monotonic() - began_s)

    def _draft(self) -> None:
        """Show the drafter the step, ask for guesses. One that fails is not asked again; only the log hears of it."""
        if not self._scheduler.guesses:
            return
        began_s = time.monotonic()
        try:
            for guess in self._executor.draft(self._scheduler.wishes()):
                self._scheduler.propose(guess.uid, guess.tokens, guess.parents, guess.confidence)
        except Exception:
            log.warning("the drafter failed: decoding goes on without it", exc_info=True)
            self._scheduler.stop_guessing()
            self._executor.stop_drafting()
        self._draft_s = time.monotonic() - began_s

    def _read_mail(self) -> None:
        """Take every letter there is. Waits for one only if nothing changed since a plan that had nothing to run."""
        try:
            self._open(self._mailbox.get(block=self._resting and not self._has_inline_work()))
            while True:
                self._open(self._mailbox.get_nowait())
        except queue.Empty:
            return

    def _has_inline_work(self) -> bool:
        return self._encoder is not None and self._encoder.inline_work

    def _open(self, letter: Letter) -> None:
        if isinstance(letter, Together):
            self._take_in(letter)
        elif isinstance(letter, Abort):
            for uid in letter.uids:
                self._abort(uid)
        elif isinstance(letter, Look):
            letter.reply(self._look())
        elif isinstance(letter, Stop):
            self._stopping = True

    def _look(self) -> tuple[RequestView, ...]:
        now, scheduler = time.monotonic(), self._scheduler
        return tuple(
            self._ledger.view(uid, *scheduler.stage(uid), scheduler.timings(uid) or Timings(), now)
            for uid in self._ledger
        )

    def _take_in(self, together: Together) -> None:
        now, taken = time.monotonic(), []
        try:
            for letter in together.letters:
                if letter.prompt.spans and self._encoder is None:
                    raise RequestFailed("this engine has no vision encoder")
                self._scheduler.submit(
                    letter.uid, letter.prompt, letter.sampling, letter.ending, now, letter.held_bytes
                )
                taken.append(letter.uid)
                self._ledger.open(letter.uid, letter.prompt, letter.sources, letter.sink, now)
        except FoveateError as error:
            for uid in taken:
                self._scheduler.abort(uid)
                self._ledger.close(uid)
            _refuse(together, error)

    def _abort(self, uid: int) -> None:
        timings = self._scheduler.timings(uid)
        self._scheduler.abort(uid)
        if uid in self._ledger:
            self._publish([Finished(uid, "abort", timings or Timings())])

    # ------------------------------------------------------------- the encoder

    def _poll_encoder(self) -> None:
        if self._encoder is None:
            return
        for reply in self._encoder.poll():
            now = time.monotonic()
            if isinstance(reply, Decoded):
                self._ledger.decoded(reply.key, reply.start_s, reply.end_s)
            elif isinstance(reply, Began):
                self._ledger.encoding(reply.key, reply.start_s)
            elif isinstance(reply, Lost):
                self._publish(self._scheduler.lost(reply.key, reply.error, now))
            else:
                self._executor.rows.put(reply.key, reply.rows)
                self._scheduler.landed(reply.key, now)
                self._ledger.landed(reply.key, reply.start_s, reply.end_s)

    def _direct_encoder(self, plan: StepPlan) -> None:
        """Carry out the plan's word on pictures: begin decoding, encode in this order, forget."""
        for uid in plan.started:
            if uid in self._ledger:
                entry = self._ledger.get(uid)
                entry.has_slot = True
                for source in entry.sources.values() if self._encoder else ():
                    if source.key in self._executor.rows:
                        entry.undecoded.discard(source.key)  # rows of it are proof enough that it is sound
                    elif source.key in entry.undecoded:
                        self._encoder.prepare(source)
                entry.start_if_ready()
        if self._encoder is None:
            return
        for key in plan.drop:
            self._encoder.cancel(key)
            self._executor.rows.drop(key)
        for key in plan.encode:
            self._encoder.submit(self._ledger.source(key))

    # ------------------------------------------------------------- the answers

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            if event.uid not in self._ledger:
                continue  # aborted meanwhile: it has had its last word
            if isinstance(event, Finished):
                event = self._ledger.settle(event)
                self._log_images(event)
            entry = self._ledger.get(event.uid)
            if not isinstance(event, Output):
                self._ledger.close(event.uid)
            entry.sink(event)

    def _log_images(self, event: Finished) -> None:
        timings, encoder = event.timings, self._encoder
        if timings.images and encoder is not None:
            log.info(
                "request %d: %d image(s), %d rows, encoded in %.0f ms on %s, %.0f ms of it hidden",
                event.uid,
                len(timings.images),
                sum(image.rows for image in timings.images),
                timings.encode_s * 1e3,
                encoder.place,
                timings.hidden_s * 1e3,
            )

    def _fail_all(self, error: Exception) -> None:
        """Last resort and last words: every live request fails, and all memory comes home."""
        failure = error if isinstance(error, FoveateError) else RequestFailed("the engine failed")
        self._scheduler.abort_all()
        if self._open_plan is not None:
            self._scheduler.fail(self._open_plan, failure, time.monotonic())
            self._open_plan = None
        for uid in self._ledger:
            entry = self._ledger.close(uid)
            if entry is not None:
                entry.sink(Failed(uid, failure))
        while not self._mailbox.empty():
            letter = self._mailbox.get_nowait()
            if isinstance(letter, Together):
                _refuse(letter, failure)
            elif isinstance(letter, Look):
                letter.reply(())
            elif isinstance(letter, Stop):
                self._stopping = True


def _refuse(together: Together, error: FoveateError) -> None:
    for letter in together.letters:
        letter.sink(Failed(letter.uid, error))
