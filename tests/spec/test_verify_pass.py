"""A verified step, committed, equals a plain run of what was accepted: states, pages, features, what comes after."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from foveate.models.interface import Batch, Capture, Forward, Memory
from foveate.run.cache import allocate
from tests.spec.test_branches import path_to, tree
from tests.support.harness import tiny

PAGE, PAGES, SLOTS = 4, 64, 4
CAPTURE = Capture((0, 2, 3), final=True)
NOISE = 5e-6  # between a chunk's, a step's and a branch's order of float32 additions; a mistake starts at 1e-3
OFFSET = -3  # as after an image: rope positions lie behind the index


@dataclass
class Sequence:
    """One sequence's place in the memory of a test."""

    number: int
    tokens: list[int] = field(default_factory=list)

    @property
    def pages(self) -> list[int]:
        return list(range(self.number * 16, self.number * 16 + 16))


@dataclass
class Run:
    """A slice of a test's step: new tokens of a sequence; `parents` of the drafts, or None for a plain run."""

    sequence: Sequence
    tokens: list[int]
    parents: tuple[int, ...] | None = None


def fresh(kind: str) -> Memory:
    memory = allocate(tiny(kind)[0].memory_spec(), PAGES, PAGE, SLOTS, "cpu")
    for tensor in (*memory.paged.values(), *memory.state.values()):
        tensor.fill_(float("nan"))
    return memory


def depths(parents: tuple[int, ...]) -> list[int]:
    deep = [0]
    for parent in parents:
        deep.append(deep[parent] + 1)
    return deep


def step(kind: str, memory: Memory, runs: list[Run], capture: Capture = CAPTURE) -> Forward:
    """One forward with logits of every token."""
    positions: list[int] = []
    for run in runs:
        start = len(run.sequence.tokens) + OFFSET
        places = range(len(run.tokens)) if run.parents is None else depths(run.parents)
        positions += [start + place for place in places]
    ids = torch.tensor([token for run in runs for token in run.tokens])
    batch = Batch(
        ids=ids,
        positions=torch.tensor(positions).expand(3, -1),
        query_lens=tuple(len(run.tokens) for run in runs),
        past_lens=tuple(len(run.sequence.tokens) for run in runs),
        pages=torch.tensor([run.sequence.pages for run in runs]),
        slots=torch.tensor([run.sequence.number for run in runs]),
        logits_at=torch.arange(len(ids)),
        verify=tuple(run.parents is not None for run in runs),
        parents=tuple(run.parents or () for run in runs),
    )
    return tiny(kind)[0].run(batch, memory, capture)


def plain(kind: str, memory: Memory, *runs: Run) -> Forward:
    forward = step(kind, memory, list(runs))
    for run in runs:
        run.sequence.tokens += run.tokens
    return forward


def copy(memory: Memory) -> Memory:
    paged, state = ({name: t.clone() for name, t in part.items()} for part in (memory.paged, memory.state))
    return Memory(paged, state, memory.page_len)


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(256) for _ in range(count)]


def standing(memory: Memory, sequence: Sequence) -> list[Tensor]:
    """Everything of a sequence that may be read later."""
    length = len(sequence.tokens)
    kept = [t[sequence.pages].flatten(0, 1)[:length] for t in memory.paged.values()]
    return kept + [t[sequence.number] for t in memory.state.values()]


