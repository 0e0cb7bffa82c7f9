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
    """A linear reading of the tower: 12 slots of characters out of an image row, 3 out of a patch."""

    def __init__(self, rows: int, patches: int, share: float = 0.5) -> None:
        super().__init__()
        self.share = share  # of the patches in the loss
        self.row, self.patch = Linear(rows, SLOTS * CHARACTERS), Linear(patches, SLOTS // 4 * CHARACTERS)

    def forward(self, rows: Tensor, patches: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and share of characters that rows give away; rows [n, ..], patches [4 n, ..], labels [n * 12]."""
        loss, right = read_loss(self.row(rows).view(-1, CHARACTERS), labels)
        if not self.share:
            return loss, right
        also, _ = read_loss(self.patch(patches).view(-1, CHARACTERS), labels)
        return (1 - self.share) * loss + self.share * also, right


def read_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy with empty slots at a twentieth, and the share of characters read."""
    labels = labels.long()
    full = (labels > 0).float()
    right = (logits.argmax(-1) == labels).float()
    loss = weighted_loss(logits, labels, full + EMPTY_WEIGHT * (1 - full))
    return loss, (right * full).sum() / full.sum().clamp(min=1.0)


def weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Cross entropy in fp32, averaged by weight."""
    each = F.cross_entropy(logits.float(), labels, reduction="none")
    return (each * weights).sum() / weights.sum().clamp(min=1e-6)


def answer_loss(hidden: Tensor, table: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted loss of final-normed states [n, hidden] under the tied head."""
    return weighted_loss(F.linear(hidden, table.to(hidden.dtype)), labels.long(), weights)


def pack_losses(
    reader: ChartReader, head: CharacterHead, static: StaticPack, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Answer loss, character loss and character accuracy of one pack."""
    hidden, rows, patches = reader(static.pack(), static.shape.longest_image, dtype)
    chosen = hidden.index_select(0, static["label_at"].long())
    answer = answer_loss(chosen, reader.model.language_model.embed_tokens.weight, static["label"], static["weight"])
    return answer, *head(rows, patches, static["characters"].flatten())


@torch.no_grad()
def exact_answers(reader: ChartReader, static: StaticPack, dtype: torch.dtype) -> Tensor:
    """For every answer of a pack whether greedy decoding would give it: all its tokens are the likeliest ones.

    Returns a bool tensor with room for one entry a label; entries beyond the pack's answers are True.
    """
    hidden, *_ = reader(static.pack(), static.shape.longest_image, dtype)
    chosen = hidden.index_select(0, static["label_at"].long())
    wrong = reader.logits(chosen).argmax(-1) != static["label"].long()
    answer = static["answer"].long()
    failed = torch.zeros(len(answer) + 1, device=answer.device)
    failed.index_add_(0, torch.where(answer < 0, len(answer), answer), wrong.float())
    return failed[:-1] == 0
