"""What holds for all tests: one CPU thread per process, for tiny tensors gain nothing from more and shared machines
lose much; and no example of a property fails because the machine was slow.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("foveate", deadline=None)
settings.load_profile("foveate")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    try:
        import torch
    except ImportError:  # the null tier runs without it
        return
    torch.set_num_threads(1)
