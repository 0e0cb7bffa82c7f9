"""One CPU thread per test process: tiny tensors gain nothing from more, and shared machines lose much."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    try:
        import torch
    except ImportError:  # the null tier runs without it
        return
    torch.set_num_threads(1)
