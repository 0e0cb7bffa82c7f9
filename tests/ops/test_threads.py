"""A thread keeps its own number of CPU threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from foveate.ops.threads import compute_with


def test_a_thread_keeps_its_number_when_another_sets_one_before_its_first_operation() -> None:
    before = torch.get_num_threads()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(compute_with, 3).result()
        other.submit(compute_with, 2).result()
        assert one.submit(torch.get_num_threads).result() == 3
        assert other.submit(torch.get_num_threads).result() == 2
    torch.set_num_threads(before)
