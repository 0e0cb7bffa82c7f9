"""Even steps give what mixed steps give: in decoding, in verifying chains, whatever they are filled up with.

Here they run unrecorded, with the operators in plain torch; `tests/gpu` records them.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from typing import Any

import pytest
import torch

from foveate.core.plan import Draw, Slice
from foveate.core.values import Ending, Sampling
from foveate.models.interface import Capture, Memory
from foveate.models.qwen3_5 import Dense, Qwen35
from foveate.models.qwen3_5_device import Qwen35OnDevice, stand_in
from foveate.ops.kernels import torch_kernels
from foveate.ops.lanes import glance
from foveate.run.batch import lay_out
from foveate.run.cache import allocate
from foveate.run.embeds import RowStore
from foveate.run.graphs import EvenSteps, Shape, Spare
from foveate.run.sampler import Look
from foveate.run.warm import rehearse, warm_up
from foveate.sched.speculate import DraftLimits
from tests.spec.guessing import Knowing
from tests.spec.test_verify_pass import NOISE, near
from tests.support.harness import Drive, late, make_job, tiny
from tests.support.invariants import alone

PAGES, PAGE_LEN, SLOTS = 40, 4, 5
CAPTURE = Capture((0, 2), final=True)
SPARE = Spare(PAGES, SLOTS)
GREEDY = Draw(Sampling(temperature=0.0), 0)


def even_steps(kind: str, memory: Memory, lanes: int = 8, spare: Spare = SPARE, most_pages: int = 30) -> EvenSteps:
    model = tiny(kind)[0]
    assert isinstance(model, Qwen35)
    on_device = Qwen35OnDevice(model.config, model.trunk, torch_kernels())
    return EvenSteps(on_device, memory, spare, "cpu", lanes, most_pages, record=False)


def fresh(kind: str) -> Memory:
    memory = allocate(tiny(kind)[0].memory_spec(), PAGES + 1, PAGE_LEN, SLOTS + 1, "cpu")
    for tensor in (*memory.paged.values(), *memory.state.values()):
        tensor.fill_(float("nan"))
    return memory


def copied(memory: Memory) -> Memory:
    paged, state = ({name: t.clone() for name, t in part.items()} for part in (memory.paged, memory.state))
    return Memory(paged, state, memory.page_len)


def piece(number: int, start_at: int, tokens: list[int], draft_len: int = 0, draw: Draw | None = GREEDY) -> Slice:
    """A slice of sequence `number`, whose rope positions lie three behind the index, on pages of its own."""
    at = array("q", range(start_at - 3, start_at - 3 + len(tokens)))
    used = -(-(start_at + len(tokens)) // PAGE_LEN)
    pages = tuple(range(number * 8, number * 8 + used))
    return Slice(number, start_at, tuple(tokens), (at, at, at), pages, number, draft_len=draft_len, draw=draw)


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(256) for _ in range(count)]


def mixed(kind: str, memory: Memory, slices: list[Slice]) -> Any:
    return tiny(kind)[0].run(lay_out(slices, RowStore("cpu", torch.float32), "cpu"), memory, CAPTURE)


def leased(memory: Memory) -> list[torch.Tensor]:
    """Everything but the spare page and slot."""
    kept = [t[:PAGES] for t in memory.paged.values()] + [t[:SLOTS] for t in memory.state.values()]
    return [torch.nan_to_num(t, nan=-7.0) for t in kept]


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_decoding_steps_equal_mixed_ones(kind: str, count: int) -> None:
    rng, memory = random.Random(count), fresh(kind)
    lens = [rng.randint(1, 17) for _ in range(count)]
    mixed(kind, memory, [piece(n, 0, tokens(rng, length), draw=None) for n, length in enumerate(lens)])
    other = copied(memory)
    even = even_steps(kind, other)
    for step in range(5):
        slices = [piece(n, length + step, tokens(rng, 1)) for n, length in enumerate(lens)]
        assert even.fits(slices)
        want, (got, look) = mixed(kind, memory, slices), even.run(slices, CAPTURE)
        assert near([got.logits, got.features, got.final], [want.logits, want.features, want.final]) < 1e-5
        assert look() == Look.of(glance(want.logits)) and got.pending is None
        assert near(leased(other), leased(memory)) < NOISE


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe"])
def test_a_first_token_needs_no_past(kind: str) -> None:
    memory, slices = fresh(kind), [piece(0, 0, [7]), piece(1, 0, [9])]
    other = copied(memory)
    got, _ = even_steps(kind, other).run(slices, CAPTURE)
    assert near([got.logits], [mixed(kind, memory, slices).logits]) < 1e-5
    assert near(leased(other), leased(memory)) < NOISE


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe"])
@pytest.mark.parametrize("seed", range(3))
def test_verified_chains_equal_mixed_ones(kind: str, seed: int) -> None:
    """Chains of different lengths, some sequences without drafts, every length of acceptance."""
    rng, memory = random.Random(seed), fresh(kind)
    lens, drafts = [rng.randint(3, 12) for _ in range(4)], [rng.choice([0, 1, 3, 6]) for _ in range(3)] + [2]
    mixed(kind, memory, [piece(n, 0, tokens(rng, length), draw=None) for n, length in enumerate(lens)])
    slices = [piece(n, lens[n], tokens(rng, 1 + drafts[n]), drafts[n]) for n in range(4)]
    paths = [range(1 + rng.randint(0, count)) for count in drafts if count]
    other = copied(memory)
    even = even_steps(kind, other)
    want, (got, look) = mixed(kind, memory, slices), even.run(slices, CAPTURE)
    assert near([got.logits, got.features, got.final], [want.logits, want.features, want.final]) < 1e-5
    assert look().best == want.logits.argmax(-1).tolist()
    for forward in (want, got):
        assert forward.pending is not None
        forward.pending.commit(paths)
    stands = iter(paths)
    for n, count in enumerate(drafts):
        length = lens[n] + (len(next(stands)) if count else 1)
        pages = range(n * 8, n * 8 + 8)
        for a, b in zip(other.paged.values(), memory.paged.values(), strict=True):
            assert near([a[pages].flatten(0, 1)[:length]], [b[pages].flatten(0, 1)[:length]]) < NOISE
        assert near([t[n] for t in other.state.values()], [t[n] for t in memory.state.values()]) < NOISE


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_warming_up_touches_only_the_spare_page_and_slot(kind: str) -> None:
    memory = fresh(kind)
    even = even_steps(kind, memory)
    warm_up(tiny(kind)[0], memory, even.spare, "cpu", 30)
    even.prepare(CAPTURE)
    assert all((t == -7.0).all() for t in leased(memory)), "memory that may be leased was written"
    assert {shape.lanes for shape, _ in even._programs} == {1, 2, 4, 8}


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe"])
def test_a_stand_in_has_the_models_sizes_and_runs(kind: str) -> None:
    model = tiny(kind)[0]
    assert isinstance(model, Qwen35)
    other = stand_in(model.config, (torch.device("cpu"), torch.float32), torch_kernels())
    by_kind = {type(layer.mixer): layer for layer in model.trunk.layers}
    for layer in other.trunk.layers:
        own = by_kind[type(layer.mixer)].mixer
        for name in own.__dataclass_fields__:
            assert getattr(layer.mixer, name).shape == getattr(own, name).shape, name
        if isinstance(mlp := by_kind[type(layer.mixer)].mlp, Dense):
            assert isinstance(layer.mlp, Dense) and layer.mlp.gate_up.shape == mlp.gate_up.shape
    rehearse(other, "cpu", 2, PAGE_LEN)


def test_what_is_not_even_does_not_fit() -> None:
    even, plain = even_steps("dense", fresh("dense"), lanes=2), piece(0, 5, [1])
    assert even.fits([plain, piece(1, 5, [1, 2, 3], 2)])
    assert not even.fits([plain] * 3)
    assert not even.fits([piece(0, 5, [1, 2])])  # a chunk of a prompt
    assert not even.fits([piece(0, 5, [1], draw=None)])
    assert not even.fits([piece(0, 5, [1] * 18, 17)])
    assert not even.fits([replace(piece(0, 5, [1, 2, 3], 2), parents=(0, 0))])
    assert not even.fits([replace(plain, pages=tuple(range(36)))])  # longer than any sequence may grow


def test_steps_are_rounded_up_to_few_shapes_that_hold_what_fills_them_up() -> None:
    even = replace(even_steps("dense", fresh("dense")), most_pages=5000)
    assert even.shape_of([piece(0, 5, [1])]) == Shape(1, 1, 512)
    assert even.shape_of([piece(n, 5, [1] * 8, 7) for n in range(5)]) == Shape(8, 9, 512)
    # The table must reach as far as the filler tokens do, and no further than the longest sequence filled up.
    assert even.shape_of([piece(0, 2047, [1])]) == Shape(1, 1, 512)
    assert even.shape_of([piece(0, 2040, [1] * 8, 7)]) == Shape(1, 9, 4096)
    assert even.shape_of([piece(0, 4 * 5000 - 8, [1] * 8, 7)]) == Shape(1, 9, 5005)


class EvenDrive(Drive):
    """The synchronous engine with its even steps taken as such, and counted."""

    def __init__(self, kind: str = "dense", **extra: Any) -> None:
        super().__init__(kind, **extra)
        held, limits = self.runner._memory, self.limits
        parts = ({name: torch.cat([t, t[:1]]) for name, t in part.items()} for part in (held.paged, held.state))
        memory = Memory(*parts, held.page_len)
        self.runner._memory, self.taken = memory, 0
        most_pages = -(-limits.max_ctx // limits.page_len)
        self._even = even_steps(kind, memory, limits.slots, Spare(limits.pages, limits.slots), most_pages)
        self.runner.even = self  # type: ignore[assignment]

    def fits(self, slices: Any) -> bool:
        return self._even.fits(slices)

    def run(self, jobs: Any, *capture: Any) -> Any:
        """A step where there is a capture, else jobs as any `Drive` does."""
        if not capture:
            return super().run(jobs)
        self.taken += 1
        return self._even.run(jobs, *capture)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_whole_engine_gives_the_same_tokens(kind: str) -> None:
    jobs = [make_job(300 + i, i % 3, 25, sampling=Sampling(temperature=0.9 * (i % 2), seed=i)) for i in range(6)]
    want = [outcome.tokens for outcome in Drive(kind).run(jobs)]
    drive = EvenDrive(kind, landing=late(2))
    assert [outcome.tokens for outcome in drive.run(jobs)] == want
    assert drive.taken > 10


def test_a_whole_engine_that_guesses_gives_the_same_tokens() -> None:
    jobs = [make_job(400 + i, i % 2, 15, ending=Ending(20)) for i in range(5)]
    want = alone(jobs, "dense")
    drive = EvenDrive(drafter=Knowing(want), drafts=DraftLimits(draft_len=6, adaptive=False), slots=3)
    outcomes = drive.run(jobs)
    assert [outcome.tokens for outcome in outcomes] == want
    assert drive.taken > 10 and sum(sum(outcome.timings.accepted) for outcome in outcomes) > 20
