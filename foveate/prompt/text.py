"""Ids back to text while they arrive, never showing what may still change.

Owns the text of one answer: characters whose bytes come in several tokens, stop strings wherever they begin and end,
and the exact token at which a stop is complete. Promises that the pieces put together equal the whole decoded at once
and cut at its first stop, however the ids are split into pushes. Refuses to know why else an answer may end.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foveate.prompt.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """New safe text, and how many of the pushed ids belong to the answer; `stop` is the stop string that ended it.

    Ids after the first `used` came behind a completed stop: they count for nothing.
    """

    text: str = ""
    used: int = 0
    stop: str | None = None


class TextStream:
    """The text of one answer as its ids arrive.

    A stop string ends it at the character that completes one first, at the longest one if several end there; the stop
    and all behind it never show. Ids in `skip` are counted and have no text.
    """

    def __init__(self, tokens: Tokens, stops: Iterable[str] = (), skip: frozenset[int] = frozenset()) -> None:
        self._tokens = tokens
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        assert all(self._stops), "an empty stop string would end every answer"
        self._starts = frozenset(stop[:n] for stop in self._stops for n in range(1, len(stop)))
        self._reach = max((len(stop) - 1 for stop in self._stops), default=0)
        self._skip = skip
        # Invalid bytes become U+FFFD one maximal subpart at a time, as a decode of the whole would do it.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._stop: str | None = None

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer, if one has."""
        return self._stop

    def push(self, ids: Sequence[int]) -> Piece:
        """Take the next ids of the answer and return what can be shown by now."""
        shown: list[str] = []
        for index, token in enumerate(ids):
            if self._stop is not None:
                return Piece("".join(shown), index, self._stop)
            raw = b"" if token in self._skip else self._tokens.raw(token)
            shown.append(self._advance(self._decoder.decode(raw)))
        return Piece("".join(shown), len(ids), self._stop)

    def flush(self) -> Piece:
        """What was held back when no more ids will come; half a character shows as U+FFFD."""
        if self._stop is not None:
            return Piece(stop=self._stop)
        shown = self._advance(self._decoder.decode(b"", final=True))
        if self._stop is None:
            shown, self._held = shown + self._held, ""
        return Piece(shown, stop=self._stop)

    def _advance(self, new: str) -> str:
        """Add decoded characters; the part that no stop can reach any more."""
        text = self._held + new
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self._stop = min(found)
            self._held = ""
            return text[:at]
        kept = next((n for n in range(min(self._reach, len(text)), 0, -1) if text[-n:] in self._starts), 0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]
