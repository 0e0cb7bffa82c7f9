"""Which images are encoded next and whose rows are kept: keys and row counts, never pixels.

An image is wanted, encoding or landed; equal images of any number of requests are one entry. Promises: encoding and
landed rows together stay within the capacity; the image that prefill needs soonest is encoded first; when rows must
give way, those needed last go first and those that prefill can use now never do; a key that no request refers to any
more is dropped with the next plan. Together with the rule that no span exceeds the capacity this cannot deadlock: the
most urgent image only ever waits for rows that are about to be used up. Refuses to know the encoder and the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from foveate.sched.request import Request, distinct_keys


class State(Enum):
    WANTED = "wanted"
    ENCODING = "encoding"
    LANDED = "landed"


@dataclass(slots=True)
class Image:
    """One content key: its rows, where they are, and the requests that refer to it."""

    rows: int
    state: State = State.WANTED
    holders: set[int] = field(default_factory=set)


class Images:
    """All images of all live requests, and the order in which they are encoded and dropped."""

    def __init__(self, capacity_rows: int, encode_ahead: int, stream: bool) -> None:
        self.landed: set[str] = set()
        self._capacity_rows, self._encode_ahead, self._stream = capacity_rows, encode_ahead, stream
        self._images: dict[str, Image] = {}
        self._strays: set[str] = set()  # landed although nobody refers to them any more

    def rows(self, state: State) -> int:
        """Rows of all images in this state."""
        return sum(image.rows for image in self._images.values() if image.state is state)

    def count(self, state: State) -> int:
        """Images in this state."""
        return sum(image.state is state for image in self._images.values())

    @property
    def has_leftovers(self) -> bool:
        """Whether the next plan has keys to drop because their last request is gone."""
        return bool(self._strays) or any(not image.holders for image in self._images.values())

    @property
    def is_empty(self) -> bool:
        return not self._images and not self._strays

    def hold(self, request: Request) -> None:
        """The request refers to its images from now on, until `release`."""
        for span in request.prompt.spans:
            self._images.setdefault(span.key, Image(span.rows)).holders.add(request.uid)
            self._strays.discard(span.key)  # it is encoded again, over the rows that came too late

    def release(self, request: Request) -> None:
        """The request has ended; keys that it alone referred to are dropped with the next plan."""
        for span in request.prompt.spans:
            self._images[span.key].holders.discard(request.uid)

    def land(self, key: str) -> None:
        """The rows of this image are on the model's device. Harmless for one that landed or was dropped before."""
        image = self._images.get(key)
        if image is None:
            self._strays.add(key)
        elif image.state is State.ENCODING or (image.state is State.WANTED and image.rows <= self._free_rows()):
            image.state = State.LANDED
            self.landed.add(key)

    def lose(self, key: str) -> bool:
        """The encoder failed on this image; False if that no longer matters (it landed or was dropped meanwhile)."""
        image = self._images.get(key)
        if image is None or image.state is not State.ENCODING:
            return False
        image.state = State.WANTED
        return True

    def plan(self, running: list[Request], next_up: Iterable[Request]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keys to hand to the encoder, and keys to drop before that; no key is in both.

        `running` is in order of age. `next_up` are the first requests in line: their images are encoded when those of
        the running ones leave room for it.
        """
        drop = self._sweep()
        encode: list[str] = []
        order = self._order(running, next_up)
        in_use = self._in_use(running)
        outstanding = self.count(State.ENCODING)
        for place, key in enumerate(order):
            image = self._images[key]
            if outstanding >= self._encode_ahead:
                break
            if image.state is not State.WANTED or key in drop:
                continue
            evicted = self._room_for(image.rows, order[: place + 1], order[place + 1 :], in_use)
            if evicted is None:
                break  # whatever is smaller but less urgent would take the room that this one waits for
            for other in evicted:
                self._evict(other)
            drop += evicted
            image.state = State.ENCODING
            encode.append(key)
            outstanding += 1
        return tuple(encode), tuple(drop)

    def _free_rows(self) -> int:
        return self._capacity_rows - self.rows(State.LANDED) - self.rows(State.ENCODING)

    def _sweep(self) -> list[str]:
        """Forget the keys that no request refers to."""
        gone = [key for key, image in self._images.items() if not image.holders]
        for key in gone:
            del self._images[key]
            self.landed.discard(key)
        gone += self._strays
        self._strays.clear()
        return gone

    def _order(self, running: list[Request], next_up: Iterable[Request]) -> list[str]:
        """Keys that are still to be prefilled, most urgent first.

        Streaming, what counts is how many images prefill has to pass before this one, then age. Waiting for whole
        requests, the oldest request comes first with all its images, or two could each hold half of what they need.
        """
        ranked: list[tuple[int, int, str]] = []
        for age, request in enumerate(running):
            for ahead, key in enumerate(distinct_keys(request.spans_ahead())):
                ranked.append((ahead, age, key) if self._stream else (age, ahead, key))
        order = [key for _, _, key in sorted(ranked)]
        for request in next_up:
            order += distinct_keys(request.spans_ahead())
        return list(dict.fromkeys(order))

    def _in_use(self, running: list[Request]) -> set[str]:
        """Landed keys that prefill can use now, those of the step being planned among them."""
        in_use: set[str] = set()
        for request in running:
            keys = distinct_keys(request.spans_ahead())
            late = next((place for place, key in enumerate(keys) if key not in self.landed), len(keys))
            if self._stream or late == len(keys):
                in_use.update(keys[:late])
        return in_use

    def _room_for(self, rows: int, urgent: list[str], later: list[str], in_use: set[str]) -> list[str] | None:
        """Landed keys to give up so that `rows` more fit, least needed first; None if that is not enough."""
        passed = sorted(self.landed.difference(urgent, later))  # kept only for a recompute
        evicted: list[str] = []
        free_rows = self._free_rows()
        for key in [*passed, *reversed(later)]:
            if free_rows >= rows:
                break
            if key in self.landed and key not in in_use:
                evicted.append(key)
                free_rows += self._images[key].rows
        return evicted if free_rows >= rows else None

    def _evict(self, key: str) -> None:
        self._images[key].state = State.WANTED
        self.landed.discard(key)
