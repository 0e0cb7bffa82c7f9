"""Which images are encoded next and whose rows are kept: keys and row counts, never pixels.

An image is wanted, encoding or landed; equal images of any number of requests are one entry. Promises: encoding and
landed rows together stay within the capacity; the image that prefill needs soonest is encoded first; when rows must
give way, those needed last go first and those that prefill can use now never do; a key that no request refers to any
more is dropped with the next plan, or with `keep` kept for later requests until any other image needs the room; rows
that a failed request used are never kept. Together with the rule that no span exceeds the capacity this cannot
deadlock: the most urgent image only ever waits for rows that are about to be used up. Refuses to know the encoder and
the clock.
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
    """One content key: its rows, where they are, the requests that refer to it, and whether one of them failed."""

    rows: int
    state: State = State.WANTED
    holders: set[int] = field(default_factory=set)
    doubtful: bool = False


class Images:
    """All images of all live requests, and the order in which they are encoded and dropped."""

    def __init__(self, capacity_rows: int, encode_ahead: int, stream: bool, keep: bool = False) -> None:
        self.landed: set[str] = set()
        self.lookups = self.hits = 0  # images of requests as they came, and how many of these were known
        self._capacity_rows, self._encode_ahead, self._stream, self._keep = capacity_rows, encode_ahead, stream, keep
        self._images: dict[str, Image] = {}
        self._kept: dict[str, int] = {}  # rows of landed images that nobody refers to now, longest unused first
        self._strays: set[str] = set()  # landed although nobody refers to them any more

    def rows(self, state: State) -> int:
        """Rows of all images in this state."""
        return sum(image.rows for image in self._images.values() if image.state is state)

    def count(self, state: State) -> int:
        """Images in this state."""
        return sum(image.state is state for image in self._images.values())

    @property
    def kept_rows(self) -> int:
        """Rows kept for requests to come."""
        return sum(self._kept.values())

    @property
    def kept_count(self) -> int:
        """Images kept for requests to come."""
        return len(self._kept)

    @property
    def has_leftovers(self) -> bool:
        """Whether the next plan has keys to drop, or to keep, because their last request is gone."""
        return bool(self._strays) or any(not image.holders for image in self._images.values())

    @property
    def is_empty(self) -> bool:
        """Whether no request refers to any image; some may be kept."""
        return not self._images and not self._strays

    def hold(self, request: Request) -> None:
        """The request refers to its images from now on, until `release`."""
        for key, rows in {span.key: span.rows for span in request.prompt.spans}.items():
            self.lookups += 1
            self.hits += key in self._kept or key in self._images
            if self._kept.pop(key, None) is not None:
                self._images[key] = Image(rows, State.LANDED)
                self.landed.add(key)
            self._images.setdefault(key, Image(rows)).holders.add(request.uid)
            self._strays.discard(key)  # it is encoded again, over the rows that came too late

    def doubt(self, request: Request) -> None:
        """The request has failed, and its images may be why: their rows are not kept for others to come."""
        for span in request.prompt.spans:
            self._images[span.key].doubtful = True

    def forget_kept(self) -> None:
        """Drop what is kept for requests to come, with the next plan."""
        self._strays.update(self._kept)
        self._kept.clear()

    def release(self, request: Request) -> None:
        """The request has ended; keys that it alone referred to are dropped with the next plan."""
        for span in request.prompt.spans:
            self._images[span.key].holders.discard(request.uid)

    def land(self, key: str) -> None:
        """The rows of this image are on the model's device. Harmless for one that landed or was dropped before."""
        image = self._images.get(key)
        if image is None and key not in self._kept:
            self._strays.add(key)
        elif image is None:
            return
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
        return self._capacity_rows - self.rows(State.LANDED) - self.rows(State.ENCODING) - self.kept_rows

    def _sweep(self) -> list[str]:
        """Forget the keys that no request refers to, but keep rows that another may ask for."""
        gone: list[str] = []
        for key in [key for key, image in self._images.items() if not image.holders]:
            image = self._images.pop(key)
            self.landed.discard(key)
            if self._keep and image.state is State.LANDED and not image.doubtful:
                self._kept[key] = image.rows
            else:
                gone.append(key)
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
        for key in [*self._kept, *passed, *reversed(later)]:
            if free_rows >= rows:
                break
            if key in self._kept or (key in self.landed and key not in in_use):
                evicted.append(key)
                free_rows += self._kept[key] if key in self._kept else self._images[key].rows
        return evicted if free_rows >= rows else None

    def _evict(self, key: str) -> None:
        if self._kept.pop(key, None) is None:
            self._images[key].state = State.WANTED
            self.landed.discard(key)
