"""One server for most tests of this folder; each test starts from a fresh scripted service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foveate.core.config import MIB
from foveate.server.contract import Limits
from tests.server.live import Live, running

QUICK = Limits(body_bytes=4 * MIB, held_bytes=16 * MIB, read_stall_s=1.5, send_stall_s=5.0, keep_alive_s=0.05)


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Live]:
    with running(QUICK) as live:
        yield live


@pytest.fixture
def live(shared_server: Live) -> Live:
    shared_server.reset()
    return shared_server
