"""One server for most cases, on a tiny model that may fetch from this machine; after each case the general oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.oracle import House, open_house
from tests.support.harness import tiny
from tests.support.web import PictureHost, picture_host


@pytest.fixture(scope="session")
def web() -> Iterator[PictureHost]:
    with picture_host() as host:
        yield host


@pytest.fixture(scope="session")
def folder() -> Path:
    return tiny("dense")[2]


@pytest.fixture(scope="session")
def shared_house(folder: Path, web: PictureHost) -> Iterator[House]:
    with open_house(folder, allowed_media_networks="127.0.0.0/8", allowed_media_ports=str(web.port)) as house:
        yield house


@pytest.fixture
def house(shared_house: House) -> Iterator[House]:
    yield shared_house
    shared_house.check()
