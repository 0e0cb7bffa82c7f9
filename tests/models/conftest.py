"""Tiny checkpoints of every kind, loaded once for this folder's tests."""

from __future__ import annotations

import pytest
import torch

from tests.models.oracle import Oracle
from tests.support.tiny import KINDS


@pytest.fixture(scope="session")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Oracle]:
    torch.set_num_threads(1)
    return {kind: Oracle.of(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def oracle(request: pytest.FixtureRequest, oracles: dict[str, Oracle]) -> Oracle:
    return oracles[request.param]
