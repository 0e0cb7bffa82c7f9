"""demo-ds4 with its own DSpark: the same answers as without it, alone and at once, and fewer steps."""

from __future__ import annotations

import pytest

from foveate.engine.checkpoint import BUNDLED
from tests.model.test_speculation import answers

MADE = (BUNDLED["demo-ds4"] / "config.json").is_file()
pytestmark = [pytest.mark.model, pytest.mark.skipif(not MADE, reason="demo-ds4 has not been made (see recipe)")]


async def test_its_drafter_changes_nothing_but_the_number_of_steps() -> None:
    want, plain = await answers(1, "demo-ds4", draft="none", draft_adaptive=False)
    assert not any(timing.drafted for timing in plain)
    for batch in (1, 4):
        got, timings = await answers(batch, "demo-ds4", draft="auto", draft_adaptive=False)
        assert got == want
        steps = sum(timing.decode_steps for timing in timings)
        assert 1 + sum(sum(timing.accepted) for timing in timings) / steps > 1.3
    batched, _ = await answers(4, "demo-ds4", draft="none", draft_adaptive=False)
    assert batched == want