def near(got: list[Tensor], want: list[Tensor]) -> float:
    return max(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("kind", ["dense", "dense_tied", "moe"])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_every_place_of_rejection(kind: str, shape: str) -> None:
    rng = random.Random(7)
    parents = tuple(range(6)) if shape == "chain" else tree(3, 9)
    prompt, drafts, after = tokens(rng, 13), tokens(rng, len(parents) + 1), tokens(rng, 3)
    memory, sequence = fresh(kind), Sequence(1)
    plain(kind, memory, Run(sequence, prompt))
    for last in range(len(parents) + 1):
        path = path_to(parents, last)
        tried, other = copy(memory), copy(memory)
        forward = step(kind, tried, [Run(sequence, drafts, parents)])
        assert all(torch.equal(a[1], b[1]) for a, b in zip(tried.state.values(), memory.state.values(), strict=True))
        assert forward.pending is not None
        forward.pending.commit([path])
        left, right = Sequence(1, list(sequence.tokens)), Sequence(1, list(sequence.tokens))
        right_forward = plain(kind, other, Run(right, [drafts[at] for at in path]))
        left.tokens += [drafts[at] for at in path]
        assert near(standing(tried, left), standing(other, right)) < NOISE
        if last:  # beside no rejected drafts: there is nothing that could have been left
            only = copy(memory)
            clean = step(kind, only, [Run(sequence, [drafts[at] for at in path], tuple(range(len(path) - 1)))])
            assert clean.pending is not None
            clean.pending.commit([range(len(path))])
            assert near(standing(tried, left), standing(only, left)) < 1e-6
        for got, want in ((forward.features, right_forward.features), (forward.final, right_forward.final)):
            assert got is not None and want is not None and near([got[path]], [want]) < 1e-5
        assert near([forward.logits[path]], [right_forward.logits]) < 1e-5
        later = [plain(kind, m, Run(s, after)).logits for m, s in ((tried, left), (other, right))]
        assert near(later[:1], later[1:]) < 1e-5


@pytest.mark.parametrize("seed", range(4))
def test_mixed_steps_of_prefill_decode_chains_and_trees(seed: int) -> None:
    """Whatever stands beside a verified sequence changes neither it nor them."""
    rng, kind = random.Random(seed), "dense"
    memory, sequences = fresh(kind), [Sequence(number) for number in range(4)]
    for sequence in sequences[:3]:
        plain(kind, memory, Run(sequence, tokens(rng, rng.randint(3, 12))))
    others = [Sequence(s.number, list(s.tokens)) for s in sequences]
    alone = copy(memory)
    shapes = [tuple(range(rng.randint(1, 5))), tree(seed, rng.randint(2, 8))]
    runs = [
        Run(sequences[0], tokens(rng, 1 + len(shapes[0])), shapes[0]),
        Run(sequences[3], tokens(rng, 5)),
        Run(sequences[1], tokens(rng, 1)),
        Run(sequences[2], tokens(rng, 1 + len(shapes[1])), shapes[1]),
    ]
    paths = [path_to(run.parents, rng.randint(0, len(run.parents))) for run in (runs[0], runs[3]) if run.parents]
    order = list(range(4))
    rng.shuffle(order)
    forward = step(kind, memory, [runs[i] for i in order])
    assert forward.pending is not None
    forward.pending.commit(paths if order.index(0) < order.index(3) else paths[::-1])
    at = {i: sum(len(runs[j].tokens) for j in order[: order.index(i)]) for i in order}
    for i, run in enumerate(runs):
        path = list(range(len(run.tokens))) if run.parents is None else paths[i == 3]
        run.sequence.tokens += [run.tokens[t] for t in path]
        want = plain(kind, alone, Run(others[run.sequence.number], [run.tokens[t] for t in path]))
        assert near(standing(memory, run.sequence), standing(alone, others[run.sequence.number])) < NOISE
        here = [at[i] + t for t in path]
        assert forward.features is not None and want.features is not None
        assert near([forward.features[here], forward.logits[here]], [want.features, want.logits]) < 1e-5


def test_captured_features_are_the_layers_own_outputs() -> None:
    """Later layers add in place to the same tensor: a capture that does not copy would show the last layer thrice."""
    memory, rng = fresh("dense"), random.Random(0)
    forward = plain("dense", memory, Run(Sequence(0), tokens(rng, 9)))
    assert forward.features is not None and forward.final is not None
    layers = forward.features.chunk(3, -1)
    assert all((a - b).abs().max() > 0.1 for a, b in ((layers[0], layers[1]), (layers[1], layers[2])))
    model = tiny("dense")[0]
    assert torch.equal(model.head(forward.final), forward.logits)
