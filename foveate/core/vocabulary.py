"""The bytes that each id of a byte-level vocabulary stands for.

Owns the code by which byte-level BPE writes bytes as letters (GPT-2's), and the reading of a checkpoint's
`tokenizer.json` for it. Standard library only: both the floor that makes text of ids and the one that masks ids by the
text they would make need it, and must not disagree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def byte_letters() -> dict[str, int]:
    """The letter by which byte-level BPE writes each byte: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


def token_bytes(vocab: Mapping[str, int], added: Mapping[int, str]) -> list[bytes]:
    """The bytes of each id up to the largest; none for an id that is not in use."""
    letters = byte_letters()
    table = [b""] * (max([*vocab.values(), *added], default=-1) + 1)
    for word, token in vocab.items():
        known = all(letter in letters for letter in word)
        table[token] = bytes(letters[letter] for letter in word) if known else word.encode()
    for token, text in added.items():
        table[token] = text.encode()
    return table


def read_token_bytes(folder: Path) -> tuple[list[bytes], frozenset[int]]:
    """The table of a checkpoint folder, and the ids that are control tokens. OSError or ValueError if it has none."""
    spec: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    added = {token["id"]: token["content"] for token in spec.get("added_tokens", [])}
    special = frozenset(token["id"] for token in spec.get("added_tokens", []) if token["special"])
    return token_bytes(spec["model"]["vocab"], added), special
