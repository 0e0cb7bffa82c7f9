"""The vocabulary: exact bytes of every id, and what is refused at load."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from foveate.core.errors import CheckpointError, InvalidRequest
from foveate.prompt.tokens import LONG_TEXT, Tokens
from tests.prompt.vocabulary import MARKUP, SPECIAL, make_tokenizer, make_tokens

TOKENS = make_tokens()


def test_added_and_special_ids() -> None:
    assert set(TOKENS.added.values()) == {*SPECIAL, *MARKUP}
    assert {TOKENS.added[i] for i in TOKENS.special} == set(SPECIAL)
    assert all(TOKENS.id_of(text) == i and TOKENS.raw(i) == text.encode() for i, text in TOKENS.added.items())
    assert TOKENS.id_of("<|never|>") is None


def test_every_byte_has_an_id_and_comes_back() -> None:
    singles = {TOKENS.raw(i) for i in range(TOKENS.vocab_size) if len(TOKENS.raw(i)) == 1}
    assert singles == {bytes([n]) for n in range(256)}


@given(st.text())
def test_text_comes_back(text: str) -> None:
    assert TOKENS.text(TOKENS.encode(text)) == text


def test_ids_beyond_the_vocabulary_have_no_bytes() -> None:
    assert TOKENS.raw(TOKENS.vocab_size) == b"" and TOKENS.raw(10**9) == b""


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        TOKENS.encode("a\ud800b")


def test_truncation_of_the_file_is_switched_off(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokens = Tokens.load(tmp_path)
    assert tokens.text(tokens.encode("abcdefghij")) == "abcdefghij"


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer.json is missing"):
        Tokens.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer.json cannot be read"):
        Tokens.load(tmp_path)
    other = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    other.decoder = decoders.Metaspace()
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="byte-level"):
        Tokens.load(tmp_path)


def test_long_texts_give_the_same_ids_by_the_other_call() -> None:
    """Long ones go through the library's call for batches, which lets other threads run meanwhile."""
    line = "some words, <think> and a 'quote' é \U0001f600\n"
    text = line * (2 * LONG_TEXT // len(line))
    assert TOKENS.encode(text) == TOKENS._tokenizer.encode(text, add_special_tokens=False).ids
    with pytest.raises(InvalidRequest):
        TOKENS.encode(text + "\ud800")
