"""The grammar read backwards: could a sentence have come from a section of the wordings?

Owns the translation of grammar rules into regular expressions. Promises to say yes to every sentence that `wordings`
can make of a section (slips of the finger aside), with any lead, context, reference, closing, casing or punctuation;
slots accept the words given. Used to keep the hand-written questions apart from the templates. Refuses to make text.
"""

from __future__ import annotations

import re
from functools import lru_cache

from recipe.wordings import Node, grammar

PLACES = "first|second|third|fourth|fifth|sixth|last|1st|2nd|3rd|4th|5th|6th"
NOUNS = "chart|graph|figure|plot|diagram|picture|image|one|table|pie|bar chart|line chart|pie chart|charts|images|pictures"
IN = "in|for|from|on|according to|looking at|of"


def matches(section: str, text: str, words: tuple[str, ...]) -> bool:
    """Whether some rule of the section reads the text when slots hold any of `words` or a number."""
    plain = _plain(text)
    return any(pattern.fullmatch(plain) for pattern in _patterns(section, words))


def _plain(text: str) -> str:
    """Lower case, no punctuation, single spaces."""
    return re.sub(r"[\s?.!,:;\"'()]+", " ", text.lower()).strip()


@lru_cache(maxsize=None)
def _patterns(section: str, words: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    slot = "(?:" + "|".join([*(re.escape(_plain(word)) for word in words if word), r"[$]?\d+(?: \d+)?%?", NOUNS]) + ")"
    leads = {"NP": f"(?:{_any('ask_np', slot)} )?", "WH": f"(?:{_any('ask_wh', slot)} ?)?",
             "C": f"(?:{_any('ask_c', slot)} ?)?"}  # fmt: skip
    named = f"(?:number|no|#|titled|called|about|named|with the title)? ?{slot}"
    where = f"(?:(?:{IN}) )?(?:the |this |that )?(?:(?:{PLACES}) )?(?:{NOUNS})(?: {named})?"
    around = f"(?:{_any('context', slot)}|{where})"
    hello, close = _any("hello", slot), _any("close", slot)
    found = []
    for rule in grammar()[section]:
        core = f"{leads.get(rule.type, '')}{_regex(rule.node, slot)}"
        found.append(re.compile(_tidy(f"(?:{hello} )?(?:{around} )?{core}(?: {around})?(?: {close})?")))
    return tuple(found)


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
