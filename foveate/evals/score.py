"""Right or wrong: how an answer is compared with the wanted one, and how descriptions are checked.

Owns the comparison rules. An answer is right when it equals the wanted one (case, outer quotes, spaces and a final full
stop aside), when both are the same JSON, or, for numbers, when it lies within five per cent. A description is right
when every number in it is right for what it is said of. Refuses to know where answers come from.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE = 0.05
_NUMBER = re.compile(r"(?<![\w.])[-−]?\$?\d[\d,]*(?:\.\d+)?%?(?!\w)")


@dataclass(frozen=True)
class Outcome:
    """One question, what was answered, and whether that was right."""

    id: str
    images: int
    kind: str
    question: str
    wanted: str
    answer: str
    right: bool


def normal(text: str) -> str:
    """The text as it is compared: one space between words, no outer quotes or final stop, case folded."""
    text = re.sub(r"\s+", " ", text).strip()
    return text.removesuffix(".").strip("\"'“” ").removesuffix(".").strip().casefold()


def number(text: str) -> float | None:
    """The number that a text is, signs of currency, per cent and thousands aside; None if it is not just a number."""
    bare = normal(text).replace(",", "").replace("−", "-").strip("$€%").strip()
    return float(bare) if re.fullmatch(r"-?\$?\d+(?:\.\d+)?", bare) else None


def is_right(answer: str, wanted: str, numeric: bool) -> bool:
    """Whether an answer counts as right."""
    if normal(answer) == normal(wanted):
        return True
    if numeric:
        got, want = number(answer), number(wanted)
        return got is not None and want is not None and abs(got - want) <= TOLERANCE * abs(want) + 1e-9
    if wanted.startswith("{"):
        return _same_json(answer, wanted)
    return False


def _same_json(answer: str, wanted: str) -> bool:
    try:
        return json.loads(answer) == json.loads(wanted)
    except ValueError:
        return False


def description_is_right(text: str, data: Mapping[str, Any]) -> bool:
    """Whether a description states at least one number and every number in it is right.

    `data` holds title, labels, series and values (as shown). A number straight after a label ("Oslo 12", "Oslo is 12",
    "Oslo with 12") must be a value of that label; any other must be some value of the chart or count its categories or
    series. A chart whose values cannot be read needs its count only.
    """
    marked = _mark_names(text, data)
    found = [_is_stated_rightly(marked, match, data) for match in _NUMBER.finditer(marked)]
    return bool(found) and all(found)


def _mark_names(text: str, data: Mapping[str, Any]) -> str:
    """Puts "⟨n⟩" in place of label n, and removes the title and the names of series."""
    if data["title"]:
        text = text.replace(data["title"], "")
    names = [(name, f"⟨{chr(0x4E00 + at)}⟩") for at, name in enumerate(data["labels"])]
    names += [(name, "⟨⟩") for name in data["series"] if name != "value"]
    for name, mark in sorted(names, key=lambda pair: len(pair[0]), reverse=True):
        text = re.sub(rf"(?<![\w⟨-]){re.escape(name)}(?![\w⟩-])", mark, text)
    return text


def _is_stated_rightly(text: str, match: re.Match[str], data: Mapping[str, Any]) -> bool:
    stated = number(match[0])
    every = [[number(value) for value in row] for row in data["values"]]
    owner = re.search(
        r"⟨(\S)⟩[\"']?(?: is| are| has| with| at| of|:| =| \(|,? value)?(?: of| at)? ?\(?$", text[: match.start()]
    )
    if owner:
        at = ord(owner[1]) - 0x4E00
        return any(stated == row[at] for row in every)
    known = {value for row in every for value in row} if data.get("readable", True) else set()
    return stated in known | {float(len(data["labels"])), float(len(data["series"]))}


def shares(outcomes: Iterable[Outcome], key: str) -> dict[Any, tuple[int, int]]:
    """Right and asked, by "kind" or by "images"."""
    counts: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for outcome in outcomes:
        pair = counts[getattr(outcome, key)]
        pair[0] += outcome.right
        pair[1] += 1
    return {name: (right, asked) for name, (right, asked) in sorted(counts.items())}


def identical(outcomes: Sequence[Outcome], other: Mapping[str, str]) -> int:
    """How many answers are the same text, by question id, as in another run."""
    return sum(other.get(outcome.id) == outcome.answer for outcome in outcomes)
