"""A model's vocabulary: text to ids, ids to bytes, and which ids are more than text.

Owns `tokenizer.json` through the `tokenizers` library. Promises the exact bytes of every id, so that text can be put
together across tokens that end inside a character. Byte-level BPE only, which both model families use; any other kind
is refused when it is loaded. Refuses to know templates and conversations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from foveate.core.errors import CheckpointError, InvalidRequest
from foveate.core.vocabulary import token_bytes

LONG_TEXT = 4096  # characters; some milliseconds of work


class Tokens:
    """The vocabulary of one model.

    added: text of each added token by id, special or not. special: ids that never show in text. `vocab_size` is one
    more than the largest id.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        spec: dict[str, Any] = json.loads(tokenizer.to_str())
        if not _is_byte_level(spec.get("decoder")):
            raise CheckpointError("tokenizer.json: only byte-level tokenizers are supported")
        # Positions and lengths are decided elsewhere; a truncating tokenizer would drop text silently.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.added: dict[int, str] = {t["id"]: t["content"] for t in spec.get("added_tokens", [])}
        self.special = frozenset(t["id"] for t in spec.get("added_tokens", []) if t["special"])
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        self._raw = token_bytes(vocab, self.added)
        self.vocab_size = len(self._raw)

    @classmethod
    def load(cls, folder: Path) -> Tokens:
        """The vocabulary of a checkpoint folder; CheckpointError when its tokenizer.json is missing or unusable."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{path} is missing")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except CheckpointError:
            raise
        except Exception as fault:  # the library raises bare Exception for every fault of the file
            raise CheckpointError(f"{path} cannot be read: {fault}") from fault

    def encode(self, text: str) -> list[int]:
        """Ids of a text; added tokens in it become their ids. InvalidRequest for a text that is not valid Unicode."""
        try:
            if len(text) < LONG_TEXT:
                return self._tokenizer.encode(text, add_special_tokens=False).ids
            # Only the call for batches lets go of the interpreter while it works: other threads must not wait.
            return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except (UnicodeEncodeError, TypeError):  # the library reports a lone surrogate as either
            raise InvalidRequest("the text holds half of a surrogate pair, which is not valid Unicode") from None

    def id_of(self, text: str) -> int | None:
        """The id of a token given by its exact vocabulary text, such as an added token; None when there is none."""
        return self._tokenizer.token_to_id(text)

    def raw(self, token: int) -> bytes:
        """The bytes that an id stands for; none for an id beyond the vocabulary (padding rows of an output head)."""
        return self._raw[token] if 0 <= token < self.vocab_size else b""

    def text(self, ids: Iterable[int], skip: frozenset[int] = frozenset()) -> str:
        """The text of complete ids, those of `skip` left out; U+FFFD for bytes that are not UTF-8."""
        return b"".join(self.raw(token) for token in ids if token not in skip).decode("utf-8", "replace")


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    return decoder["type"] == "ByteLevel" or any(_is_byte_level(part) for part in decoder.get("decoders", ()))
