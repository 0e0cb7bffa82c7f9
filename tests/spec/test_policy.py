"""How much is guessed: by luck, by cost, by load, by confidence, by room; integers and floats only."""

from __future__ import annotations

import random

from foveate.core.values import Ending, Prompt, Sampling, plain_positions
from foveate.sched.request import Account, Request, cut_tree, depths
from foveate.sched.speculate import PROBE_EVERY, DraftLimits, Luck, Speculation, StepCost

LIMITS = DraftLimits(draft_len=8)


def lucky(rate: float, steps: int = 30) -> Luck:
    luck = Luck()
    for _ in range(steps):
        luck.accepted, luck.tried = 0.9 * luck.accepted + 2 * rate, 0.9 * luck.tried + 2
    return luck


def taught(policy: Speculation, base: float, each: float, once: float, per_token: float) -> Speculation:
    """A policy that has seen steps of such costs, at many loads."""
    rng = random.Random(0)
    for _ in range(3000):
        requests = rng.randint(1, 8)
        drafted = rng.choice([0, requests * rng.randint(1, 8)])
        policy.cost.note(requests, drafted, base + each * requests + once * (drafted > 0) + per_token * drafted)
    return policy


def lengths(policy: Speculation, lucks: dict[int, Luck], room: int = 50) -> dict[int, int]:
    return policy.lengths(dict.fromkeys(lucks, room), lucks, len(lucks))


def test_costs_are_learnt_through_noise() -> None:
    cost, rng = StepCost(), random.Random(1)
    for _ in range(4000):
        requests = rng.randint(1, 8)
        drafted = rng.choice([0, requests * rng.randint(1, 8)])
        seconds = 0.01 + 0.001 * requests + 0.004 * (drafted > 0) + 0.0005 * drafted
        cost.note(requests, drafted, seconds * rng.choice([0.9, 1.0, 1.1, 1.0, 20.0 if rng.random() < 0.02 else 1.0]))
    for requests, drafted in ((1, 0), (1, 8), (8, 0), (8, 32)):
        want = 0.01 + 0.001 * requests + 0.004 * (drafted > 0) + 0.0005 * drafted
        assert abs(cost.expect(requests, drafted) / want - 1) < 0.15, (requests, drafted)


def test_luck_decides_the_length() -> None:
    policy = taught(Speculation(LIMITS), 0.010, 0.001, 0.003, 0.0008)
    got = lengths(policy, {1: lucky(0.95), 2: lucky(0.6), 3: lucky(0.05)})
    assert got[1] > got[2] >= 1 and got[1] >= 6 and 3 not in got


def test_a_full_batch_is_left_alone_and_a_small_one_is_not() -> None:
    """Where tokens cost and steps do not, guessing pays only while there are few of them."""
    policy = taught(Speculation(LIMITS), 0.010, 0.004, 0.002, 0.004)
    few, many = {1: lucky(0.8)}, {uid: lucky(0.8) for uid in range(16)}
    assert sum(lengths(policy, few).values()) >= 2
    assert not lengths(policy, many)
    assert sum(lengths(policy, few).values()) >= 2, "on again when the load has gone"


def test_who_is_left_out_is_tried_again_now_and_then() -> None:
    policy, lucks = taught(Speculation(LIMITS), 0.010, 0.001, 0.003, 0.0008), {1: lucky(0.0)}
    tries = [step for step in range(4 * PROBE_EVERY) if lengths(policy, lucks)]
    assert 3 <= len(tries) <= 4
    for _ in range(6):
        policy.note(lucks[1], 2, 2)
    assert lengths(policy, lucks)[1] >= 2, "its luck has turned"


def test_room_and_switch() -> None:
    policy = Speculation(LIMITS)
    assert policy.lengths({1: 3, 2: 0}, {1: lucky(0.99), 2: lucky(0.99)}, 2).get(2) is None
    assert policy.lengths({1: 3}, {1: lucky(0.99)}, 1)[1] <= 3
    always = Speculation(DraftLimits(draft_len=5, adaptive=False))
    assert always.lengths({1: 9, 2: 2, 3: 0}, {uid: lucky(0.0) for uid in (1, 2, 3)}, 3) == {1: 5, 2: 2}


def test_confidence_cuts_a_chain_where_it_stops_paying() -> None:
    policy = taught(Speculation(LIMITS), 0.010, 0.001, 0.003, 0.002)
    lengths(policy, {1: lucky(0.7)})
    assert policy.worth_len((0.99, 0.98, 0.97)) == 3
    assert policy.worth_len((0.99, 0.9, 0.02, 0.99)) == 2
    assert Speculation(DraftLimits(5, adaptive=False)).worth_len((0.1, 0.0)) == 2


def test_trees_shrink_with_their_chains() -> None:
    policy = Speculation(DraftLimits(draft_len=8, tree=24))
    assert [policy.budget(length) for length in (8, 4, 1)] == [24, 12, 3]
    assert Speculation(LIMITS).budget(8) == 8


def test_a_tree_is_cut_to_the_room_that_is_left() -> None:
    tokens, parents = (10, 11, 12, 13, 14, 15), (0, 1, 2, 0, 4, 5)
    assert depths(parents) == [1, 2, 3, 1, 2, 3]
    assert cut_tree(tokens, parents, 2) == ((10, 11, 13, 14), (0, 1, 0, 3))
    assert cut_tree(tokens, parents, 0) == ((), ())


def test_guesses_never_outgrow_the_answer() -> None:
    prompt = Prompt((1, 2, 3), plain_positions(3))
    request = Request(1, prompt, Sampling(), Ending(10), Account(0.0))
    assert request.room_len == 0, "nothing to guess while it prefills"
    request.output, request.computed = [7] * 8, 10
    assert request.room_len == 1
    request.propose((4, 5, 6), (0, 1, 0))
    assert (request.draft, request.parents) == ((4, 6), (0, 0))
    request.output, request.computed = [7] * 9, 11
    assert request.room_len == 0
