"""The grammar of questions: reads the wording files and makes sentences from them.

Owns the small grammar language (see the head of `wordings.txt`), the ways of leading into a question, and casing, slips
of the finger and punctuation. Promises that text filled into slots is never changed except for case. Refuses to know
charts or answers.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

TYPES = ("NP", "WH", "Q", "T", "C")
MARK = "\x00"
_VALUE = re.compile(r"(?<!\w)(value|figure|number|amount|quantity|score|reading|level|total|result)(?!\w)")
_TOKEN = re.compile(r"\{(\w+)\}|<([a-z_]+)>|([(|)])|([^{<(|)]+|<)")


@dataclass(frozen=True)
class Node:
    """A piece of grammar: `kind` is text, slot, name, all (in a row) or any (one of)."""

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One line of a section."""

    weight: int
    type: str
    node: Node


@dataclass(frozen=True)
class Setting:
    """What the sentence is about: the chart's noun, or a required reference to one of several charts."""

    noun: str = "chart"
    reference: str = ""
    bare: bool = False  # add no words about where to look


@lru_cache(maxsize=1)
def grammar() -> dict[str, tuple[Rule, ...]]:
    """All sections of the wording files."""
    sections: dict[str, list[Rule]] = {}
    for name in ("wordings.txt", "wordings_many.txt"):
        here: list[Rule] = []
        for line in (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines():
            if line.startswith("== "):
                here = sections.setdefault(line[3:].strip(), [])
            elif line.strip() and not line.startswith("#"):
                here.append(_rule(line))
    return {name: tuple(rules) for name, rules in sections.items()}


def _rule(line: str) -> Rule:
    found = re.match(r"(?:(\d+) )?(NP|WH|Q|T|C) (.*)$", line.rstrip("\n"))
    if not found:
        raise ValueError(f"not a grammar line: {line!r}")
    tokens = [match.groups() for match in _TOKEN.finditer(found[3])]
    node, rest = _any(tokens, 0)
    if rest != len(tokens):
        raise ValueError(f"unbalanced parentheses: {line!r}")
    return Rule(int(found[1] or 1), found[2], node)


def _any(tokens: list[tuple], at: int) -> tuple[Node, int]:
    """Reads alternatives up to a closing parenthesis or the end."""
    choices, here = [], []
    while at < len(tokens) and tokens[at][2] != ")":
        slot, name, sign, text = tokens[at]
        at += 1
        if sign == "|":
            choices.append(Node("all", parts=tuple(here)))
            here = []
        elif sign == "(":
            node, at = _any(tokens, at)
            here.append(node)
            at += 1
        else:
            here.append(Node("slot", slot) if slot else Node("name", name) if name else Node("text", text))
    choices.append(Node("all", parts=tuple(here)))
    return (choices[0] if len(choices) == 1 else Node("any", parts=tuple(choices))), at


def expand(rng: random.Random, section: str) -> tuple[str, str]:
    """A random form of a section: its line type and its text, with slots as marked names."""
    rules = grammar()[section]
    rule = rng.choices(rules, [rule.weight for rule in rules])[0]
    return rule.type, re.sub(r"  +", " ", _spell(rng, rule.node)).strip().replace(" 'd ", "'d ").replace(" 'm ", "'m ")


def _spell(rng: random.Random, node: Node) -> str:
    if node.kind == "text":
        return node.text
    if node.kind == "slot":
        return f"{MARK}{node.text}{MARK}"
    if node.kind == "name":
        return expand(rng, node.text)[1]
    if node.kind == "any":
        return _spell(rng, rng.choice(node.parts))
    return "".join(_spell(rng, part) for part in node.parts)


def phrase(rng: random.Random, section: str, slots: dict[str, str], setting: Setting = Setting()) -> str:
    """A finished question of a section, its slots filled."""
    kind, core = expand(rng, section)
    lead = {"NP": "ask_np", "WH": "ask_wh", "C": "ask_c"}.get(kind)
    if "val" in slots:
        core = _VALUE.sub(slots["val"], core, count=1)
    text = core
    if lead and not (kind == "NP" and rng.random() < 0.08):
        opening = expand(rng, lead)[1]
        if not opening and core.startswith(("whether ", "if ")):
            opening = "say"
        text = f"{opening} {core}".strip()
    text = _placed(rng, text, kind, setting)
    if rng.random() < (0.03 if kind == "T" else 0.08):
        text = f"{expand(rng, 'hello')[1]}{rng.choice((', ', ', ', ' ', ': ', '! ', ' - '))}{text}"
    if rng.random() < (0.04 if kind == "T" else 0.09):
        text += f"{rng.choice((', ', ' '))}{expand(rng, 'close')[1]}"
    asks = kind == "Q" or re.match(r"(what|which|who|how|where|is|can|could|do|would|will|may|mind|any)\b", text)
    return fill(rng, _finished(rng, text, bool(asks)), slots, setting)


def _placed(rng: random.Random, text: str, kind: str, setting: Setting) -> str:
    """Adds where to look: always when a reference is due and the text does not name the chart yet."""
    named = f"{MARK}chart{MARK}" in text
    if setting.reference and not named:
        return _referred(rng, text)
    if named or setting.bare or rng.random() > (0.06 if kind == "T" else 0.24):
        return text
    where = expand(rng, "context")[1]
    return f"{where}, {text}" if rng.random() < 0.45 else f"{text} {where}"


def _referred(rng: random.Random, text: str) -> str:
    chart = f"the {MARK}chart{MARK}"
    roll = rng.random()
    if roll < 0.14:
        return f"{chart}: {text}"
    if roll < 0.2:
        return f"{text} ({chart})"
    where = rng.choice(("in", "in", "in", "for", "from", "on", "according to", "looking at", "in", "of"))
    return f"{where} {chart}, {text}" if roll < 0.55 and where != "of" else f"{text} {where} {chart}"


def _finished(rng: random.Random, text: str, asks: bool) -> str:
    """Casing, a slip of the finger now and then, punctuation, sometimes a second sentence."""
    if rng.random() < 0.03:
        text = _slip(rng, text)
    roll = rng.random()
    if roll < 0.6:
        text = text[:1].upper() + text[1:]
    elif roll < 0.615:
        text = MARK.join(part if at % 2 else part.upper() for at, part in enumerate(text.split(MARK)))
    end = rng.choices(("?", "", " ?", "??", "."), (76, 18, 1, 1, 4) if asks else (6, 46, 0, 0, 48))[0]
    text += end
    if end and rng.random() < 0.06:
        text += f" {expand(rng, 'note')[1]}{rng.choice('..!')}"
    return text


def _slip(rng: random.Random, text: str) -> str:
    """Drops, doubles or swaps one letter outside slots."""
    masked = re.sub(rf"{MARK}\w+{MARK}", lambda match: "0" * len(match[0]), text)
    spots = [match.start() for match in re.finditer(r"[a-z]{2}", masked)]
    if not spots:
        return text
    at = rng.choice(spots)
    swapped = text[at + 1] + text[at]
    return text[:at] + rng.choice((text[at], text[at] * 2 + text[at + 1], swapped)) + text[at + 2 :]


def fill(rng: random.Random, text: str, slots: dict[str, str], setting: Setting = Setting()) -> str:
    """Puts words into slots; now and then quoted, or in the lower case of a careless writer."""
    if setting.reference:
        text = re.sub(rf"(?:the|this|that|The|This|That) {MARK}chart{MARK}", f"{MARK}reference{MARK}", text)
        text = text.replace(f"{MARK}chart{MARK}", f"{MARK}reference{MARK}")
    quote = rng.choice(('"', "'", '"')) if rng.random() < 0.08 else ""
    lower = text[:1].islower() and rng.random() < 0.35
    words = {"chart": setting.noun, "reference": setting.reference, "invented": slots.get("invented", "")} | slots

    def word(match: re.Match[str]) -> str:
        name = match[1].lower() if match[1] not in words else match[1]
        value = words[name]
        if name in ("X", "Y", "A", "B", "S", "T"):
            value = f"{quote}{value.lower() if lower else value}{quote}"
        return value if match.start() else value[:1].upper() + value[1:] if name == "reference" else value

    return re.sub(rf"{MARK}(\w+){MARK}", word, text)
