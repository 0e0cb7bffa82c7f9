"""Cutting a text in pieces, for tests that nothing may depend on where."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st


def splits() -> st.SearchStrategy[list[int]]:
    """Places to cut at; those beyond a text's end do nothing."""
    return st.lists(st.integers(0, 200), max_size=30)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[a:b] for a, b in pairwise(edges)]
