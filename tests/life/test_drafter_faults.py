"""A drafter that breaks, at any look or guess: each answer is what it would have been, and decoding goes on plainly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from foveate.core.errors import ConfigError
from tests.cases.oracle import House, Said, open_house
from tests.support.engines import png

FAULTS = [f"{place}-{how}" for place in ("observe", "propose") for how in ("raise", "memory")]
ASKED: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a text",), {}),
    ((png(1), "a picture"), {}),
    ((png(1), png(2), "two pictures, drawn"), {"temperature": 1.0, "seed": 5}),
    (("one and one and one and one and",), {"temperature": 0.7, "seed": 6}),
]


def answers(house: House) -> list[Said]:
    """All at once, so that the step which fails has several in it."""
    with ThreadPoolExecutor(len(ASKED)) as pool:
        asked = [pool.submit(house.ask, *content, max_tokens=30, **fields) for content, fields in ASKED]
        return [one.result() for one in asked]


@pytest.fixture(scope="module")
def want(folder: Path) -> list[Said]:
    with open_house(folder, draft="none") as house:
        return answers(house)


def drafted(said: list[Said]) -> int:
    return sum(one.timings["drafted"] for one in said)


@pytest.mark.parametrize("at", [1, 9, 40])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_request_and_no_token_is_lost(folder: Path, want: list[Said], fault: str, at: int) -> None:
    with open_house(folder, draft="mtp", draft_adaptive=False, inject_fault=f"{fault}:{at}") as house:
        for _ in range(2):
            assert all(one.same(other) for one, other in zip(answers(house), want, strict=True))
        failed = [line for line in house.log.lines if "the drafter failed" in line]
        assert len(failed) == 1 and "planted fault" in failed[0], "said once, with its reason"
        assert house.engine.loop._executor.drafter is None, "it is not kept, and nothing is captured for it"
        assert drafted(answers(house)) == 0
        house.check()
        assert house.http.get("/health").json()["status"] == "ok"


def test_a_sound_drafter_is_asked_all_the_time(folder: Path, want: list[Said]) -> None:
    """So that the test above shows something: without the fault the same server guesses to the end."""
    with open_house(folder, draft="mtp", draft_adaptive=False) as house:
        for _ in range(2):
            said = answers(house)
            assert drafted(said) > 40 and all(one.same(other) for one, other in zip(said, want, strict=True))
        assert not [line for line in house.log.lines if "the drafter failed" in line]


def test_a_fault_of_no_drafter_is_refused(folder: Path) -> None:
    fault = f"{FAULTS[0]}:1"
    with pytest.raises(ConfigError, match="needs a drafter"), open_house(folder, draft="none", inject_fault=fault):
        pass
