"""Which tokens a grammar, or the bound of a thought, allows next.

Owns one matcher per request that has a grammar, by its text and seed, and the vocabulary in the engine's own terms
(llguidance). Promises that `allowed` is a function of grammar and output alone: a matcher that has gone too far (a
draft that was rejected, a request that was preempted) goes back, one that is missing is built from the output again.
Masks are computed on the CPU; asking for them ahead lets that happen while the device still works. Refuses to know
schemas, tools and where a grammar came from.
"""

from __future__ import annotations

import codecs
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer
from torch import Tensor

from foveate.core.errors import CheckpointError, RequestFailed
from foveate.core.plan import Draw
from foveate.core.vocabulary import read_token_bytes

# Marks that grammars write as text, although a checkpoint may call them control tokens.
MARKS = frozenset((b"<think>", b"</think>", b"<tool_call>", b"</tool_call>", "｜DSML｜".encode()))
THOUGHT_END = "</think>"
KEPT = 128
CHARACTER = 4  # most bytes of one
Vocabulary = tuple[list[bytes], frozenset[int]]  # as of core.vocabulary.read_token_bytes
Encode = Callable[[str], list[int]]


class _Words:
    """A vocabulary as llguidance wants it."""

    def __init__(self, tokens: list[bytes], special: Sequence[int], eos: int, encode: Encode) -> None:
        self.tokens, self.special_token_ids = tokens, special
        self.eos_token_id, self.bos_token_id = eos, None
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        """Where a grammar leaves but one text, its tokens are those that the model knows it by."""
        return self._encode(text)


class _Walk:
    """A matcher and the tokens that it has taken."""

    def __init__(self, begin: Callable[[], LLMatcher]) -> None:
        """`begin` makes a matcher that has taken none."""
        self._begin, self.matcher, self.taken = begin, begin(), list[int]()
        self.mask: Tensor | None = None

    def go_to(self, output: Sequence[int]) -> None:
        """Stand behind `output`. Raises RequestFailed when the grammar does not allow it, or is too hard to follow."""
        same = next((at for at, (a, b) in enumerate(zip(self.taken, output, strict=False)) if a != b), None)
        kept = min(len(self.taken), len(output)) if same is None else same
        if kept < len(self.taken) or kept < len(output):
            self.mask = None
        back = len(self.taken) - kept
        # One that has taken the end of the text counts that not as a token, and would go back too far.
        if back and (self.matcher.is_stopped() or not self.matcher.rollback(back)):
            self.matcher, kept = self._begin(), 0
        self.taken[kept:] = output[kept:]
        if not all(self.matcher.consume_token(token) for token in output[kept:]):
            self.matcher, self.taken = self._begin(), []
            raise RequestFailed("the answer's grammar could not be followed")


class Grammars:
    """Masks for one vocabulary of `size` ids on one device; `eos` ids may come where a grammar is complete."""

    def __init__(self, words: Vocabulary, encode: Encode, eos: frozenset[int], size: int) -> None:
        tokens, special = words
        ends = sorted(token for token in eos if token < size)
        control = [token for token in sorted(special | set(ends)) if tokens[token] not in MARKS]
        known = TokenizerWrapper(_Words(tokens, control, ends[0] if ends else size - 1, encode))
        self._tokenizer = LLTokenizer(known, n_vocab=max(size, len(tokens)), eos_token=ends)
        self._size, self._raw, self._thought_end = size, tokens, tuple(encode(THOUGHT_END))
        self._walks: OrderedDict[tuple[str, int], _Walk] = OrderedDict()
        self._bits = torch.arange(8, dtype=torch.uint8)

    @classmethod
    def load(cls, folder: Path, eos: frozenset[int], size: int) -> Grammars:
        """For the vocabulary of a checkpoint folder whose model has `size` logits."""
        try:
            words, tokenizer = read_token_bytes(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as fault:  # the tokenizer's library raises bare Exception for every fault of the file
            raise CheckpointError(f"{folder / 'tokenizer.json'} cannot be read: {fault}") from fault
        return cls(words, lambda text: tokenizer.encode(text, add_special_tokens=False).ids, eos, size)

    def __len__(self) -> int:
        return len(self._walks)

    def masks(self, draws: Sequence[Draw]) -> list[Tensor | RequestFailed | None]:
        """Of each draw what `allowed` says, or why it cannot."""
        found: list[Tensor | RequestFailed | None] = []
        for draw in draws:
            try:
                found.append(self.allowed(draw))
            except RequestFailed as error:
                found.append(error)
        return found

    def allowed(self, draw: Draw) -> Tensor | None:
        """Which ids may come next, bool [size] on the CPU; None where all may.

        Raises RequestFailed when the grammar turns out to be too hard, or the output does not follow it.
        """
        grammar = draw.sampling.grammar
        if (only := self._ending(draw)) is not None:
            return torch.zeros(self._size, dtype=torch.bool).index_fill_(0, torch.tensor([only]), True)
        if not grammar:
            return None
        key = (grammar, draw.sampling.seed)
        walk = self._walks.pop(key, None) or _Walk(partial(LLMatcher, self._tokenizer, grammar, log_level=0))
        walk.go_to(draw.history[len(draw.history) - draw.output_len :])
        self._walks[key] = walk
        if len(self._walks) > KEPT:
            self._walks.popitem(last=False)
        if walk.mask is None:
            walk.mask = self._mask(walk.matcher)
        return walk.mask

    def _ending(self, draw: Draw) -> int | None:
        """The token that must come because a thought has had all its tokens and has not ended; a function of output.

        Where a grammar goes on behind the thought, a character that is not whole when the tokens are spent is first
        brought to its end: the grammar knows whole ones only.
        """
        if draw.sampling.thought_len is None:
            return None
        output, most_len = draw.history[len(draw.history) - draw.output_len :], draw.sampling.thought_len
        end, last = self._thought_end, most_len + (CHARACTER - 1 if draw.sampling.grammar else 0)
        if not most_len <= len(output) < last + len(end):
            return None
        places = range(most_len, min(len(output), last) + 1)
        begin = next((at for at in places if at == last or not _is_cut(self._bytes_of(output[:at]))), None)
        if begin is None:
            return None
        over = len(output) - begin
        told = over >= len(end) or THOUGHT_END.encode() in self._bytes_of(output[:begin])
        return None if told or output[begin:] != end[:over] else end[over]

    def _bytes_of(self, tokens: tuple[int, ...]) -> bytes:
        return b"".join(self._raw[token] for token in tokens if token < len(self._raw))

    def _mask(self, matcher: LLMatcher) -> Tensor:
        packed = matcher.compute_bitmask()
        if matcher.is_error():
            raise RequestFailed("the answer's grammar is too hard to follow")
        octets = torch.frombuffer(bytearray(packed), dtype=torch.uint8)  # [ceil(size / 8) or more]
        return ((octets[:, None] >> self._bits) & 1).bool().reshape(-1)[: self._size]


def _is_cut(text: bytes) -> bool:
    """Whether the text ends within a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text[-CHARACTER:])
    return bool(decoder.getstate()[0])
