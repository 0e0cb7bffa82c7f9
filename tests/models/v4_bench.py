"""Steps of a DeepSeek V4 text model over memory full of NaN, with pages and slots in no order.

Owns the bookkeeping of several sequences, so that a test says only which tokens of whom run together. A read beyond a
sequence's own tokens, or of a state that was never begun, shows in the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from torch import Tensor

from foveate.models.deepseek_v4 import DeepseekV4
from foveate.models.interface import NOTHING, Batch, Capture, Forward
from foveate.models.registry import load_text
from foveate.run.cache import allocate
from tests.models.v4_naive import Prompt
from tests.support.tiny_v4 import make_tiny_v4

TOLERANCE = 1e-5  # of logits up to 4.6


@dataclass
class Pair:
    """A tiny checkpoint loaded here and in transformers."""

    folder: Path
    model: DeepseekV4
    reference: torch.nn.Module

    @classmethod
    def of(cls, folder: Path, kind: str) -> Pair:
        make_tiny_v4(folder, kind)
        model = load_text(folder, "cpu", torch.float32)
        assert isinstance(model, DeepseekV4)
        reference = transformers.DeepseekV4ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return cls(folder, model, reference)

    @torch.no_grad()
    def wanted(self, ids: list[int]) -> Tensor:
        """Reference logits [tokens, vocab]."""
        return self.reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


@dataclass
class Sequence:
    """One sequence: its prompt, which may grow, and how much of it has run."""

    prompt: Prompt
    slot: int
    pages: list[int] = field(default_factory=list)
    past_len: int = 0


@dataclass
class Bench:
    """Memory for some sequences on one model."""

    model: DeepseekV4
    page_len: int = 8
    pages: int = 128
    slots: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(self.seed)
        self.memory = allocate(self.model.memory_spec(), self.pages, self.page_len, self.slots, "cpu")
        for tensor in (*self.memory.paged.values(), *self.memory.state.values()):
            tensor.fill_(float("nan"))
        self.free_pages = torch.randperm(self.pages, generator=random).tolist()
        self.free_slots = torch.randperm(self.slots, generator=random).tolist()

    def begin(self, prompt: Prompt | list[int]) -> Sequence:
        return Sequence(prompt if isinstance(prompt, Prompt) else Prompt(list(prompt)), self.free_slots.pop())

    def end(self, sequence: Sequence) -> None:
        self.free_pages += sequence.pages
        self.free_slots.append(sequence.slot)

    def batch(self, work: list[tuple[Sequence, list[int], bool]]) -> Batch:
        """New tokens of sequences, under verification or not."""
        rows, image_at, blocks, start = [], [], [], 0
        for sequence, tokens, _ in work:
            first, end = sequence.past_len, sequence.past_len + len(tokens)
            while len(sequence.pages) * self.page_len < end:
                sequence.pages.append(self.free_pages.pop())
            for at in range(first, end):
                if at in sequence.prompt.rows:
                    rows.append(sequence.prompt.rows[at])
                    image_at.append(start + at - first)
            for a, b in sequence.prompt.blocks:
                if first < b and a < end:
                    assert first <= a and b <= end, "a test must not split a block"
                    blocks.append((start + a - first, start + b - first))
            start += len(tokens)
        widest = max(len(sequence.pages) for sequence, _, _ in work)
        spans = [(sequence.past_len, len(tokens)) for sequence, tokens, _ in work]
        return Batch(
            ids=torch.tensor([token for _, tokens, _ in work for token in tokens]),
            positions=torch.cat([torch.arange(past_len, past_len + count) for past_len, count in spans])[None],
            query_lens=tuple(count for _, count in spans),
            past_lens=tuple(past_len for past_len, _ in spans),
            pages=torch.tensor([s.pages + [0] * (widest - len(s.pages)) for s, _, _ in work]),
            slots=torch.tensor([sequence.slot for sequence, _, _ in work]),
            logits_at=torch.arange(start),
            image_rows=torch.stack(rows) if rows else None,
            image_at=torch.tensor(image_at) if rows else None,
            blocks=tuple(blocks),
            verify=tuple(verify for _, _, verify in work),
        )

    def run(self, *work: tuple[Sequence, list[int], bool], capture: Capture = NOTHING) -> Forward:
        """One forward; lengths move on for what is not under verification."""
        forward = self.model.run(self.batch(list(work)), self.memory, capture)
        for sequence, tokens, verify in work:
            sequence.past_len += 0 if verify else len(tokens)
        return forward

    def step(self, *work: tuple[Sequence, int]) -> list[Tensor]:
        """Run the next so many prompt tokens of some sequences; logits of each."""
        pieces = [(s, s.prompt.ids[s.past_len : s.past_len + count], False) for s, count in work]
        return list(self.run(*pieces).logits.split([len(tokens) for _, tokens, _ in pieces]))


def in_chunks(bench: Bench, prompt: Prompt | list[int], sizes: list[int]) -> Tensor:
    """Logits [tokens, vocab] of a prompt prefilled in chunks of these sizes, the last one over and over."""
    sequence, parts, number = bench.begin(prompt), [], 0
    while sequence.past_len < len(sequence.prompt.ids):
        parts += bench.step((sequence, sizes[min(number, len(sizes) - 1)]))
        number += 1
    bench.end(sequence)
    return torch.cat(parts)


def greedy(bench: Bench, ids: list[int], count: int) -> list[int]:
    """The greedy continuation of a prompt."""
    sequence, out = bench.begin(list(ids)), list[int]()
    logits = bench.step((sequence, len(ids)))[0]
    while len(out) < count:
        out.append(int(logits[-1].argmax()))
        sequence.prompt.ids.append(out[-1])
        logits = bench.step((sequence, 1))[0]
    bench.end(sequence)
    return out
