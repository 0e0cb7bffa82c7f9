"""What the engine's loop remembers of each live request: its pictures, what they cost, and whom to tell.

Owns the bookkeeping between keys and requests (one picture may serve several requests) and the account of decode and
encode seconds that only the loop sees. Integers, keys and times; no tensors and no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace

from foveate.core.observe import RequestView
from foveate.core.values import Event, Finished, ImageLanded, ImageTiming, PixelSource, Prompt, Started, Timings

Sink = Callable[[Event], None]


@dataclass(slots=True)
class Entry:
    """One live request since `arrived_s`; Started waits until `undecoded`, the keys not yet found sound, is empty."""

    uid: int
    arrived_s: float
    prompt: Prompt
    sources: dict[str, PixelSource]
    sink: Sink
    undecoded: set[str]
    timing: dict[str, ImageTiming]
    has_slot: bool = False
    started: bool = False
    landed: set[str] = field(default_factory=set)

    def start_if_ready(self) -> None:
        """Tell the client once that its answer is under way."""
        if self.has_slot and not self.undecoded and not self.started:
            self.started = True
            self.sink(Started(self.uid))


class Ledger:
    """All live requests of one engine, by uid and by picture."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, uid: int) -> bool:
        return uid in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._entries))

    def open(self, uid: int, prompt: Prompt, sources: tuple[PixelSource, ...], sink: Sink, now: float) -> None:
        by_key = {source.key: source for source in sources}
        timing = {span.key: ImageTiming(span.key, span.rows) for span in prompt.spans}
        self._entries[uid] = Entry(uid, now, prompt, by_key, sink, set(by_key), timing)

    def close(self, uid: int) -> Entry | None:
        return self._entries.pop(uid, None)

    def get(self, uid: int) -> Entry:
        return self._entries[uid]

    def source(self, key: str) -> PixelSource:
        """The picture behind a key, from any request that has it."""
        return next(entry.sources[key] for entry in self._entries.values() if key in entry.sources)

    def holders(self, key: str) -> list[Entry]:
        return [entry for entry in self._entries.values() if key in entry.sources]

    def decoded(self, key: str, start_s: float, end_s: float) -> None:
        for entry in self.holders(key):
            if key in entry.undecoded:
                entry.timing[key] = replace(entry.timing[key], decode_start_s=start_s, decode_end_s=end_s)
                self._sound(entry, key)

    def encoding(self, key: str, start_s: float) -> None:
        """The encode of a picture has begun: whoever looks sees it under way."""
        for entry in self.holders(key):
            if key not in entry.landed:
                entry.timing[key] = replace(entry.timing[key], encode_start_s=start_s)

    def landed(self, key: str, start_s: float, end_s: float) -> None:
        for entry in self.holders(key):
            if key in entry.landed:
                continue  # encoded again after its rows were dropped: the first encode is the one that counts
            entry.landed.add(key)
            entry.timing[key] = replace(entry.timing[key], encode_start_s=start_s, encode_end_s=end_s)
            for image, span in enumerate(entry.prompt.spans):
                if span.key == key:
                    entry.sink(ImageLanded(entry.uid, image, entry.timing[key]))
            self._sound(entry, key)

    def view(self, uid: int, stage: str, output_len: int, timings: Timings, now: float) -> RequestView:
        """A live request as others may see it; its id is its uid."""
        entry = self._entries[uid]
        elapsed_s, prompt_len = now - entry.arrived_s, len(entry.prompt.tokens)
        return RequestView(str(uid), stage, prompt_len, output_len, elapsed_s, timings=account(timings, entry))

    def _sound(self, entry: Entry, key: str) -> None:
        """A picture with rows has been decoded too: the word of that may have been for an earlier request."""
        entry.undecoded.discard(key)
        entry.start_if_ready()

    def settle(self, event: Finished) -> Finished:
        """The event with the request's whole account: the scheduler's part and the pictures' part."""
        entry = self._entries[event.uid]
        return replace(event, timings=account(event.timings, entry))


def account(timings: Timings, entry: Entry) -> Timings:
    """Join prefill windows (one per span) with decode and encode windows (one per distinct picture).

    Windows come on the engine's clock and leave as seconds since the request arrived.
    """
    prompt, pictures = entry.prompt, entry.timing
    windows = timings.images or tuple(ImageTiming(span.key, span.rows) for span in prompt.spans)
    images = tuple(
        replace(
            pictures[window.key],
            prefill_start_s=window.prefill_start_s,
            prefill_end_s=window.prefill_end_s,
        )
        for window in windows
    )
    decode_s = sum(_length(p.decode_start_s, p.decode_end_s) for p in pictures.values())
    encode_s = sum(_length(p.encode_start_s, p.encode_end_s) for p in pictures.values())
    return replace(
        timings,
        images=tuple(_since(entry.arrived_s, image) for image in images),
        decode_s=decode_s,
        encode_s=encode_s,
        hidden_s=min(encode_s, max(0.0, encode_s - timings.waited_s)),
    )


def _since(origin_s: float, image: ImageTiming) -> ImageTiming:
    """The windows counted from `origin_s`; a picture that an earlier request had encoded lies before it."""
    names = [f.name for f in fields(ImageTiming) if f.name.endswith("_s")]
    moved = {name: getattr(image, name) - origin_s for name in names if getattr(image, name) is not None}
    return replace(image, **moved)


def _length(start_s: float | None, end_s: float | None) -> float:
    return 0.0 if start_s is None or end_s is None else end_s - start_s
