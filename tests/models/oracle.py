"""transformers beside foveate on one tiny checkpoint: prompts, reference logits, and steps over paged memory.

Memory is filled with NaN before use and pages and slots are shuffled, so that a read beyond a sequence's own tokens,
or of a state that was never begun, shows in the logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor

from foveate.models.interface import Batch, LanguageModel, Memory, VisionTower
from foveate.models.registry import load_text, load_vision
from tests.support.tiny import IMAGE_PAD, VISION_END, VISION_START, make_tiny

PAGE_LEN = 8
SIZES = ((64, 96), (32, 32), (96, 64), (32, 128), (64, 64), (128, 32), (32, 64))  # (height, width) of test pictures


@dataclass(frozen=True)
class Case:
    """A prompt: ids with placeholders, its pictures, rope positions [3, tokens] and the offset that follows them."""

    ids: Tensor
    positions: Tensor
    offset: int
    pictures: tuple[np.ndarray, ...] = ()

    @property
    def image_at(self) -> Tensor:
        return (self.ids == IMAGE_PAD).nonzero()[:, 0]

    def positions_of(self, start: int, end: int) -> Tensor:
        """Rope positions of a window that may reach beyond the prompt."""
        beyond = torch.arange(max(start, len(self.ids)), max(end, len(self.ids))) + self.offset
        return torch.cat([self.positions[:, start:end], beyond.expand(3, -1)], 1)


@dataclass
class Oracle:
    """A tiny checkpoint loaded twice."""

    folder: Path
    reference: torch.nn.Module
    processor: object
    model: LanguageModel
    tower: VisionTower
    cases: dict[int, Case] = field(default_factory=dict)
    wanted: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, kind: str) -> Oracle:
        make_tiny(folder, kind)
        name = "Qwen3_5MoeForConditionalGeneration" if kind.startswith("moe") else "Qwen3_5ForConditionalGeneration"
        reference = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
        processor = transformers.Qwen2VLImageProcessorPil.from_pretrained(folder)
        model, tower = load_text(folder, "cpu", torch.float32), load_vision(folder, "cpu", torch.float32)
        return cls(folder, reference, processor, model, tower)

    def case(self, images: int) -> Case:
        """A prompt with so many pictures of mixed grids, text before, between and after them."""
        if images not in self.cases:
            random = np.random.default_rng(images)
            ids = random.integers(0, 400, 70 if not images else 6).tolist()
            pictures = []
            for i in range(images):
                height, width = SIZES[i % len(SIZES)]
                pictures.append(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
                ids += [VISION_START, *[IMAGE_PAD] * (height * width // 1024), VISION_END]
                ids += random.integers(0, 400, 3).tolist()
            self.cases[images] = self.case_of(ids, tuple(pictures))
        return self.cases[images]

    def case_of(self, ids: list[int], pictures: tuple[np.ndarray, ...]) -> Case:
        tokens = torch.tensor(ids)
        grids = self.pixels(pictures)["image_grid_thw"] if pictures else None
        types = (tokens == IMAGE_PAD).int()[None]
        where, offset = self.reference.model.get_rope_index(tokens[None], types, image_grid_thw=grids)
        return Case(tokens, where[:, 0], int(offset), pictures)

    def pixels(self, pictures: tuple[np.ndarray, ...]) -> dict[str, Tensor]:
        return self.processor(images=[Image.fromarray(p) for p in pictures], return_tensors="pt")  # type: ignore[operator]

    def inputs(self, case: Case, ids: Tensor) -> dict[str, Tensor]:
        """What the reference wants for ids that begin with the case's prompt."""
        out = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        if case.pictures:
            pixels = self.pixels(case.pictures)
            out |= {"pixel_values": pixels["pixel_values"], "image_grid_thw": pixels["image_grid_thw"]}
            out["mm_token_type_ids"] = (ids == IMAGE_PAD).int()[None]
        return out

    @torch.no_grad()
    def logits(self, images: int) -> Tensor:
        """Reference logits [tokens, vocab] of a case."""
        if images not in self.wanted:
            self.reference.model.rope_deltas = None  # it would carry over to the next call
            case = self.case(images)
            self.wanted[images] = self.reference(**self.inputs(case, case.ids), use_cache=False).logits[0]
        return self.wanted[images]

    @torch.no_grad()
    def greedy(self, case: Case, count: int) -> list[int]:
        """The reference's greedy continuation."""
        self.reference.model.rope_deltas = None
        options = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": None}
        options |= {"temperature": None, "top_k": None, "top_p": None}
        out = self.reference.generate(**self.inputs(case, case.ids), **options)
        return out[0, len(case.ids) :].tolist()


