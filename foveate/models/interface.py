"""What a model is to the rest of foveate: memory it asks for, and a forward pass with everything passed in.

Owns the shapes of that contract. A model keeps no sequence state of its own: the caller leases pages and state slots,
lays them out as `Memory`, and describes one mixed step (prefill chunks and decode tokens of many sequences, flattened
one after another) as `Batch`. Refuses to know requests, schedules or devices other than where its tensors are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedSpec:
    """One tensor that grows with tokens: pages of `page_len` tokens, one row of `shape` for every `every` of them.

    A row stands in the page of the last of its tokens, so any page length goes with any `every`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    every: int = 1

    def rows(self, page_len: int) -> int:
        """Rows of a page: as many as can end in it."""
        return -(-page_len // self.every)


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One tensor of fixed size per sequence: `shape` per state slot. A fresh sequence starts from zeros."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """Everything a model keeps per sequence."""

    paged: tuple[PagedSpec, ...]
    state: tuple[StateSpec, ...]

    def token_bytes(self) -> int:
        """Bytes of paged memory per token, on the average of a long sequence."""
        return sum(-(-_size(spec) // spec.every) for spec in self.paged)

    def page_bytes(self, page_len: int) -> int:
        """Bytes of a page of `page_len` tokens."""
        return sum(spec.rows(page_len) * _size(spec) for spec in self.paged)

    def slot_bytes(self) -> int:
        """Bytes of fixed-size state per sequence."""
        return sum(_size(spec) for spec in self.state)


def _size(spec: PagedSpec | StateSpec) -> int:
    count = 1
    for side in spec.shape:
        count *= side
    return count * torch.empty((), dtype=spec.dtype).element_size()


@dataclass(frozen=True, slots=True)
class Memory:
    """The allocated tensors by spec name. paged: [pages, rows of a page, *shape]; state: [slots, *shape]."""

    paged: dict[str, Tensor]
    state: dict[str, Tensor]
    page_len: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One mixed step, flattened: sequence s owns tokens [offsets[s], offsets[s+1]) of the flat axis.

    The Python tuples mirror small integers so that no model has to read them back from the device. `pages` is padded
    with page 0 beyond a sequence's own (never read: lengths bound every access).
    """

    ids: Tensor  # [tokens] int64; placeholder ids where image rows go
    positions: Tensor  # [axes, tokens] int64
    query_lens: tuple[int, ...]  # new tokens per sequence
    past_lens: tuple[int, ...]  # tokens already in memory per sequence
    pages: Tensor  # [sequences, most pages] int64
    slots: Tensor  # [sequences] int64
    logits_at: Tensor  # [wanted] int64, indices on the flat axis
    image_rows: Tensor | None = None  # [rows, hidden] in the model's dtype
    image_at: Tensor | None = None  # [rows] int64, indices on the flat axis
    blocks: tuple[tuple[int, int], ...] = ()  # [start, end) on the flat axis of each image that is an atomic span
    # Sequences of an anchor and drafts under verification: their fixed-size state is not written until `commit`.
    verify: tuple[bool, ...] = ()
    # Per sequence, the parents of its drafts where they form a tree (`core.plan.Slice.parents`); () for a chain.
    parents: tuple[tuple[int, ...], ...] = ()

    @property
    def offsets(self) -> tuple[int, ...]:
        total, out = 0, [0]
        for length in self.query_lens:
            total += length
            out.append(total)
        return tuple(out)


@dataclass(frozen=True, slots=True)
class Capture:
    """What else a forward pass shall return: outputs of these layers, and what the final norm makes.

    Layers count from 0; -1 stands for what goes into the first. A model with several residual streams gives their mean
    as a layer's output; `streams` asks for all of them, as the last layer leaves them.
    """

    layers: tuple[int, ...] = ()
    final: bool = False
    streams: bool = False


NOTHING = Capture()


class Pending(Protocol):
    """A verification whose states are still to be written."""

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Make memory as if only these tokens of each verified sequence had been run, in the order of the batch.

        A path counts from the anchor, 0, and goes down one branch; the first len(path) places of the drafted tokens
        then hold its keys and values.
        """
        ...


@dataclass(frozen=True, slots=True)
class Forward:
    """What a step gave, on the batch's flat axis.

    logits: float32 [wanted, vocab]. features: [tokens, layers * hidden], outputs of the captured layers side by side.
    final: [tokens, hidden], after the final norm. streams: [tokens, streams * hidden], of models that have several.
    Each of these is None unless captured. pending: None unless the step verified something.
    """

    logits: Tensor
    features: Tensor | None = None
    final: Tensor | None = None
    pending: Pending | None = None
    streams: Tensor | None = None


class LanguageModel(Protocol):
    """A text trunk with its head."""

    vocab_size: int
    hidden_size: int
    layer_count: int
    axes: int  # rows of rope positions per token
    max_positions: int
    verifies_trees: bool  # whether drafts may branch; else they come as chains

    def memory_spec(self) -> MemorySpec: ...

    def forward(self, batch: Batch, memory: Memory) -> Tensor:
        """Run a step that verifies nothing, write its keys, values and states; return logits [wanted, vocab]."""
        ...

    def run(self, batch: Batch, memory: Memory, capture: Capture) -> Forward:
        """Run the step and return what was asked for; of verified sequences only keys and values are written yet."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """Input embeddings [tokens, hidden] of ids [tokens]; for drafters that share them."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits float32 [tokens, vocab] of final-normed states [tokens, hidden]; for drafters that share it."""
        ...


class VisionTower(Protocol):
    """A vision encoder: pixels in, language-model rows out."""

    out_size: int

    def encode(self, pixels: list[Any]) -> list[Tensor]:
        """Images as uint8 arrays [height, width, 3], already resized to their grids; rows [rows, out_size] each.

        Results do not depend on which images are encoded together, up to the order of float additions.
        """
        ...
