"""Tells what a model thinks from what it says, while both arrive.

Owns the `<think> … </think>` markup of one answer. Promises that the two texts do not depend on how the answer was
split into pushes, and that nothing is lost but the marks and the line breaks that stand next to them. An answer whose
template has opened the thought already begins inside it. Refuses to know tokens, templates and tools.
"""

from __future__ import annotations

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that was thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """Text that was said."""

    text: str


def held_len(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)


class ReasoningSplit:
    """Splits one answer. `thinking` says where it stands; `opened` that the prompt ended inside a thought."""

    def __init__(self, opened: bool) -> None:
        self.thinking = opened
        self._held = ""
        # A model may write the opening mark itself, also a second time, at the very beginning and nowhere else.
        self._take = self._begin

    def push(self, text: str) -> list[Thought | Words]:
        """What can be told of the next text."""
        self._held += text
        out: list[Thought | Words] = []
        while (part := self._take()) is not None:
            out += [part] if part.text else []
        return out

    def flush(self) -> list[Thought | Words]:
        """What was held back when no more text will come."""
        rest, self._held = self._held, ""
        return [(Thought if self.thinking else Words)(rest)] if rest else []

    def _begin(self) -> Thought | Words | None:
        text = self._held.lstrip()
        if OPEN.startswith(text) and text != OPEN:
            return None
        if text.startswith(OPEN):
            self.thinking = True
            self._held = text.removeprefix(OPEN)
            self._take = self._after_open
        else:
            self._take = self._after_open if self.thinking else self._say
        return Words("")

    def _after_open(self) -> Thought | None:
        self._held = self._held.lstrip("\n")
        if not self._held:
            return None
        self._take = self._think
        return Thought("")

    def _think(self) -> Thought | Words | None:
        """Everything up to the closing mark; what may be that mark, or line breaks before it, waits."""
        before, mark, after = self._held.partition(CLOSE)
        if mark:
            self._held, self.thinking, self._take = after, False, self._after_close
            return Thought(before.rstrip("\n"))
        kept = self._held[: len(self._held) - held_len(self._held, CLOSE)].rstrip("\n")
        self._held = self._held[len(kept) :]
        return Thought(kept) if kept else None

    def _after_close(self) -> Words | None:
        self._held = self._held.lstrip("\n")
        if not self._held:
            return None
        self._take = self._say
        return Words("")

    def _say(self) -> Words | None:
        text, self._held = self._held, ""
        return Words(text) if text else None
