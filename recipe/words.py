"""Words on charts: labels, series names, titles, axis titles; real and invented.

Owns the word lists (`words.json`) and the one rule that splits them: `held_out` decides by a checksum of the word
whether it is kept for the "test" split. The same rule applies to invented words, so no open word is ever in both.
Closed lists (months, weekdays, years, quarters, single letters) are shared. Refuses to know about charts.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from functools import cache, lru_cache
from pathlib import Path

ONSETS = ("b", "br", "bl", "c", "ch", "cl", "cr", "d", "dr", "f", "fl", "fr", "g", "gl", "gr", "h", "j", "k", "kl", "l",
          "m", "n", "p", "ph", "pl", "pr", "qu", "r", "s", "sc", "sh", "sk", "sl", "sm", "sn", "sp", "st", "str", "sw",
          "t", "th", "tr", "tw", "v", "w", "wh", "x", "y", "z")  # fmt: skip
VOWELS = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "u", "ai", "ea", "ee", "ei", "ia", "ie", "io", "oa", "oo", "ou",
          "ue", "y")  # fmt: skip
CODAS = ("", "", "", "b", "ck", "d", "ff", "g", "l", "ll", "m", "mp", "n", "nd", "ng", "nk", "nt", "p", "r", "rd", "rk",
         "rn", "rt", "s", "ss", "st", "t", "th", "x", "z")  # fmt: skip
SMALL = frozenset(["a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "per", "the", "to", "vs", "with"])


@lru_cache(maxsize=1)
def lists() -> dict[str, dict[str, tuple[str, ...]]]:
    """The word lists: `closed`, `topics`, `title` (each a mapping from a name to words)."""
    raw = json.loads((Path(__file__).parent / "words.json").read_text(encoding="utf-8"))
    return {part: {name: tuple(words) for name, words in group.items()} for part, group in raw.items()}


@cache
def held_out(word: str) -> bool:
    """Whether a word belongs to the test split alone."""
    return zlib.crc32(word.lower().encode()) % 7 == 3


@cache
def pool(part: str, name: str, split: str) -> tuple[str, ...]:
    """The words of a list that the split may use; all parts of an entry count as words."""
    words = lists()[part][name]
    if part == "closed":
        return words
    return tuple(entry for entry in words if allowed(entry, split))


def allowed(text: str, split: str) -> bool:
    """Train: no held-out word. Test: every open word held out (small words and numbers are shared)."""
    words = [word for word in re.findall(r"[^\W\d_]+", text) if word.lower() not in SMALL and len(word) > 1]
    if split == "train":
        return not any(held_out(word) for word in words)
    return bool(words) and all(held_out(word) for word in words)


def invent(rng: random.Random, split: str) -> str:
    """A pronounceable word of one to three syllables that the split may use."""
    while True:
        count = rng.choices((1, 2, 3), (22, 56, 22))[0]
        word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + (rng.choice(CODAS) if rng.random() < 0.6 else "")
                       for _ in range(count))  # fmt: skip
        if rng.random() < 0.12:
            word = rng.choice("aeiou") + word
        if 3 <= len(word) <= 11 and held_out(word) == (split == "test"):
            return word.capitalize()


def absent_label(rng: random.Random, split: str, labels: tuple[str, ...]) -> str:
    """A label of the same sort that is not among the given ones."""
    while True:
        label = make_labels(rng, split, 1, 14, labels[0][:1].isdigit())[0]
        if label.lower() not in (other.lower() for other in labels):
            return label


def make_labels(rng: random.Random, split: str, count: int, room: int, in_time: bool) -> tuple[str, ...]:
    """Distinct category names of at most `room` characters."""
    roll = rng.random()
    if (in_time and roll < 0.62) or roll < 0.14:
        found = _run(rng, count)
        if found:
            return found
    if rng.random() < (0.45 if split == "train" else 0.5):
        return _invented(rng, split, count, room)
    topics = list(lists()["topics"])
    words = [word for word in pool("topics", rng.choice(topics), split) if len(word) <= room]
    if split == "test":
        words += [word for topic in rng.sample(topics, 6) for word in pool("topics", topic, split) if len(word) <= room]
    words = list(dict.fromkeys(words))
    if len(words) < count:
        return _invented(rng, split, count, room)
    picked = rng.sample(words, count)
    style = rng.random()
    if style < 0.05:
        return tuple(word.upper() for word in picked)
    return tuple(word.lower() for word in picked) if style < 0.1 else tuple(picked)


def _run(rng: random.Random, count: int) -> tuple[str, ...] | None:
    """Consecutive entries of a closed list: months, years, weekdays, letters, and the like."""
    roll = rng.random()
    if roll < 0.4:
        step = rng.choice((1, 1, 1, 1, 2, 5, 10))
        first = rng.randint(1950, 2030 - step * (count - 1)) if step < 5 else 1900 + step * rng.randint(0, 3)
        return tuple(str(first + step * at) for at in range(count))
    if roll < 0.5:
        word = rng.choice(lists()["closed"]["numbered"])
        letters = rng.random() < 0.4
        return tuple(f"{word} {chr(65 + at) if letters else at + 1}" for at in range(count))
    words = lists()["closed"][rng.choice([name for name in lists()["closed"] if name != "numbered"])]
    if len(words) < count:
        return None
    first = rng.randint(0, len(words) - count) if rng.random() < 0.6 else 0
    return words[first : first + count]


def _invented(rng: random.Random, split: str, count: int, room: int) -> tuple[str, ...]:
    two = room > 10 and rng.random() < 0.2
    upper = rng.random()
    found: dict[str, None] = {}
    while len(found) < count:
        word = invent(rng, split)
        if two and rng.random() < 0.7:
            word += " " + invent(rng, split)
        if len(word) <= room:
            found[word.upper() if upper < 0.05 else word.lower() if upper < 0.1 else word] = None
    return tuple(found)


def make_series(rng: random.Random, split: str, count: int) -> tuple[str, ...]:
    """Names of the series; a single one is called "value" unless a table shows it."""
    roll = rng.random()
    if roll < 0.2:
        first = rng.randint(1980, 2026 - count)
        return tuple(str(first + at) for at in range(count))
    if roll < 0.55:
        return _invented(rng, split, count, 10)
    words = [word for word in pool("title", "series", split) if len(word) <= 12]
    return tuple(rng.sample(words, count)) if len(words) >= count else _invented(rng, split, count, 10)


def make_title(rng: random.Random, split: str, room: int) -> tuple[str, str, str]:
    """A title of one to six words (about half hold an invented word), what it measures, and by what."""
    while True:
        title, metric, by = _title(rng, split)
        if len(title) <= room * 2:
            break
    metric, by = (word.lower() if word in title else "" for word in (metric, by))
    style = rng.random()
    if style < 0.18:
        return title[0].upper() + title[1:].lower(), metric, by
    return title.upper() if style < 0.22 and len(title) < room else title, metric, by


def _title(rng: random.Random, split: str) -> tuple[str, str, str]:
    metric = _title_word(rng, split, "metrics", 0.12)
    by = _title_word(rng, split, "by", 0.25)
    place = invent(rng, split) if rng.random() < 0.6 else _title_word(rng, split, "places", 0.3)
    adjective = _title_word(rng, split, "adjectives", 0.05)
    year = str(rng.randint(1985, 2029))
    title = rng.choices(
        (
            f"{metric} by {by}", f"{adjective} {metric}", f"{place} {metric}", f"{metric} in {place}",
            f"{metric} of {place}", f"{adjective} {metric} by {by}", f"{place} {metric} {year}", f"{metric}, {year}",
            f"{metric} per {by}", f"{place} {adjective} {metric}", f"{metric} ({year})", f"{by} {metric}",
            f"{metric} of {place} by {by}", f"{metric} in {year}", f"{place} and {invent(rng, split)}",
            f"{adjective} {place} {invent(rng, split)}", f"{invent(rng, split)} {place} {by}", f"{metric}",
            f"{metric} vs {_title_word(rng, split, 'metrics', 0.3)}", f"{place}: {metric}",
        ),
        (10, 7, 10, 8, 6, 6, 6, 3, 5, 6, 3, 5, 5, 3, 4, 4, 4, 2, 3, 3),
    )[0]  # fmt: skip
    return title, metric, by


def _title_word(rng: random.Random, split: str, name: str, invented: float) -> str:
    words = pool("title", name, split)
    return rng.choice(words) if words and rng.random() > invented else invent(rng, split)


def axis_words(rng: random.Random, split: str) -> tuple[str, str]:
    """An axis title for the values and one for the categories; empty more often than not."""
    value = _title_word(rng, split, "metrics", 0.2) if rng.random() < 0.35 else ""
    label = _title_word(rng, split, "by", 0.3).capitalize() if rng.random() < 0.25 else ""
    return value, label