@dataclass
class Sequence:
    """One sequence in a `Bench`: what it has run so far."""

    case: Case
    rows: Tensor
    slot: int
    pages: list[int] = field(default_factory=list)
    past_len: int = 0


class Bench:
    """Paged memory and the bookkeeping to run mixed steps of several sequences."""

    def __init__(self, model: LanguageModel, slots: int = 6, pages: int = 96, seed: int = 0) -> None:
        spec, nan = model.memory_spec(), float("nan")
        paged = {p.name: torch.full((pages, PAGE_LEN, *p.shape), nan, dtype=p.dtype) for p in spec.paged}
        state = {s.name: torch.full((slots, *s.shape), nan, dtype=s.dtype) for s in spec.state}
        self.model, self.memory = model, Memory(paged, state, PAGE_LEN)
        random = torch.Generator().manual_seed(seed)
        self.free_pages = torch.randperm(pages, generator=random).tolist()
        self.free_slots = torch.randperm(slots, generator=random).tolist()

    def begin(self, case: Case, rows: list[Tensor]) -> Sequence:
        joined = torch.cat(rows) if rows else torch.zeros(0, self.model.hidden_size)
        return Sequence(case, joined, self.free_slots.pop())

    def end(self, sequence: Sequence) -> None:
        self.free_pages += sequence.pages
        self.free_slots.append(sequence.slot)

    def step(self, *work: tuple[Sequence, Tensor]) -> list[Tensor]:
        """Run the next tokens of some sequences in one forward; logits of all tokens, sequence by sequence."""
        ids, positions, rows, image_at, start = [], [], [], [], 0
        for sequence, tokens in work:
            end_at = sequence.past_len + len(tokens)
            while len(sequence.pages) * PAGE_LEN < end_at:
                sequence.pages.append(self.free_pages.pop())
            ids.append(tokens)
            positions.append(sequence.case.positions_of(sequence.past_len, end_at))
            inside = (sequence.case.image_at >= sequence.past_len) & (sequence.case.image_at < end_at)
            rows.append(sequence.rows[inside])
            image_at.append(sequence.case.image_at[inside] - sequence.past_len + start)
            start += len(tokens)
        widest = max(len(sequence.pages) for sequence, _ in work)
        batch = Batch(
            ids=torch.cat(ids),
            positions=torch.cat(positions, 1),
            query_lens=tuple(len(tokens) for _, tokens in work),
            past_lens=tuple(sequence.past_len for sequence, _ in work),
            pages=torch.tensor([s.pages + [0] * (widest - len(s.pages)) for s, _ in work]),
            slots=torch.tensor([sequence.slot for sequence, _ in work]),
            logits_at=torch.arange(start),
            image_rows=torch.cat(rows),
            image_at=torch.cat(image_at),
        )
        logits = self.model.forward(batch, self.memory)
        for sequence, tokens in work:
            sequence.past_len += len(tokens)
        return list(logits.split(batch.query_lens))


def run_chunks(bench: Bench, case: Case, rows: list[Tensor], size: int) -> Tensor:
    """Logits [tokens, vocab] of a prompt prefilled in chunks."""
    sequence = bench.begin(case, rows)
    logits = torch.cat([bench.step((sequence, chunk))[0] for chunk in case.ids.split(size)])
    bench.end(sequence)
    return logits


def run_greedy(bench: Bench, case: Case, rows: list[Tensor], count: int) -> list[int]:
    """Greedy continuation of a prompt."""
    sequence, tokens, out = bench.begin(case, rows), case.ids, list[int]()
    while len(out) < count:
        out.append(int(bench.step((sequence, tokens))[0][-1].argmax()))
        tokens = torch.tensor(out[-1:])
    bench.end(sequence)
    return out
