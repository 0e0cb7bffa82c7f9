"""Thoughts and words come apart the same way however the text arrives, and nothing else happens to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.prompt.reasoning import ReasoningSplit, Thought, Words
from tests.prompt.splits import cut, splits


def split(pieces: list[str], opened: bool) -> tuple[str, str]:
    """What was thought, and what was said."""
    parser = ReasoningSplit(opened)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.flush()
    thoughts, words = ("".join(part.text for part in parts if isinstance(part, kind)) for kind in (Thought, Words))
    kinds = [type(part) for part in parts]
    assert kinds == sorted(kinds, key=[Thought, Words].index), "a thought after words"
    return thoughts, words


@pytest.mark.parametrize(
    ("text", "opened", "want"),
    [
        ("hm\n</think>\n\nYes.", True, ("hm", "Yes.")),
        ("\nhm\n\nso</think>Yes.", True, ("hm\n\nso", "Yes.")),
        ("<think>\nhm\n</think>\n\nYes.", True, ("hm", "Yes.")),
        ("\n <think>hm</think>Yes.", False, ("hm", "Yes.")),
        ("no end in sight\n", True, ("no end in sight\n", "")),
        ("half </thin", True, ("half </thin", "")),
        ("</think>\n\nYes.", True, ("", "Yes.")),
        ("Yes.", False, ("", "Yes.")),
        ("  Yes <think>no</think>", False, ("", "  Yes <think>no</think>")),
        ("<thin", False, ("", "<thin")),
        ("hm</think>a</think>b<think>", True, ("hm", "a</think>b<think>")),
        ("", True, ("", "")),
        ("a < b\n\n\n< c", True, ("a < b\n\n\n< c", "")),
        ("x</think>\n", True, ("x", "")),
    ],
)  # fmt: skip
def test_marks_and_their_line_breaks_go_and_all_else_stays(text: str, opened: bool, want: tuple[str, str]) -> None:
    assert split([text], opened) == want
    assert split(list(text), opened) == want


PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "\n", " ", "<", "</", "think>", "a", "é", "b c"]), max_size=10
)


@given(PIECES.map("".join), st.booleans(), splits())
def test_the_outcome_does_not_depend_on_the_split(text: str, opened: bool, places: list[int]) -> None:
    whole = split([text], opened)
    assert split(cut(text, places), opened) == whole
    kept = "".join(whole).replace("\n", "").replace(" ", "")
    bare = text.replace("\n", "").replace(" ", "")
    assert kept == bare or len(bare) - len(kept) in (len("<think>"), len("</think>"), len("<think></think>"))


def test_it_tells_where_it_stands_and_what_it_knows_at_once() -> None:
    parser = ReasoningSplit(True)
    assert parser.thinking and parser.push("hm, ") == [Thought("hm, ")]
    assert parser.push("well</th") == [Thought("well")] and parser.thinking
    assert parser.push("ink>\n\nYes") == [Words("Yes")] and not parser.thinking
