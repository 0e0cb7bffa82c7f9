"""One server for most tests of this folder; each test starts from a fresh scripted service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foveate.core.config import MIB
from foveate.server.contract import Limits
from tests.cases.oracle import House, open_house
from tests.server.live import Live, running
from tests.server.scripted import Stage, on_stage
from tests.support.harness import tiny

QUICK = Limits(body_bytes=4 * MIB, held_bytes=16 * MIB, read_stall_s=1.5, send_stall_s=5.0, keep_alive_s=0.05)


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Live]:
    with running(QUICK) as live:
        yield live


@pytest.fixture
def live(shared_server: Live) -> Live:
    shared_server.reset()
    return shared_server


@pytest.fixture(scope="session")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with on_stage(Path(tmp_path_factory.mktemp("stage")) / "model") as stage:
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    shared_stage.script.say(None)
    return shared_stage


@pytest.fixture(scope="session")
def live_plain() -> Iterator[House]:
    """A real server on a tiny model whose template shows neither tools nor thoughts."""
    with open_house(tiny("dense")[2]) as house:
        yield house
