"""Compressed entries: every `ratio` tokens become one row, each channel its own softmax over the tokens of a window.

Per token there are values a and gates s (the token's place in its window already added). A plain window weighs its own
tokens. An overlapping one has two sets of channels and weighs eight slots, say, of four tokens each: the first set of
the window before and the second set of its own; the very first window has nothing before it. Rows of a step stand
behind rows carried over from earlier steps in one stream; `Windows` says where. Entries are numbered by window, and an
entry lies in the page of its window's last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.ops.rings import Stretch


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows that a step completes.

    take: [windows, ratio] rows of the stream; before: the same of the windows before them, or None without overlap;
    first: [windows] bool, where there is none before; first_at: [windows] position of the first token; write_at:
    [windows] flat rows of the paged entries.
    """

    take: Tensor
    before: Tensor | None
    first: Tensor
    first_at: Tensor
    write_at: Tensor

    def __len__(self) -> int:
        return len(self.take)


def carried_from(past_len: int, ratio: int, overlap: bool) -> int:
    """The first position whose row a sequence still needs after `past_len` tokens."""
    return max(0, past_len // ratio * ratio - (ratio if overlap else 0))


def plan_windows(
    carried: Sequence[Stretch], new: Sequence[Stretch], ratio: int, overlap: bool, entries_at: Sequence[Tensor]
) -> Windows:
    """The windows that the new tokens of each sequence complete.

    carried, new: positions of the rows that stand in the stream, first all carried ones, then all new ones, one per
    sequence; entries_at: per sequence the flat rows of all its entries up to the last new token, whose device counts.
    """
    device, extra = entries_at[0].device, ratio if overlap else 0
    take, first_at, write_at, at = [], [], [], [0, sum(len(part) for part in carried)]
    for held, fresh, rows in zip(carried, new, entries_at, strict=True):
        done, total = fresh.start_at // ratio, fresh.end_at // ratio
        starts = torch.arange(done, total) * ratio
        # A place before all tokens gets any row, whose gate is closed.
        first = held.start_at if len(held) else fresh.start_at
        places = (starts.unsqueeze(1) + torch.arange(-extra, ratio)).clamp_min(first)
        old, now = places - held.start_at + at[0], places - fresh.start_at + at[1]
        take.append(torch.where(places < fresh.start_at, old, now))
        first_at.append(starts)
        write_at.append(rows[done:total])
        at = [at[0] + len(held), at[1] + len(fresh)]
    both, starts = torch.cat(take).to(device), torch.cat(first_at).to(device)
    return Windows(
        take=both[:, extra:],
        before=both[:, :ratio] if overlap else None,
        first=starts == 0,
        first_at=starts,
        write_at=torch.cat(write_at),
    )


def entry_rows(pages: Tensor, count: int, ratio: int, page_len: int) -> Tensor:
    """Flat rows [count] of a sequence's entries in [pages, ceil(page_len / ratio), ...]; pages: its page table."""
    last_at = torch.arange(count, device=pages.device) * ratio + ratio - 1
    return pages[last_at // page_len] * -(-page_len // ratio) + last_at % page_len // ratio


def compress(stream: Tensor, windows: Windows) -> Tensor:
    """Entries float32 [windows, dim] of a stream float32 [rows, values and gates].

    The columns are all values and then all gates, each `dim` wide, or twice that, first sets first, where windows
    overlap.
    """
    if windows.before is None:
        value, gate = stream[windows.take].chunk(2, -1)  # [windows, ratio, dim]
        return (value * gate.softmax(1)).sum(1)
    value_before, _, gate_before, _ = stream[windows.before].chunk(4, -1)
    _, value, _, gate = stream[windows.take].chunk(4, -1)
    gate_before = gate_before.masked_fill(windows.first[:, None, None], float("-inf"))
    weights = torch.cat([gate_before, gate], 1).softmax(1)  # [windows, 2 * ratio, dim]
    return (torch.cat([value_before, value], 1) * weights).sum(1)


def compress_reference(value: Tensor, gate: Tensor, ratio: int, overlap: bool) -> Tensor:
    """Entries of one whole sequence, one window at a time; value, gate: [tokens, dim], or 2 * dim where overlapping."""
    out, dim = [], value.shape[1] // (2 if overlap else 1)
    for start in range(0, len(value) - ratio + 1, ratio):
        own, own_gate = value[start : start + ratio, -dim:], gate[start : start + ratio, -dim:]
        if overlap and start:
            own = torch.cat([value[start - ratio : start, :dim], own])
            own_gate = torch.cat([gate[start - ratio : start, :dim], own_gate])
        out.append((own * own_gate.softmax(0)).sum(0))
    return torch.stack(out) if out else value.new_zeros(0, dim)
