"""The mix that packs are filled with: a conversation, and a few more of the questions that need the most practice.

Owns the extra share of kinds that are rare in free conversation or hard to learn (sums, order, charts compared).
Promises nothing about words or pictures: both come from `recipe.sample` and `recipe.questions`.
"""

import random
from dataclasses import replace

from recipe.questions import ask
from recipe.sample import Conversation, conversation

# Kind of question and how often one more of it is asked in a conversation that can have it.
ALONE = (("sum", 0.5), ("difference", 0.4), ("order", 0.4), ("count_beyond", 0.25), ("compare", 0.2), ("choice", 0.15))
TOGETHER = (("shared", 0.9), ("cross", 0.6), ("across", 0.4), ("titles", 0.2))


def train_draw(rng: random.Random) -> Conversation:
    """A conversation to train on."""
    return practised(rng, conversation(rng, "train"), "train")


def test_draw(rng: random.Random) -> Conversation:
    """A held-out conversation: words, fonts and styles never trained on."""
    return practised(rng, conversation(rng, "test"), "test")


def practised(rng: random.Random, drawn: Conversation, split: str) -> Conversation:
    """The conversation with extra questions in random places behind the first turn."""
    turns = list(drawn.turns)
    kinds = (*ALONE, *TOGETHER) if len(drawn.charts) > 1 else ALONE
    for kind, odds in kinds if drawn.charts else ():
        if rng.random() < odds:
            for extra in ask(rng, drawn.charts, split, 1, kind):
                turns.insert(rng.randint(1, len(turns)), extra)
    return replace(drawn, turns=tuple(turns))
