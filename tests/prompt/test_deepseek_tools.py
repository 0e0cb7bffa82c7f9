"""DeepSeek's calls, and everything that is nearly one: told alike however the text arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.prompt.dsml import DsmlSplit
from foveate.prompt.elements import Arguments, CallStart
from foveate.prompt.markup import Markup, MarkupStream
from foveate.prompt.reasoning import Thought, Words
from tests.prompt.splits import cut, splits
from tests.prompt.test_tools import SCHEMAS, Told

D = "｜DSML｜"
OPEN, CLOSE = f"<{D}tool_calls>", f"</{D}tool_calls>"
CASES = [
    "plain", f"a <{D}tool_cal", "  \n", OPEN, OPEN + "\n", f"{OPEN}what?{CLOSE}", OPEN + CLOSE, f"{OPEN}\n\n{CLOSE}",
    f"x \n{OPEN}\n<{D}invoke", f'{OPEN}<{D}invoke name="a\nb">', f'{OPEN}<{D}invoke name="">', f"{OPEN}<{D}invoke>",
    f'{OPEN}<{D}invoke name="{"x" * 300}">', f'{OPEN}<{D}invoke name="f" x="y">', f"{OPEN} {OPEN} <", CLOSE,
    f'<{D}invoke name="now"></{D}invoke>', f"</{D}parameter>", f'{OPEN}\n<tool_call name="now">', D, f"<{D}>",
]  # fmt: skip


def told(pieces: list[str], single: bool = False) -> Told:
    """All text, and name and arguments of each call."""
    parser = DsmlSplit(SCHEMAS, single)
    text, calls = "", list[tuple[str, str]]()
    for part in [part for piece in pieces for part in parser.push(piece)] + parser.flush():
        if isinstance(part, Words):
            text += part.text
        elif isinstance(part, CallStart):
            calls.append((part.name, ""))
        else:
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return text, calls


def parameter(key: str, value: str, string: bool | None = True) -> str:
    flag = "" if string is None else f' string="{str(string).lower()}"'
    return f'<{D}parameter name="{key}"{flag}>{value}</{D}parameter>'


def invoke(name: str, *parameters: str) -> str:
    return "\n".join([f'<{D}invoke name="{name}">', *(parameters or ("",)), f"</{D}invoke>"])


def block(*invokes: str) -> str:
    return "\n".join([OPEN, *invokes, CLOSE])


@pytest.mark.parametrize(
    ("key", "raw", "string", "value"),
    [
        ("path", 'a "b"\n\n c\\\n', True, 'a "b"\n\n c\\\n'), ("path", "5", True, "5"), ("lines", "5", True, "5"),
        ("lines", "5", False, 5), ("ratio", "0.5", False, 0.5), ("deep", '{"x": [1, "é"]}', False, {"x": [1, "é"]}),
        ("any", "[1]", False, [1]), ("any", "null", False, None), ("any", "true", False, True),
        ("lines", "many", False, "many"), ("any", "NaN", False, "NaN"), ("path", "", True, ""),
        ("path", f"</{D}parameter", True, f"</{D}parameter"), ("path", OPEN, True, OPEN), ("path", " x ", True, " x "),
        ("path", "5", None, "5"), ("lines", "5", None, 5), ("new", "5", None, "5"), ("new", "5", False, 5),
        ("deep", "[" * 100_000, False, "[" * 100_000),
    ],
)  # fmt: skip
def test_a_parameter_says_what_it_is(key: str, raw: str, string: bool | None, value: Any) -> None:
    text, ((name, arguments),) = told([block(invoke("write", parameter(key, raw, string)))])
    assert (text, name, json.loads(arguments)) == ("", "write", {key: value})


def test_several_calls_and_the_text_around_them() -> None:
    two = block(invoke("now"), invoke("write", parameter("path", "x"), parameter("lines", "2", False)))
    calls = [("now", "{}"), ("write", '{"path":"x","lines":2}')]
    assert told(["Let me see.\n\n" + two]) == ("Let me see.", calls)
    assert told(["a " + block(invoke("now")) + " b \n"]) == ("a b \n", [("now", "{}")])
    assert told([block(invoke("now")) + "\n\n" + block(invoke("now"))]) == ("", [("now", "{}")] * 2)
    tight = two.replace("\n", "")
    assert told([tight]) == ("", calls)


def test_forgotten_ends() -> None:
    assert told([f'{OPEN}<{D}invoke name="now">{CLOSE} ok']) == (" ok", [("now", "{}")])
    assert told([f"{OPEN}{invoke('now')} and so on"]) == (" and so on", [("now", "{}")])
    assert told([f"{OPEN}{invoke('now')}\n"]) == ("", [("now", "{}")])


@pytest.mark.parametrize("text", CASES)
def test_what_is_no_call_is_shown_as_it_is(text: str) -> None:
    assert told([text]) == (text, [])
    assert told(list(text)) == (text, [])


def test_a_broken_block_does_not_hide_the_next() -> None:
    assert told([f"{OPEN} hm {block(invoke('now'))}"]) == (f"{OPEN} hm", [("now", "{}")])
    junk = f'{OPEN}<{D}invoke name="now"> what? <b>\n{parameter("path", "x")}</{D}invoke>{CLOSE}'
    assert told([junk]) == ("what? <b>\n", [("now", '{"path":"x"}')])
    odd = block(invoke("now", f'<{D}parameter name="x" string="maybe">y</{D}parameter>'))
    assert told([odd]) == (f'<{D}parameter name="x" string="maybe">y</{D}parameter>\n', [("now", "{}")])


@pytest.mark.parametrize(
    ("end", "arguments"),
    [
        (f'<{D}parameter name="path" string="true">half a li', '{"path":"half a li'),
        (f'<{D}parameter name="path" string="true">half\n</{D}para', f'{{"path":"half\\n</{D}para'),
        (f'<{D}parameter name="lines" string="false">1', '{"lines":1'),
        (parameter("path", "x") + "\n", '{"path":"x"'),
        (parameter("path", "x") + f'\n<{D}parameter name="li', '{"path":"x"'),
        (parameter("path", "x") + f"\n</{D}inv", '{"path":"x"'),
        (f'<{D}parameter name="pa', ""),
        ("", ""),
    ],
)
def test_a_call_that_is_cut_off_stays_unfinished(end: str, arguments: str) -> None:
    text = f'{OPEN}\n<{D}invoke name="write">\n{end}'
    for pieces in ([text], list(text)):
        assert told(pieces) == ("", [("write", arguments)])


def test_a_call_stays_in_one_piece_whatever_stands_in_it() -> None:
    """Who reads the pieces may close a call at the first words: they wait for its end."""
    inner = f"I look.\n{parameter('path', 'x')}\nand\n{parameter('lines', '3', False)}\ndone\n"
    for pieces in ([inner], list(inner)):
        parser = DsmlSplit(SCHEMAS)
        text = [f'{OPEN}\n<{D}invoke name="write">\n', *pieces, f"</{D}invoke>{CLOSE}"]
        said = [one for piece in text for one in parser.push(piece)] + parser.flush()
        kinds = [type(one) for one in said]
        assert kinds.index(Words) > max(i for i, kind in enumerate(kinds) if kind is Arguments)
        assert told(text) == ("I look.\nand\ndone\n", [("write", '{"path":"x","lines":3}')])


def test_strings_are_passed_on_as_they_come() -> None:
    parser = DsmlSplit(SCHEMAS)
    assert parser.push(f'{OPEN}\n<{D}invoke name="write">\n') == [CallStart("write")]
    head = f'<{D}parameter name="path" string="true">'
    assert parser.push(head + "/tmp") == [Arguments('{"path":'), Arguments('"'), Arguments("/tmp")]
    assert parser.push('/"x"\n') == [Arguments('/\\"x\\"\\n')]
    assert parser.push(f"</{D}parameter>\n</{D}invoke>") == [Arguments('"'), Arguments("}")]


def test_one_call_only_where_one_is_allowed() -> None:
    two = "a" + block(invoke("now"), invoke("now"))
    for pieces in ([two], list(two)):
        assert told(pieces, single=True) == ("a", [("now", "{}")])


def test_thoughts_come_before_calls() -> None:
    stream = MarkupStream(Markup(True, SCHEMAS, dsml=True))
    text = f"I might {OPEN} it</think>Well.\n\n{block(invoke('now'))}"
    said = [part for letter in text for part in stream.push(letter)] + stream.flush()
    thought = "".join(part.text for part in said if isinstance(part, Thought))
    words = "".join(part.text for part in said if isinstance(part, Words))
    assert (thought, words) == (f"I might {OPEN} it", "Well.")
    assert [part.name for part in said if isinstance(part, CallStart)] == ["now"] and stream.calls == 1


PIECES = st.sampled_from(
    [OPEN, CLOSE, f"<{D}invoke", ' name="write">', ' name="now">', f"</{D}invoke>", f"<{D}parameter", ' name="path"',
     ' string="true">', ' string="false">', f"</{D}parameter>", "\n", " ", "<", "</", D, '"', "a", "5", "é", ">", "{"]
)  # fmt: skip
CALLS = st.sampled_from([block(invoke("write", parameter("path", "x y"))), block(invoke("now")), invoke("now")])


@given(st.lists(st.one_of(PIECES, CALLS), max_size=14).map("".join), splits(), st.booleans())
def test_the_outcome_does_not_depend_on_the_split(text: str, places: list[int], single: bool) -> None:
    whole = told([text], single)
    assert told(cut(text, places), single) == whole
    assert told(list(text), single) == whole


@given(st.lists(PIECES, max_size=12).map("".join))
def test_an_answer_without_a_call_is_shown_whole(text: str) -> None:
    shown, calls = told([text])
    assert calls or shown == text


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.lists(st.dictionaries(st.sampled_from(["path", "other"]), WORDS, max_size=2), max_size=3), WORDS, splits())
def test_every_call_comes_back(calls: list[dict[str, str]], words: str, places: list[int]) -> None:
    sent = [{key: value for key, value in call.items() if f"</{D}parameter>" not in value} for call in calls]
    markup = block(*(invoke("write", *(parameter(*item) for item in call.items())) for call in sent)) if sent else ""
    text, got = told(cut(words + "\n\n" + markup, places))
    assert [json.loads(arguments) for _, arguments in got] == sent
    assert text == (words.rstrip() if sent else words + "\n\n") or OPEN in words
