"""How many CPU threads a thread computes with.

Owns the one way to set that. Knows neither who computes nor how cores are divided.
"""

from __future__ import annotations

import torch


def compute_with(count: int) -> None:
    """Let the calling thread compute with `count` CPU threads from now on, whatever other threads set."""
    torch.get_num_threads()  # a thread that was never asked takes over, at its first operation, what any set last
    torch.set_num_threads(count)
