"""The equivalences notice mistakes: each planted fault of verification, acceptance or commit breaks one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from foveate.core.values import Ending
from foveate.models import qwen3_5_trial
from foveate.models.qwen3_5_trial import Trial
from foveate.ops import branches
from foveate.run import verify
from foveate.sched.request import Request
from tests.spec.test_speculation import check, jobs_with_images


def states_are_not_committed(self: Trial, paths: Any) -> None:
    self._compact(paths)


def rejected_keys_stay_in_front(self: Trial, paths: Any) -> None:
    pass


def all_is_committed(record: branches.DeltaRecord, state: Tensor, slots: Tensor, last: Tensor) -> None:
    branches.keep_delta(record, state, slots, torch.full_like(last, record.grow.shape[2] - 1))


def windows_forget_the_tree(parents: Any, kernel: int, device: torch.device) -> branches.Branches:
    whole = branches.lay_out_branches(parents, kernel, device)
    plain = branches.lay_out_branches([branches.chain(len(run)) for run in parents], kernel, device)
    return branches.Branches(whole.lens, whole.seen, whole.take, whole.give, plain.windows)


def positions_count_places(self: Request, start_at: int, end_at: int) -> Any:
    return self.prompt.positions.window(start_at, end_at)


def offsets_are_forgotten(self: Request, start_at: int, end_at: int) -> Any:
    from array import array

    window = self.prompt.positions.window(start_at, end_at)
    shift = self.prompt.positions.offset if self.draft else 0
    return tuple(array("q", (place - shift for place in axis)) for axis in window)


def penalties_forget_accepted_tokens(draw: Any, tokens: Any) -> Any:
    from dataclasses import replace

    return replace(draw, index=draw.index + len(tokens))


FAULTS: list[tuple[Any, str, Callable[..., Any]]] = [
    (Trial, "commit", states_are_not_committed),
    (Trial, "_compact", rejected_keys_stay_in_front),
    (qwen3_5_trial, "keep_delta", all_is_committed),
    (qwen3_5_trial, "lay_out_branches", windows_forget_the_tree),
    (Request, "_positions", positions_count_places),
    (Request, "_positions", offsets_are_forgotten),
    (verify, "later", penalties_forget_accepted_tokens),
]


@pytest.mark.parametrize(("place", "name", "fault"), FAULTS, ids=lambda part: getattr(part, "__name__", None))
def test_a_planted_fault_is_noticed(
    place: Any, name: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from tests.spec.test_speculation import SAMPLED

    jobs = jobs_with_images(31, 6, ending=Ending(30))
    jobs = [replace(job, sampling=replace(SAMPLED, seed=i)) if i % 2 else job for i, job in enumerate(jobs)]
    check(jobs, tree=True)
    monkeypatch.setattr(place, name, fault)
    with pytest.raises(AssertionError):
        check(jobs, tree=True)
