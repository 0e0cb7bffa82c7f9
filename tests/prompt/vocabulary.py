"""A small byte-level vocabulary with the control tokens of the Qwen family."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from foveate.prompt.tokens import Tokens

SPECIAL = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "｜DSML｜")
PAIRS = ("th", "in", "er", "an", "re", "im", "pa", "ad", "st", "ar", "<|", "|>", "us", "se", "ge", "Ġt", "Ġi")
# Merges that end and begin inside characters: two thirds of "€", the second half of "é" with the first of the next.
BYTES = (("â", "Ĥ"), ("©", "Ã"), ("ð", "Ł"), ("ĺ", "Ģ"))


def make_tokenizer(special: tuple[str, ...] = SPECIAL, markup: tuple[str, ...] = MARKUP) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(pair[0], pair[1]) for pair in PAIRS] + list(BYTES)
    vocab = {word: i for i, word in enumerate([*letters, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in markup])
    return tokenizer


def make_tokens() -> Tokens:
    return Tokens(make_tokenizer())
