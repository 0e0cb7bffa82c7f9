"""`foveate bench concurrency`: both arms and the queue in one run, and the arithmetic of its figures."""

from __future__ import annotations

import asyncio
import io
import itertools
import json

import pytest
from PIL import Image
from rich.console import Console

from foveate.bench.concurrency import Found, Group, Plan, Shot, figures, fresh, measure, questions, report
from foveate.core.config import Settings
from foveate.core.errors import ConfigError
from tests.support.harness import tiny


def test_both_arms_and_the_queue_on_a_tiny_model() -> None:
    plan = Plan(at_once=3, queued=4, slots=2, repeats=1, max_tokens=6)
    settings = Settings(kv_tokens=4096, page_len=16, threads=1, draft="none")
    found = asyncio.run(measure(str(tiny("dense")[2]), settings, plan, lambda line: None))
    line = json.loads(report(found, plan, Console(quiet=True)))
    assert line["identical"] and line["encodes"] == 3 and line["at_once_s"] > 0
    queue = line["queue"]
    assert (queue["requests"], queue["slots"], queue["answered"]) == (4, 2, 4)
    assert queue["identical"] and queue["encodes"] == 4
    assert len(found.together) == len(found.in_turn) == 1 and len(found.further.shots) == 1


def group(texts: str, seconds: float, encodes: int) -> Group:
    shots = tuple(None if text == "-" else Shot(text, 10, 0.5, 1.0) for text in texts)
    return Group(shots, seconds, encodes)


def test_figures_are_medians_and_tell_wrong_refused_and_twice_encoded() -> None:
    plan = Plan(at_once=2, queued=3, slots=2)
    alone = [group("ab", 4.0, 2), group("ab", 5.0, 2), group("ab", 6.0, 2)]
    at_once = [group("ab", 2.0, 2), group("ab", 2.5, 3), group("ab", 9.0, 2)]
    line = figures(Found(at_once, alone, group("ab-", 3.0, 2), group("c", 1.0, 1)), plan)
    assert (line["at_once_s"], line["one_by_one_s"], line["speedup"]) == (2.5, 5.0, 2.0)
    assert (line["at_once_tok_s"], line["one_by_one_tok_s"]) == (8.0, 4.0)
    assert line["identical"] and line["encodes"] == 3
    assert line["queue"]["answered"] == 2 and not line["queue"]["identical"]
    swapped = figures(Found([group("ba", 2.0, 2)], alone, group("abc", 3.0, 3), group("c", 1.0, 1)), plan)
    assert not swapped["identical"], "each answer must be about its own picture"
    assert swapped["queue"]["identical"] and swapped["queue"]["answered"] == 3


def test_pictures_are_different_ones_in_files_never_sent_before() -> None:
    asked, marks = questions(20), itertools.count()
    assert len({picture for _, picture in asked}) == 20
    one, two = fresh(asked[:2], marks), fresh(asked[:2], marks)
    assert len({picture for _, picture in (*asked[:2], *one, *two)}) == 6
    for (question, before), (same, after) in zip(asked, one, strict=False):
        assert question == same
        assert Image.open(io.BytesIO(before)).tobytes() == Image.open(io.BytesIO(after)).tobytes()
    with pytest.raises(ConfigError, match="different pictures"):
        questions(101)
