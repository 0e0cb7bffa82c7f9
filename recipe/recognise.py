"""The grammar read backwards: could a sentence have come from a section of the wordings?

Owns the translation of grammar rules into regular expressions. Promises to say yes to every sentence that `wordings`
can make of a section (slips of the finger aside), with any lead, context, reference, closing, casing or punctuation;
slots accept the words given. Used to keep the hand-written questions apart from the templates. Refuses to make text.
"""

from __future__ import annotations

import re
from functools import cache

from recipe.wordings import Node, grammar

PLACES = "first|second|third|fourth|fifth|sixth|last|1st|2nd|3rd|4th|5th|6th"
NOUNS = (
    "chart|graph|figure|plot|diagram|picture|image|one|table|pie|bar chart|line chart|pie chart|charts|images|pictures"
)
IN = "in|for|from|on|according to|looking at|of"


def matches(section: str, text: str, words: tuple[str, ...]) -> bool:
    """Whether some rule of the section reads the text when slots hold any of `words` or a number."""
    tokens = _plain(text).split(" ")
    slot = _slot(words)
    starts = {kind: _fits(_before(kind, slot), [" ".join(tokens[:at]) for at in range(len(tokens))])
              for kind in ("NP", "WH", "C", "Q")}  # fmt: skip
    ends = _fits(_after(slot), [" ".join(tokens[at:]) for at in range(1, len(tokens) + 1)])
    for kind, pattern in _cores(section, slot):
        for first in starts.get(kind, starts["Q"]):
            for last in ends:
                if last + 1 > first and pattern.fullmatch(" ".join(tokens[first : last + 1])):
                    return True
    return False


def _fits(pattern: re.Pattern[str], texts: list[str]) -> list[int]:
    return [at for at, text in enumerate(texts) if pattern.fullmatch(text)]


def _plain(text: str) -> str:
    """Lower case, no punctuation, single spaces."""
    return re.sub(r"[\s?.!,:;\"'()]+", " ", text.lower()).strip()


@cache
def _slot(words: tuple[str, ...]) -> str:
    known = sorted({re.escape(_plain(word)) for word in words if word})
    return "(?:" + "|".join([*known, r"[$]?\d+(?: \d+)?%?", NOUNS]) + ")"


def _around(slot: str) -> str:
    """A context or a reference to one of several charts."""
    named = f"(?:number|no|#|titled|called|about|named|with the title)? ?{slot}"
    where = f"(?:(?:{IN}) )?(?:the |this |that )?(?:(?:{PLACES}) )?(?:{NOUNS})(?: {named})?"
    return f"(?:{_any('context', slot)}|{where})"


@cache
def _before(kind: str, slot: str) -> re.Pattern[str]:
    lead = f"(?:{_any({'NP': 'ask_np', 'WH': 'ask_wh', 'C': 'ask_c'}[kind], slot)})?" if kind != "Q" else ""
    return re.compile(_tidy(f"(?:{_any('hello', slot)} ?)?(?:{_around(slot)} ?)?{lead}"))


@cache
def _after(slot: str) -> re.Pattern[str]:
    return re.compile(_tidy(f"(?:{_around(slot)} ?)?(?:{_any('close', slot)})?"))


@cache
def _cores(section: str, slot: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((rule.type, re.compile(_tidy(_regex(rule.node, slot)))) for rule in grammar()[section])


def _any(section: str, slot: str) -> str:
    return "(?:" + "|".join(_regex(rule.node, slot) for rule in grammar()[section]) + ")"


def _regex(node: Node, slot: str) -> str:
    if node.kind == "text":
        spaced = re.sub(r"[\s?.!,:;\"'()]+", " ", node.text.lower())
        return re.escape(spaced).replace(r"\ ", " *")
    if node.kind == "slot":
        return slot
    if node.kind == "name":
        return _any(node.text, slot)
    parts = [_regex(part, slot) for part in node.parts]
    return "(?:" + "|".join(parts) + ")" if node.kind == "any" else "".join(parts)


def _tidy(pattern: str) -> str:
    return re.sub(r"(?: \*)+", " *", pattern)
