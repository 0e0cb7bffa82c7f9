"""DeepSeek V4's older single drafting layer: equal to its formulas, fed back, behind images, and changing no answer."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from torch import Tensor

from foveate.core.config import Settings
from foveate.core.errors import CheckpointError
from foveate.core.values import Ending
from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.deepseek_v4_draft_weights import load_v4_mtp, v4_draft_kind
from foveate.models.deepseek_v4_mtp import V4MtpDrafter
from foveate.models.drafting import Seen
from foveate.models.interface import Memory
from foveate.run.cache import allocate
from foveate.run.draft import ModelDrafter
from foveate.run.drafters import find_drafter
from foveate.sched.speculate import DraftLimits
from tests.models.v4_bench import Bench
from tests.spec.test_deepseek_dspark import PLACE, argmax, asked_of, folder_of, image_jobs, text_jobs
from tests.spec.v4_draft_naive import Drafting, mtp
from tests.support.harness import Drive, tiny
from tests.support.invariants import alone
from tests.support.tiny_v4 import VOCAB
from tests.support.tiny_v4_draft import make_tiny_drafting

FIRST = 12
DEPTH = 3


def drafter_of(kind: str) -> V4MtpDrafter:
    model = tiny(kind)[0]
    assert isinstance(model, DeepseekV4)
    return load_v4_mtp(folder_of(kind, "mtp"), model, PLACE, DEPTH)


def blank(drafter: V4MtpDrafter, slots: int = 4) -> Memory:
    memory = allocate(drafter.memory_spec(), 1, 4, slots, "cpu")
    for tensor in memory.state.values():
        tensor.fill_(float("nan"))
    return memory


def seen_of(parts: list[tuple[int, int, list[int], Tensor]]) -> Seen:
    """Sequences as (slot, past_len, ids, streams [tokens, n, hidden]) that one step made stand."""
    lens = tuple(len(ids) for _, _, ids, _ in parts)
    return Seen(
        ids=torch.tensor([token for _, _, ids, _ in parts for token in ids]),
        positions=torch.zeros(1, sum(lens), dtype=torch.int64),
        past_lens=tuple(past_len for _, past_len, _, _ in parts),
        lens=lens,
        pages=torch.zeros(len(parts), 1, dtype=torch.int64),
        slots=torch.tensor([slot for slot, _, _, _ in parts]),
        features=None,
        final=None,
        streams=torch.cat([streams.flatten(1) for _, _, _, streams in parts]),
    )


def agree(drafter: V4MtpDrafter, memory: Memory, row: tuple[int, list[int], Tensor, int], folder: Path) -> None:
    """Guesses behind (slot, ids, streams, tail) are those of the formulas, each fed back."""
    slot, ids, streams, tail = row
    anchor = 77
    asked = asked_of([anchor], [len(ids)], [slot], DEPTH)
    guesses = drafter.propose(asked, memory, argmax)
    assert guesses.known is not None and guesses.known.tolist() == [True]
    tokens, logits = mtp(Drafting.of(folder), [*ids, anchor], list(streams), tail, DEPTH)
    assert guesses.tokens[0].tolist() == tokens
    best = logits.log_softmax(-1).topk(guesses.ids.shape[-1])
    assert (guesses.logprobs[0] - best.values).abs().max() < 1e-4 and torch.equal(guesses.ids[0], best.indices)
    assert (guesses.confidence[0] - best.values[:, 0].exp()).abs().max() < 1e-5


@pytest.mark.parametrize("size", [1, 2, 5, 9, 40])
@pytest.mark.parametrize("kind", ["v4", "v4_official", "v4_wide"])
def test_guesses_are_what_the_formulas_say_however_the_context_came(kind: str, size: int) -> None:
    drafter, random = drafter_of(kind), torch.Generator().manual_seed(size)
    hidden, count = drafter._target.hidden_size, 31  # more than any window
    streams = torch.randn(2, count, 4, hidden, generator=random)
    ids = torch.randint(FIRST, VOCAB, (2, count), generator=random).tolist()
    memory = blank(drafter)
    for start in range(0, count, size):
        part = slice(start, start + size)
        drafter.observe(
            seen_of([(slot, start, ids[i][part], streams[i][part]) for i, slot in enumerate((3, 1))]), memory
        )
        for i, slot in enumerate((3, 1)):
            end = min(start + size, count)
            if end in (1, 2, 5, 9, 30, 31):
                agree(drafter, memory, (slot, ids[i][:end], streams[i][:end], 0), folder_of(kind, "mtp"))


@pytest.mark.parametrize("cut", [2, 6, 7, 8, 20])
def test_pairs_behind_the_last_image(cut: int) -> None:
    drafter, random = drafter_of("v4_vision"), torch.Generator().manual_seed(cut)
    ids = [20, 21, *[VOCAB + kind for kind in (1, 0, 2, 3, 4)], 22, 23, 24]
    streams = torch.randn(len(ids), 4, 64, generator=random)
    memory = blank(drafter)
    for start in range(0, len(ids), cut):
        part = slice(start, start + cut)
        drafter.observe(seen_of([(2, start, ids[part], streams[part])]), memory)
    agree(drafter, memory, (2, ids, streams, 7), folder_of("v4_vision", "mtp"))


def test_nothing_is_guessed_where_an_image_came_last() -> None:
    drafter = drafter_of("v4_vision")
    memory = blank(drafter)
    drafter.observe(seen_of([(0, 0, [20, VOCAB, VOCAB + 4], torch.randn(3, 4, 64))]), memory)
    guesses = drafter.propose(asked_of([30], [3], [0], DEPTH), memory, argmax)
    assert guesses.known is not None and guesses.known.tolist() == [False]


def test_streams_are_what_the_head_reads() -> None:
    """The captured streams, through the head's own site and norm, give the trunk's logits."""
    from foveate.ops.hyper import head_streams
    from foveate.ops.layers import rms_norm

    model = drafter_of("v4")._target
    bench, ids = Bench(model), list(range(20, 37))
    forward = bench.run((bench.begin(ids), ids, False), capture=V4MtpDrafter.capture)
    assert forward.streams is not None and forward.streams.shape == (17, 4 * 64)
    state = head_streams(forward.streams.view(17, 4, 64), model.trunk.site, model.config.mixing)
    logits = model.head(rms_norm(state, model.trunk.norm, model.config.eps))
    assert (logits - forward.logits).abs().max() < 1e-5


def test_answers_are_the_same_with_and_without() -> None:
    jobs = [*image_jobs()[:5], *text_jobs(2, 2)]
    drafter = ModelDrafter("mtp", drafter_of("v4_vision"), "cpu")
    outcomes = Drive("v4_vision", drafter=drafter, drafts=DraftLimits(DEPTH, adaptive=False), slots=3).run(jobs)
    assert [outcome.tokens for outcome in outcomes] == alone(jobs, "v4_vision")
    assert sum(outcome.timings.drafted for outcome in outcomes) > 50
    assert jobs[0].ending == Ending(24)


def test_auto_finds_it_and_names_what_is_missing(tmp_path: Path) -> None:
    model, folder = tiny("v4")[0], folder_of("v4", "mtp")
    assert v4_draft_kind(folder) == "mtp"
    for settings, most_len in ((Settings(), 4), (Settings(draft="mtp", draft_len=2), 2)):
        found = find_drafter(settings, folder, None, model, PLACE)
        assert found is not None and (found.name, found.most_len) == ("mtp", most_len)
    wrong = make_tiny_drafting(Path(mkdtemp(dir=tmp_path)), "v4_official", "mtp")
    with pytest.raises(CheckpointError, match=r"mtp\.0"):
        find_drafter(Settings(draft="mtp"), wrong, None, model, PLACE)
