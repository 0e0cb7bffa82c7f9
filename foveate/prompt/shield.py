"""Keeps a user's text from becoming a model's control tokens, whatever a chat template does with it.

A template glues client text and control tokens into one string, in which nothing tells them apart any more. So a mark
that no client can send is set inside every control token that client text spells out, and at every edge of client text
where one could form with what comes next to it. After rendering, the string is cut at the marks that stand inside such
a token: the pieces are tokenised one by one, and only tokens that the template wrote whole remain whole. Text without
such spellings is left exactly as it was. Refuses to know templates and tokenizers.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise

from foveate.core.errors import InvalidRequest

# A lone surrogate is not valid Unicode: JSON text that holds one is refused, so no input can bring the mark along.
MARK = "\ud800"
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = re.compile(r"[\w ]*")  # such fragments of a token are ordinary words, which templates compare with


class Shield:
    """Marks for one set of control tokens.

    guarded: texts of the tokens that client text must not spell. kept: texts that stay as they are, but count as edges
    (what stands around them could close up when a template removes them).
    """

    def __init__(self, guarded: Iterable[str], kept: Iterable[str] = ()) -> None:
        # A token of one character has no inside where it could be cut.
        literals = sorted({text for text in guarded if len(text) > 1}, key=len, reverse=True)
        self._literals = literals
        self._inside = re.compile(f"(?=({_any_of(literals)}))")
        self._kept = re.compile(f"({_any_of(sorted(kept, key=len, reverse=True))})")
        self._heads = {text[:n] for text in literals for n in range(1, len(text)) if not _WORDS.fullmatch(text[:n])}
        self._tails = {text[-n:] for text in literals for n in range(1, len(text)) if not _WORDS.fullmatch(text[-n:])}
        self._longest = max(map(len, literals), default=0)

    def mark(self, text: str) -> str:
        """Client text with marks where it spells a guarded token, or could together with its neighbours."""
        if _SURROGATE.search(text):
            raise InvalidRequest("the text holds half of a surrogate pair, which is not valid Unicode", "messages")
        fragments = self._kept.split(text)
        return "".join(part if n % 2 else self._mark_fragment(part) for n, part in enumerate(fragments))

    def _mark_fragment(self, text: str) -> str:
        if not text:
            return text
        before = MARK if any(text[:n] in self._tails for n in range(1, self._longest)) else ""
        after = MARK if any(text[-n:] in self._heads for n in range(1, self._longest)) else ""
        if len(text) < self._longest and not _WORDS.fullmatch(text) and any(text in known for known in self._literals):
            before = after = MARK
        inner = [found.start() + 1 for found in self._inside.finditer(text)]
        pieces = [text[a:b] for a, b in zip([0, *inner], [*inner, len(text)], strict=True)]
        return before + MARK.join(pieces) + after

    def cut(self, rendered: str) -> list[str]:
        """The rendered string in pieces: cut at each mark inside a guarded token, every other mark taken out."""
        parts = rendered.split(MARK)
        if len(parts) == 1:
            return parts
        text = "".join(parts)
        marks = list(accumulate(len(part) for part in parts[:-1]))
        cuts: set[int] = set()
        for found in self._inside.finditer(text):
            cuts.update(marks[bisect_right(marks, found.start(1)) : bisect_left(marks, found.end(1))])
        edges = [0, *sorted(cuts), len(text)]
        return [text[a:b] for a, b in pairwise(edges) if a < b]


def _any_of(texts: list[str]) -> str:
    return "|".join(map(re.escape, texts)) or r"(?!)"
