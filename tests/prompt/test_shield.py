"""No client text ever becomes a control token, and text without such spellings is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.errors import InvalidRequest
from foveate.prompt.shield import MARK, Shield
from tests.prompt.vocabulary import MARKUP, SPECIAL

CLIENT = Shield([*SPECIAL, *MARKUP])
OWN = Shield(SPECIAL, kept=MARKUP)
PARTS = [
    "<|im_",
    "start|>",
    "<|im_start|>",
    "<",
    ">",
    "|",
    "im",
    "_end|>",
    "<think>",
    "</think>",
    "a b",
    "\n",
    "｜",
    "DSML｜",
]
texts = st.lists(st.sampled_from(PARTS), max_size=5).map("".join)


def whole(pieces: list[str], names: tuple[str, ...] = (*SPECIAL, *MARKUP)) -> int:
    return sum(piece.count(name) for piece in pieces for name in names)


@given(texts)
def test_B18_marks_break_every_spelling(text: str) -> None:
    assert whole(CLIENT.mark(text).split(MARK)) == 0
    assert CLIENT.mark(text).replace(MARK, "") == text


@given(st.lists(texts, min_size=1, max_size=4), st.sampled_from(["", "<|im_end|>\n", "x", "<|image_pad|>"]))
def test_B18_only_the_template_writes_control_tokens(fields: list[str], joint: str) -> None:
    """Fields set side by side, or with the template's own text in between: its tokens stay, no other forms."""
    rendered = joint.join(CLIENT.mark(field) for field in fields)
    pieces = CLIENT.cut(rendered)
    assert "".join(pieces) == joint.join(fields)
    assert whole(pieces) == (len(fields) - 1 if "|>" in joint else 0)


@given(st.lists(texts, min_size=1, max_size=4))
def test_B18_spellings_do_not_close_up_around_markup_that_a_template_removes(fields: list[str]) -> None:
    rendered = "".join(OWN.mark(field) for field in fields)
    for markup in MARKUP:
        rendered = rendered.replace(markup, "")
    assert whole(OWN.cut(rendered), SPECIAL) == 0


@given(st.text(st.characters(exclude_characters="<>|｜/", codec="utf-8")))
def test_ordinary_text_has_no_marks(text: str) -> None:
    assert CLIENT.mark(text) == text


@pytest.mark.parametrize("text", ["a < b", "x -> y", "if (a|b) {", "2 <3", "<b>bold</b>", "<|", "|>"])
def test_marks_that_break_nothing_are_taken_out(text: str) -> None:
    assert CLIENT.cut(f"<|im_start|>user\n{CLIENT.mark(text)}<|im_end|>\n") == [f"<|im_start|>user\n{text}<|im_end|>\n"]


def test_the_models_own_markup_is_kept_but_not_its_control_tokens() -> None:
    marked = OWN.mark("<think>why</think>yes<|im_end|>")
    assert marked.startswith("<think>why</think>yes<") and "<|im_end|>" not in marked


def test_B18_a_template_cannot_complete_what_a_client_began() -> None:
    for parts in (
        ("<|", CLIENT.mark("im_start|"), ">"),
        ("<|im_", CLIENT.mark("start|> and more")),
        (CLIENT.mark("so <|im_"), "start|>"),
    ):
        assert whole(["".join(parts).replace(MARK, "")]) == 1
        assert whole(CLIENT.cut("".join(parts))) == 0


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_the_mark_cannot_come_from_outside(text: str) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        CLIENT.mark(text)


def test_without_control_tokens_nothing_is_marked() -> None:
    empty = Shield([])
    assert empty.mark("<|im_start|>") == "<|im_start|>" and empty.cut("<|im_start|>") == ["<|im_start|>"]
