"""Draws what happened to a request's images over time, for a terminal.

Owns the picture: one lane per image with its decode, encode and prefill, one lane for the answer, on one axis. Takes
the `timings` object of a response (seconds since the request arrived), so it draws the same for a remote server and
for an engine in this process. Prints with `rich`; letters differ as well as colours, so that it reads without colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

LANES = (("decode", "d", "yellow"), ("encode", "▒", "cyan"), ("prefill", "█", "green"))
ANSWER = ("answer", "▚", "magenta")


def timeline(timings: Mapping[str, Any], width: int = 66) -> Group:
    """The lanes and the sums of one request as something rich can print; `width` is that of the lanes."""
    images = timings.get("images", [])
    first_s = timings["first_token_s"]
    end_s = max(first_s + timings["generation_s"], 1e-6)
    lanes = [_axis(end_s, width)]
    for number, image in enumerate(images, 1):
        windows = [
            (image.get(f"{name}_start_s"), image.get(f"{name}_end_s"), mark, style) for name, mark, style in LANES
        ]
        lanes.append(_lane(f"image {number}", windows, end_s, width))
    lanes.append(_lane("answer", [(first_s, end_s, ANSWER[1], ANSWER[2])], end_s, width))
    return Group(*lanes, _legend(bool(images)), _sums(timings, len(images)))


def _axis(end_s: float, width: int) -> Text:
    marks = [f"{end_s * part / 4:.2f} s" for part in range(5)]
    line = [" "] * width
    for part, mark in enumerate(marks):
        at = min(part * width // 4, width - len(mark))
        line[at : at + len(mark)] = mark
    return Text(" " * 10 + "".join(line).rstrip(), style="dim")


def _lane(name: str, windows: list[tuple[float | None, float | None, str, str]], end_s: float, width: int) -> Text:
    cells: list[tuple[str, str]] = [("·", "dim")] * width
    for start_s, stop_s, mark, style in windows:
        if start_s is None or stop_s is None:
            continue
        first = min(width - 1, max(0, int(start_s / end_s * width)))
        last = min(width, max(first + 1, round(stop_s / end_s * width)))
        cells[first:last] = [(mark, style)] * (last - first)
    lane = Text(f"{name:<10}")
    for mark, style in cells:
        lane.append(mark, style=style)
    return lane


def _legend(with_images: bool) -> Text:
    legend = Text(" " * 10)
    for name, mark, style in (*(LANES if with_images else ()), ANSWER):
        legend.append(mark, style=style)
        legend.append(f" {name}   ")
    return legend


def _sums(timings: Mapping[str, Any], images: int) -> Text:
    def seconds(*names: str) -> str:
        return " · ".join(f"{name.replace('_', ' ')} {timings[f'{name}_s']:.2f} s" for name in names)

    lines = [seconds("first_token", "generation")]
    if images:
        share = timings["hidden_s"] / timings["encode_s"] if timings["encode_s"] else 0.0
        lines.append(seconds("decode", "encode", "prefill", "waited"))
        lines.append(f"{seconds('hidden')}: {share:.0%} of the encoding cost no waiting")
    return Text("\n".join(" " * 10 + line for line in lines))
