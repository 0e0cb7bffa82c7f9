"""Decides which drafted tokens stand: from each slice's logits to its new tokens and the path that they took.

Owns acceptance. At every token of the path the target draws exactly as it would have drawn alone, from the request's
own seed, index, penalties and truncation; a draft is accepted when it is what was drawn. For guesses that are fixed
before the draw this is rejection sampling (accepted with probability p(d), else drawn from p without d), and more: the
output is the very one of a run without drafts, so it depends on no batch, no load and no drafter. Holds for greedy
and sampled requests, chains and trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from foveate.core.errors import RequestFailed
from foveate.core.plan import Draw, Slice, SliceResult
from foveate.core.values import Logprob
from foveate.ops.lanes import glance
from foveate.run.grammar import Grammars
from foveate.run.sampler import Look, choose_row, logprob_of, plainly_greedy

Path = tuple[int, ...]  # numbers of the tokens that stand, from the anchor, 0, down one branch


class Rows(NamedTuple):
    """What the model said after the tokens of one slice: logits [rows, vocab], the best id of each, and if finite."""

    logits: Tensor
    best: list[int]
    sound: list[bool]


def settle(
    slices: Sequence[Slice], logits: Tensor, grammars: Grammars | None = None, look: Look | None = None
) -> list[tuple[SliceResult, Path]]:
    """New tokens and path of each drawing slice.

    logits: float32 [rows, vocab], for each slice the row of its last settled token and one per draft, in order; look:
    what is known of them. A row on the path whose values are not finite fails its request, and so does a grammar that
    cannot be followed.
    """
    best, sound = look or Look.of(glance(logits))
    settled, start = [], 0
    for piece in slices:
        end = start + piece.draft_len + 1
        settled.append(_walk(piece, Rows(logits[start:end], best[start:end], sound[start:end]), grammars))
        start = end
    return settled


def _walk(piece: Slice, rows: Rows, grammars: Grammars | None) -> tuple[SliceResult, Path]:
    assert piece.draw is not None, "a slice that draws nothing has nothing to verify"
    children = _children(piece)
    greedy, tokens, logprobs, path = plainly_greedy(piece.draw), list[int](), list[Logprob](), [0]
    while True:
        at = path[-1]
        if not rows.sound[at]:
            return SliceResult(piece.uid, error=RequestFailed("the model produced values that are not finite")), (0,)
        try:
            token = rows.best[at] if greedy else _draw(rows.logits[at], later(piece.draw, tokens), grammars)
        except RequestFailed as error:
            return SliceResult(piece.uid, error=error), (0,)
        tokens.append(token)
        logprob = logprob_of(rows.logits[at], token, piece.draw.sampling.logprobs)
        logprobs += [logprob] if logprob else []
        if (at, token) not in children:
            return SliceResult(piece.uid, tuple(tokens), tuple(logprobs)), tuple(path)
        path.append(children[at, token])


def _draw(logits: Tensor, draw: Draw, grammars: Grammars | None) -> int:
    return choose_row(logits, draw, None if grammars is None else grammars.allowed(draw))


def _children(piece: Slice) -> dict[tuple[int, int], int]:
    """(parent, token) -> the draft that says so; the first of equal siblings."""
    drafts = piece.tokens[len(piece.tokens) - piece.draft_len :]
    children: dict[tuple[int, int], int] = {}
    for number, (token, parent) in enumerate(zip(drafts, piece.parents or range(piece.draft_len), strict=True), 1):
        children.setdefault((parent, token), number)
    return children


def later(draw: Draw, tokens: Sequence[int]) -> Draw:
    """The draw that follows once `tokens` stand behind it."""
    if not tokens:
        return draw
    history = (*draw.history, *tokens) if draw.sampling.needs_history else ()
    return replace(draw, index=draw.index + len(tokens), history=history, output_len=draw.output_len + len(tokens))
