"""How many tokens a drafter saves: verification replayed over an answer that the model already gave.

Owns the replay of greedy chain verification for both drafters, and loading a checkpoint folder into trainable
modules. Promises the definition "tokens per verification = accepted drafts + the bonus token" and that the result is
what a server would see, since greedy answers do not depend on drafts. Refuses to know how answers were generated.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from recipe.draft import DFlash, MtpHead, Target, block_mask
from recipe.export import masters_from
from recipe.model import ChartReader
from recipe.shapes import DraftShape, Shape, TextShape, VisionShape
from recipe.staging import StaticPack
from recipe.train_draft import observe


def shape_of(folder: Path) -> Shape:
    """The dimensions of a checkpoint folder, its drafter included where there is one."""
    config = json.loads((folder / "config.json").read_text())
    text, vision = config["text_config"], config["vision_config"]
    rope = text["rope_parameters"]
    words = TextShape(
        text["vocab_size"], text["hidden_size"], text["intermediate_size"], text["num_hidden_layers"],
        text["full_attention_interval"], text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"],
        rope["partial_rotary_factor"], rope["rope_theta"], tuple(rope["mrope_section"]),
        text["linear_num_key_heads"], text["linear_num_value_heads"], text["linear_key_head_dim"],
        text["linear_value_head_dim"], text["linear_conv_kernel_dim"], text["rms_norm_eps"],
    )  # fmt: skip
    sight = VisionShape(vision["depth"], vision["hidden_size"], vision["intermediate_size"], vision["num_heads"])
    sight = replace(sight, side=int(vision["num_position_embeddings"] ** 0.5))
    path = folder / "dflash" / "config.json"
    return Shape(words, sight, _draft_shape(json.loads(path.read_text())) if path.exists() else DraftShape())


def _draft_shape(config: dict) -> DraftShape:  # type: ignore[type-arg]
    extra = config["dflash_config"]
    return DraftShape(
        config["num_hidden_layers"], config["intermediate_size"], config["num_attention_heads"],
        config["num_key_value_heads"], config["head_dim"], extra["block_size"], tuple(extra["target_layer_ids"]),
        config["rope_parameters"]["rope_theta"],
    )  # fmt: skip


class Checkpoint:
    """A checkpoint folder as modules in fp32 on the CPU; drafters are None where the folder has none."""

    def __init__(self, folder: Path) -> None:
        self.shape = shape_of(folder)
        files = sorted(folder.glob("model*.safetensors"))
        official = {name: tensor for file in files for name, tensor in load_file(file).items()}
        self.reader = ChartReader(self.shape)
        self.reader.load_state_dict(masters_from(official))
        head = {name[4:]: tensor.float() for name, tensor in official.items() if name.startswith("mtp.")}
        self.mtp: MtpHead | None = None
        if head:
            self.mtp = MtpHead(self.shape)
            self.mtp.load_state_dict(head)
        self.dflash: DFlash | None = None
        if (folder / "dflash" / "model.safetensors").exists():
            tensors = load_file(folder / "dflash" / "model.safetensors")
            self.dflash = DFlash(self.shape)
            self.dflash.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})


def tokens_per_step(right: Sequence[Sequence[bool]]) -> float:
    """Mean tokens per verification; right[i][j]: whether draft j + 1 after anchor i (answer token i) is right.

    The first answer token comes from prefill and is not counted.
    """
    anchor, steps = 0, 0
    while anchor < len(right):
        run = 0
        for ok in right[anchor]:
            if not ok:
                break
            run += 1
        anchor += run + 1
        steps += 1
    return len(right) / max(steps, 1)


@torch.no_grad()
def replay(checkpoint: Checkpoint, static: StaticPack, mask_id: int) -> tuple[float, float]:
    """Tokens per verification for DFlash and MTP over the only answer of a one-row pack (nan: no such drafter)."""
    target = observe(checkpoint.reader, static, checkpoint.shape.draft.target_layers, torch.float32)
    places = static["label_at"][static["weight"] > 0].long()  # each predicts the token after it
    table = checkpoint.reader.model.language_model.embed_tokens.weight
    anchors = places[:-1] + 1  # answer tokens that have a successor
    blocks = nothing = float("nan")
    if checkpoint.dflash is not None:
        blocks = tokens_per_step(_block_hits(checkpoint.dflash, static, target, anchors, mask_id, table))
    if checkpoint.mtp is None:
        return blocks, nothing
    hidden = checkpoint.mtp(target.embeds.roll(-1, 1), target.final, (target.cos, target.sin), static["edges"])
    said = (hidden[0, anchors - 1] @ table.T).argmax(-1)
    return blocks, tokens_per_step([[bool(ok)] for ok in said == static["ids"][0, anchors + 1]])


def _block_hits(
    dflash: DFlash, static: StaticPack, target: Target, anchors: Tensor, mask_id: int, table: Tensor
) -> list[list[bool]]:
    block = dflash.shape.block
    ids, age = static["ids"].long(), static["age"].long()
    steps = torch.arange(block)
    words = torch.full((len(anchors), block), mask_id)
    words[:, 0] = ids[0, anchors]
    where = (age[0, anchors][:, None] + steps).flatten()[None]
    mask = block_mask(anchors[None], age, block)
    hidden = dflash(table[words.flatten()][None], target.features, (age, where), mask)
    said = (hidden.view(len(anchors), block, -1)[:, 1:] @ table.T).argmax(-1)
    last = int(anchors[-1]) + 1
    hits = []
    for row, anchor in zip(said, anchors.tolist(), strict=True):
        count = min(block - 1, last - anchor)
        hits.append((row[:count] == ids[0, anchor + 1 : anchor + 1 + count]).tolist())
    return hits
