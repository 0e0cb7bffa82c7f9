"""What training minimises: answers, and the characters a chart shows.

Owns the two losses and the throw-away character head (the generator knows where it drew each character, so the
tower's rows are asked for them directly; the head is not exported). Promises fp32 sums. Knows nothing about data.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe.encode import CHARACTERS, SLOTS
from recipe.model import ChartReader
from recipe.staging import StaticPack
from recipe.vision import Linear

EMPTY_WEIGHT = 0.05  # most character slots are empty


class CharacterHead(nn.Module):
    """A linear reading of one image row: 12 slots of characters."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.head = Linear(hidden, SLOTS * CHARACTERS)

    def forward(self, rows: Tensor) -> Tensor:
        """rows [n, hidden] to [n * 12, 97]."""
        return self.head(rows).view(-1, CHARACTERS)


def weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Cross entropy, averaged by weight."""
    each = F.cross_entropy(logits.float(), labels, reduction="none")
    return (each * weights).sum() / weights.sum().clamp(min=1e-6)


def character_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy with empty slots at a twentieth, and the share of characters read rightly."""
    full = (labels > 0).float()
    weights = full + EMPTY_WEIGHT * (1 - full)
    right = (logits.argmax(-1) == labels).float()
    return weighted_loss(logits, labels, weights), (right * full).sum() / full.sum().clamp(min=1.0)


def pack_losses(
    reader: ChartReader, head: CharacterHead, static: StaticPack, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Answer loss, character loss and character accuracy of one pack."""
    hidden, rows = reader(static.pack(), static.shape.longest_image, dtype)
    chosen = hidden.index_select(0, static["label_at"].long())
    answer = weighted_loss(reader.logits(chosen), static["label"].long(), static["weight"])
    return answer, *character_loss(head(rows), static["characters"].flatten().long())


@torch.no_grad()
def exact_answers(reader: ChartReader, static: StaticPack, dtype: torch.dtype) -> Tensor:
    """For every answer of a pack whether greedy decoding would give it: all its tokens are the likeliest ones.

    Returns a bool tensor with room for one entry a label; entries beyond the pack's answers are True.
    """
    hidden, _ = reader(static.pack(), static.shape.longest_image, dtype)
    chosen = hidden.index_select(0, static["label_at"].long())
    wrong = reader.logits(chosen).argmax(-1) != static["label"].long()
    answer = static["answer"].long()
    failed = torch.zeros(len(answer) + 1, device=answer.device)
    failed.index_add_(0, torch.where(answer < 0, len(answer), answer), wrong.float())
    return failed[:-1] == 0
