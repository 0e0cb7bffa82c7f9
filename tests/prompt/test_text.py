"""Streamed text equals the whole; stops end it at the same character however tokens come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.prompt.text import TextStream
from tests.prompt.vocabulary import make_tokenizer, make_tokens

TOKENIZER = make_tokenizer()
TOKENS = make_tokens()
SIZE = TOKENS.vocab_size
HARD = "naïve café €5 😀👩‍🚀 das ist <|im_end|> 漢字 \N{REPLACEMENT CHARACTER}"


def run(
    pushes: list[list[int]], stops: tuple[str, ...] = (), skip: frozenset[int] = frozenset()
) -> tuple[str, int, str]:
    """Text, used ids and the stop of an answer that comes in these pushes."""
    stream, text, used = TextStream(TOKENS, stops, skip), "", 0
    for ids in pushes:
        piece = stream.push(ids)
        assert not piece.text.endswith("\ufffd") or "\ufffd" in TOKENS.text([i for p in pushes for i in p])
        text, used = text + piece.text, used + piece.used
        if piece.stop:
            break
    return text + stream.flush().text, used, stream.stop or ""


def cut_at_stop(text: str, stops: tuple[str, ...]) -> tuple[str, str]:
    """The reference: grow the text by one character until it ends in a stop; the longest of these counts."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, ""


@st.composite
def pushes(draw: st.DrawFn, ids: st.SearchStrategy[list[int]]) -> list[list[int]]:
    rest, out = draw(ids), []
    while rest:
        n = draw(st.integers(1, len(rest)))
        out.append(rest[:n])
        rest = rest[n:]
    return out


any_ids = st.lists(st.integers(0, SIZE - 1), max_size=40)
text_ids = st.text(max_size=30).map(lambda text: TOKENIZER.encode(text, add_special_tokens=False).ids)


@given(pushes(st.one_of(any_ids, text_ids)))
def test_streamed_equals_whole(parts: list[list[int]]) -> None:
    ids = [token for part in parts for token in part]
    assert run(parts)[0] == TOKENS.text(ids) == b"".join(map(TOKENS.raw, ids)).decode("utf-8", "replace")


@given(pushes(text_ids))
def test_whole_equals_the_library(parts: list[list[int]]) -> None:
    ids = [token for part in parts for token in part]
    assert run(parts)[0] == TOKENIZER.decode(ids, skip_special_tokens=False)


@given(st.lists(st.integers(0, 250), max_size=30))
def test_invalid_bytes_look_as_the_library_shows_them(ids: list[int]) -> None:
    assert run([[i] for i in ids])[0] == TOKENIZER.decode(ids, skip_special_tokens=False)


@given(pushes(st.lists(st.sampled_from(TOKENIZER.encode(HARD, add_special_tokens=False).ids), max_size=40)))
def test_no_half_character_is_ever_sent(parts: list[list[int]]) -> None:
    stream, sent, got = TextStream(TOKENS), "", b""
    for part in parts:
        sent += stream.push(part).text
        got += b"".join(map(TOKENS.raw, part))
        assert got.decode("utf-8", "replace").startswith(sent)
    assert sent + stream.flush().text == got.decode("utf-8", "replace")


@pytest.mark.parametrize("char", ["é", "€", "😀", "👩‍🚀"])
def test_a_character_in_several_tokens_comes_whole(char: str) -> None:
    stream = TextStream(TOKENS)
    pieces = [stream.push([token]).text for token in TOKENS.encode(f"a{char}b")]
    assert "".join(pieces) == f"a{char}b" and "\ufffd" not in "".join(pieces)


def test_half_a_character_at_the_end_is_one_replacement() -> None:
    ids = TOKENS.encode("x😀")[:-1]
    assert run([ids])[0] == "x\ufffd"


@given(
    st.text("abcd", max_size=25),
    st.lists(st.text("abcd", min_size=1, max_size=5), max_size=4).map(tuple),
    st.data(),
)
def test_B48_stops_cut_at_the_same_place_for_every_split(
    text: str, stops: tuple[str, ...], data: st.DataObject
) -> None:
    ids = [TOKENS.id_of(letter) for letter in text]
    parts = data.draw(pushes(st.just(ids)))
    got, used, stop = run(parts, stops)
    want, found = cut_at_stop(text, stops)
    assert (got, stop) == (want, found)
    assert used == (len(want) + len(found) if found else len(text))


@given(pushes(text_ids), st.lists(st.text(min_size=1, max_size=3), max_size=3).map(tuple))
def test_B48_stops_in_any_text(parts: list[list[int]], stops: tuple[str, ...]) -> None:
    ids = [token for part in parts for token in part]
    got, used, stop = run(parts, stops)
    want, found = cut_at_stop(TOKENS.text(ids), stops)
    assert (got, stop) == (want, found)
    if found:  # the text of the used tokens holds the stop, that of one fewer does not
        assert found in TOKENS.text(ids[:used])
        assert run([ids[: used - 1]], stops)[2] == ""


def test_B48_of_overlapping_stops_in_one_token_the_first_complete_one_counts() -> None:
    ids = TOKENS.encode("xin")
    assert [TOKENS.raw(token) for token in ids] == [b"x", b"in"]
    assert run([ids], ("xin", "i")) == ("x", 2, "i")
    assert run([ids], ("in", "n")) == ("x", 2, "in")


def test_B48_nothing_of_a_stop_is_sent_early() -> None:
    stream = TextStream(TOKENS, ("DEFGHIJ",))
    sent = "".join(stream.push([TOKENS.id_of(c)]).text for c in "ABCDEFGHI")
    assert sent == "ABC"
    piece = stream.push([TOKENS.id_of(c) for c in "JKL"])
    assert (piece.text, piece.used, piece.stop) == ("", 1, "DEFGHIJ")
    assert stream.flush().text == "" and stream.push([TOKENS.id_of("K")]).used == 0


def test_what_only_looked_like_a_stop_is_sent_in_the_end() -> None:
    stream = TextStream(TOKENS, ("DEFG",))
    assert stream.push([TOKENS.id_of(c) for c in "ABCDEF"]).text == "ABC"
    assert stream.push([TOKENS.id_of("D")]).text == "DEF"
    assert stream.flush().text == "D"


def test_skipped_ids_count_but_do_not_show() -> None:
    end, a = TOKENS.id_of("<|im_end|>"), TOKENS.id_of("a")
    assert run([[a, end, a]], (), TOKENS.special) == ("aa", 3, "")
    assert run([[a, end, a]])[0] == "a<|im_end|>a"


def test_a_stop_may_be_a_control_token_or_span_one() -> None:
    ids = TOKENS.encode("ab<|im_end|>cd")
    assert run([ids], ("b<|im",))[0] == "a"


def test_an_empty_stop_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        TextStream(TOKENS, ("",))
