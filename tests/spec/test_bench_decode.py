"""`foveate bench decode`: both arms in one run, and the arithmetic of its figures."""

from __future__ import annotations

import asyncio
import json

import pytest
from rich.console import Console

from foveate.bench.decode import Plan, Shot, Tally, descriptions, measure, report
from foveate.core.config import Settings
from foveate.core.errors import ConfigError
from foveate.core.values import Timings
from tests.support.harness import tiny


def test_both_arms_on_a_tiny_model() -> None:
    settings = Settings(kv_tokens=4096, page_len=16, threads=1, draft="mtp", draft_adaptive=False)
    tallies = asyncio.run(measure(str(tiny("dense")[2]), settings, Plan(4, (1, 2), 12), lambda line: None))
    line = json.loads(report(tallies, Console(quiet=True)))
    assert line["identical"] and line["plain_tok_s"] > 0 and line["speculative_tok_s"] > 0
    assert line["tokens_per_step"] >= 1 and set(line["batches"]) == {"1", "2"}
    for pair in tallies.values():
        assert not pair["plain"].drafted and pair["speculative"].drafted
        assert 0 < pair["plain"].tokens == pair["speculative"].tokens <= 4 * 11


def test_rates_count_what_came_after_first_tokens() -> None:
    tally = Tally()
    one = Shot("a", 1.0, 3.0, 9, Timings(decode_steps=4, drafted=12, accepted=(3, 1)))
    two = Shot("b", 1.5, 5.0, 5, Timings(decode_steps=2, drafted=4, accepted=(2,)))
    tally.add([one, two])
    assert (tally.tokens, tally.seconds, tally.steps, tally.drafted, tally.accepted) == (12, 4.0, 6, 16, 6)
    assert tally.rate == 3.0 and tally.tokens_per_step == 2.0


def test_no_more_descriptions_than_there_are() -> None:
    assert len(descriptions(100)) == 100
    with pytest.raises(ConfigError, match="there are 100 descriptions, 101"):
        descriptions(101)
