"""Starts a run from an earlier checkpoint whose vocabulary may differ.

Owns the carrying over of weights: everything as it is, embeddings by what a token spells. Promises that a token both
vocabularies know keeps its row, and that a new one begins as the mean of its old pieces. Knows nothing about training.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders
from torch import Tensor, nn

from recipe.accept import Checkpoint

TABLE = "model.language_model.embed_tokens.weight"


def translated(table: Tensor, old: Tokenizer, new: Tokenizer) -> Tensor:
    """The embedding table of `old` laid out for `new`; rows that spell nothing known stay as they are."""
    out, spell = table.clone(), decoders.ByteLevel()
    for token, row in new.get_vocab().items():
        if old.token_to_id(token) is not None:
            out[row] = table[old.token_to_id(token)]
        elif not token.startswith("<|"):
            out[row] = table[old.encode(spell.decode([token]), add_special_tokens=False).ids].mean(0)
    return out


def carry_over(folder: Path, new: Tokenizer, reader: nn.Module) -> None:
    """Load the checkpoint in `folder` into `reader`, its words translated."""
    old = Tokenizer.from_file(str(folder / "tokenizer.json"))
    weights = Checkpoint(folder).reader.state_dict()
    weights[TABLE] = translated(weights[TABLE], old, new)
    with torch.no_grad():
        reader.load_state_dict(weights)
