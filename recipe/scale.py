"""Value axes: where ticks go and how a value becomes a pixel.

Owns the choice of tick steps (1, 2, 2.5, 5 and a few odd ones times a power of ten) and tick labels. Promises that an
axis covers its values and that `snap` moves values to places a careful reader can read off without printed numbers.
Refuses to know about pixels beyond a linear map.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """A value axis from `low` to `high` with a tick at every multiple of `step` between them."""

    low: float
    high: float
    step: float

    def ticks(self) -> list[float]:
        """Tick values from low to high."""
        first = math.ceil(self.low / self.step - 1e-6)
        last = math.floor(self.high / self.step + 1e-6)
        return [round(number * self.step, 6) for number in range(first, last + 1)]

    def share(self, value: float) -> float:
        """Where the value lies between low (0.0) and high (1.0)."""
        return (value - self.low) / (self.high - self.low)

    def decimals(self) -> int:
        """Decimals that tick labels need."""
        return next((places for places in range(4) if abs(round(self.step, places) - self.step) < 1e-9), 4)


def tidy_scale(rng: random.Random, top: float, want: int, decimals: int) -> Scale:
    """From zero to a whole number of ticks above `top`, with about `want` ticks."""
    step = _step(top / want, 0.1 if decimals else 1.0)
    if rng.random() < 0.04 and not decimals and step >= 2:
        step = rng.choice((3, 4, 6)) * 10.0 ** math.floor(math.log10(max(top / want, 1)))
    high = math.ceil(top / step - 1e-6) * step
    if high - top < 0.02 * top and rng.random() < 0.6:
        high += step
    return Scale(0.0, high, step)


def library_scale(low: float, high: float, length: float, font: float, zero: bool) -> Scale:
    """An axis the way plotting libraries choose it: margins of five per cent, steps for at most nine intervals."""
    margin = 0.05 * ((high - low) or 1.0)
    low, high = (0.0, high * 1.05) if zero else (low - margin, high + margin)
    room = max(2, min(9, math.floor(length / (font * 2.0))))
    return Scale(low, high, _step((high - low) / room, 0.0))


def _step(raw: float, least: float) -> float:
    """The smallest pleasant step that is not below `raw` nor `least`."""
    power = 10.0 ** math.floor(math.log10(max(raw, 1e-6)))
    for factor in STEPS:
        step = factor * power
        if step >= raw * 0.999 and step >= least and (not least or abs(step / least - round(step / least)) < 1e-6):
            return step
    return 10.0 * power


def snap(
    rng: random.Random, scale: Scale, rows: tuple[tuple[float, ...], ...], decimals: int
) -> tuple[tuple[tuple[float, ...], ...], int]:
    """Moves values to ticks and half ticks (a few to quarters or fifths); returns the rows and their decimals."""
    roll = rng.random()
    parts = 1 if roll < 0.2 else 2 if roll < 0.87 else rng.choice((4, 5))
    places = _places(scale, parts, decimals)
    if len(places) < 3:
        parts, decimals, places = 2, 1, _places(scale, 2, 1)
    top = max(map(max, rows)) + 0.6 * scale.step / parts
    lower = [place for place in places if place <= top]
    places = lower if len(lower) >= 3 else places
    placed: list[tuple[float, ...]] = []
    for row in rows:
        placed.append(_nearest(places, row, placed))
    return tuple(placed), decimals


def _places(scale: Scale, parts: int, decimals: int) -> list[float]:
    """Values on the axis at parts of a tick that can be written with the decimals."""
    unit = scale.step / parts
    least = math.ceil(scale.low / unit + (0.5 if scale.low == 0 else -1e-6))
    most = math.floor(scale.high / unit + 1e-6)
    numbers = (number * unit for number in range(least, most + 1))
    return [round(number, decimals) for number in numbers if abs(round(number, decimals) - number) < 1e-6]


def _nearest(places: list[float], row: tuple[float, ...], others: list[tuple[float, ...]]) -> tuple[float, ...]:
    """Each value's nearest place, apart from the row's own and from other rows' at its position where there is room."""
    taken: set[int] = set()
    placed: list[float] = []
    for at, value in enumerate(row):
        here = {other[at] for other in others}
        want = min(range(len(places)), key=lambda spot: abs(places[spot] - value))
        near = [want + shift for shift in (0, 1, -1, 2, -2, 3, -3) if 0 <= want + shift < len(places)]
        free = [spot for spot in near if places[spot] not in here]
        want = next((spot for spot in free if spot not in taken), free[0] if free else want)
        taken.add(want)
        placed.append(places[want])
    return tuple(placed)


def show_tick(value: float, decimals: int, comma: bool, thousands: bool) -> str:
    """A tick label: plain, with comma separators, or in thousands (2k)."""
    if thousands and value:
        return f"{value / 1000:g}k"
    text = f"{value:,.{decimals}f}" if comma else f"{value:.{decimals}f}"
    return "0" if float(value) == 0 and not decimals else text
