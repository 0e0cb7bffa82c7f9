"""What training a DeepSeek V4 chart reader adds to the common loop: its learner, and the characters it reads aloud.

Owns the two losses and the throw-away character head (asked of an aligned row for all of its patches, and of a patch
for its own). Promises the same learner for the same plan. The schedule, checkpoints and the captured step are
`recipe.train`'s.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe.deepseek_encode import PER_PATCH
from recipe.deepseek_experts import balance
from recipe.deepseek_init import initialise_sight, muon_parts
from recipe.deepseek_model import SightReader
from recipe.deepseek_packs import BlockPackShape, sight_pack
from recipe.deepseek_shapes import BLANKS, SightShape
from recipe.encode import CHARACTERS
from recipe.losses import read_loss, weighted_loss
from recipe.model import initialise
from recipe.optimizer import MuonAdam
from recipe.staging import StaticPack
from recipe.train import Learner, TrainPlan, dtype_on
from recipe.vision import Linear


class SquareHead(nn.Module):
    """A linear reading of the tower: the characters of every patch out of an aligned row, and out of the patch."""

    def __init__(self, rows: int, patches: int, square: int, share: float) -> None:
        """share: of the patches in the loss."""
        super().__init__()
        self.share = share
        self.row = Linear(rows, square * PER_PATCH * CHARACTERS)
        self.patch = Linear(patches, PER_PATCH * CHARACTERS)

    def forward(self, rows: Tensor, patches: Tensor, labels: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and share of characters that rows give away; labels [patches, PER_PATCH], squares [rows, square]."""
        shown = F.pad(labels, (0, 0, 0, BLANKS))[squares].flatten()  # nothing is drawn where a square has no patch
        loss, right = read_loss(self.row(rows).view(-1, CHARACTERS), shown)
        if not self.share:
            return loss, right
        also, _ = read_loss(self.patch(patches).view(-1, CHARACTERS), labels.flatten())
        return (1 - self.share) * loss + self.share * also, right


def sight_learner(
    shape: SightShape, packs: BlockPackShape, plan: TrainPlan, device: torch.device, flex: bool | None = None
) -> Learner:
    """The DeepSeek V4 chart reader from its seed.

    flex: attention that skips empty tiles; None: on a GPU where layers are compiled, without which it saves nothing.
    """
    reader = SightReader(shape, flex=device.type == "cuda" and plan.compile if flex is None else flex)
    head = SquareHead(shape.text.hidden, shape.vision.hidden, packs.square, plan.patch_share)
    initialise_sight(reader, plan.seed, 2 * len(shape.text.layers))
    initialise(head, plan.seed + 1, 1)
    reader.to(device)
    head.to(device)
    named = [*reader.named_parameters(), *(("head." + n, p) for n, p in head.named_parameters())]
    static = StaticPack(packs, device, sight_pack)
    tower = reader.sight
    return Learner(
        reader=reader,
        head=head,
        optimizer=MuonAdam(named, parts=lambda name, p: muon_parts(name, p, shape.text)),
        static=static,
        losses=lambda: sight_losses(reader, head, static, dtype_on(device)),
        regions=(*reader.layers, reader.hc_head, *tower.vision.blocks, tower.aligner),
        settle=lambda: balance(reader),
    )


def sight_losses(
    reader: SightReader, head: SquareHead, static: StaticPack, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Answer loss, character loss and character accuracy of one pack."""
    pack = static.pack()
    hidden, rows, patches = reader(pack, static.shape.longest_image, dtype)
    chosen = hidden.index_select(0, static["label_at"].long())
    answer = weighted_loss(reader.head(chosen), static["label"].long(), static["weight"])
    return answer, *head(rows, patches, static["characters"], pack.squares)
