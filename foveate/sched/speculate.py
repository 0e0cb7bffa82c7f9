"""How much is guessed for whom: lengths from each request's luck so far and from what wider steps have cost.

A request's luck is the chance that its next drafted token is accepted if those before it were: a fading average,
leaning on the engine's. A step's cost is learnt as a base, a part per request, one for drafting at all and one per
drafted token. Of all (request, depth) pairs, likeliest first, as many are taken as bring the most tokens a second;
none may well be best, as in a full batch, and then a short probe now and then finds out when that changes. Since no
guess can change an answer, neither can any of this. Refuses to know clocks: seconds are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FADE_LUCK = 0.9  # per step with drafts
PACE = 0.05  # of the learning of costs, once it has begun
WIDE = 8.0  # drafted tokens in the unit that costs are learnt in, so that they weigh like the rest
TRUST = 2.0  # trials that the engine's average weighs in a request's own
PROBE_EVERY = 32  # plain steps of a request after which it is tried again
PROBE_LEN = 2
PRIOR = (0.8, 0.2, 0.3, 0.4)  # shares of a first step: base, each request, drafting at all, WIDE drafted tokens


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """draft_len: most tokens guessed along one path; tree: most over all paths, 0 for chains.

    lookback: tokens that a wish brings. adaptive: choose lengths by luck and cost; off, always the most.
    """

    draft_len: int
    tree: int = 0
    lookback: int = 1
    adaptive: bool = True


@dataclass(slots=True)
class Luck:
    """How guessing has gone: a fading count of accepted tokens among those whose turn came."""

    accepted: float = 0.0
    tried: float = 0.0
    plain_steps: int = 0  # since it was last guessed for

    def note(self, drafted_len: int, accepted_len: int) -> None:
        """A step verified so many tokens along its path, and accepted so many; the first miss ends the trial."""
        self.accepted = FADE_LUCK * self.accepted + accepted_len
        self.tried = FADE_LUCK * self.tried + min(drafted_len, accepted_len + 1)

    def rate(self, prior: float) -> float:
        """The chance that the next drafted token is accepted."""
        return (self.accepted + TRUST * prior) / (self.tried + TRUST)


@dataclass(slots=True)
class StepCost:
    """Seconds of a decoding step, as shares of base, requests, drafting at all and drafted tokens (in `WIDE`s).

    Learnt by normalised least mean squares: each measured step moves the shares a little towards explaining it.
    """

    shares: list[float] = field(default_factory=lambda: list(PRIOR))
    steps: int = 0

    def note(self, requests: int, drafted: int, seconds: float) -> None:
        """A step that decoded for so many requests and verified so many drafted tokens took so long, drafting included.

        What strays more than threefold from the expected is the machine's doing and counts as threefold.
        """
        if not self.steps:
            scale = seconds / self.expect(requests, drafted)
            self.shares = [share * scale for share in self.shares]
        self.steps += 1
        x, expected = _features(requests, drafted), self.expect(requests, drafted)
        error = min(max(seconds, expected / 3), expected * 3) - expected
        pace = max(PACE, 1.0 / self.steps) * error / sum(part * part for part in x)
        self.shares = [max(0.0, share + pace * part) for share, part in zip(self.shares, x, strict=True)]

    def expect(self, requests: int, drafted: int) -> float:
        """Seconds such a step should take; in units of a plain step's while nothing was measured."""
        parts = zip(self.shares, _features(requests, drafted), strict=True)
        return max(sum(share * part for share, part in parts), 1e-9)

    @property
    def per_token(self) -> float:
        """Seconds that one more drafted token costs."""
        return self.shares[3] / WIDE


def _features(requests: int, drafted: int) -> tuple[float, ...]:
    return 1.0, float(requests), float(drafted > 0), drafted / WIDE


class Speculation:
    """The policy of one engine."""

    def __init__(self, limits: DraftLimits) -> None:
        self.limits, self.cost, self._all = limits, StepCost(), Luck(1.5, 2.0)
        self._worth = 0.0  # the least chance that made a drafted token worth its time, by the last choice

    def lengths(self, rooms: Mapping[int, int], lucks: Mapping[int, Luck], decoding: int) -> dict[int, int]:
        """Tokens to guess for each uid; `rooms` says how many could be accepted, `decoding` how many requests decode.

        Whoever is left out decodes plainly.
        """
        most = {uid: min(room, self.limits.draft_len) for uid, room in rooms.items() if room > 0}
        if not self.limits.adaptive:
            self._worth = 0.0
            return most
        prior = self._all.rate(0.6)
        chances = sorted(
            ((lucks[uid].rate(prior) ** depth, uid) for uid, room in most.items() for depth in range(1, room + 1)),
            key=lambda pair: -pair[0],
        )
        chosen = self._best(chances, decoding)
        for uid, room in most.items():
            luck = lucks[uid]
            luck.plain_steps = 0 if uid in chosen else luck.plain_steps + 1
            if luck.plain_steps >= PROBE_EVERY:
                chosen[uid], luck.plain_steps = min(PROBE_LEN, room), 0
        return chosen

    def _best(self, chances: Sequence[tuple[float, int]], decoding: int) -> dict[int, int]:
        """How many tokens each uid gets where tokens a second are most."""
        tokens, taken = float(decoding), 0
        branches = max(1.0, self.limits.tree / self.limits.draft_len)
        best = tokens / self.cost.expect(decoding, 0)
        for count, (chance, _) in enumerate(chances, 1):
            tokens += chance
            speed = tokens / self.cost.expect(decoding, round(count * branches))
            if speed > best:
                best, taken = speed, count
        self._worth = min(1.0, best * self.cost.per_token)
        chosen: dict[int, int] = {}
        for _, uid in chances[:taken]:
            chosen[uid] = chosen.get(uid, 0) + 1
        return chosen

    def budget(self, draft_len: int) -> int:
        """Tokens over all paths of a guess whose chain has `draft_len`."""
        spare = max(0, self.limits.tree - self.limits.draft_len)
        return draft_len + spare * draft_len // self.limits.draft_len

    def worth_len(self, confidence: Sequence[float]) -> int:
        """How many tokens of a guessed chain are worth verifying, by the drafter's own confidence in each."""
        chance = 1.0
        for count, sure in enumerate(confidence):
            chance *= sure
            if chance < self._worth:
                return count
        return len(confidence)

    def note(self, luck: Luck, drafted_len: int, accepted_len: int) -> None:
        """A guess has been verified."""
        luck.note(drafted_len, accepted_len)
        self._all.note(drafted_len, accepted_len)
