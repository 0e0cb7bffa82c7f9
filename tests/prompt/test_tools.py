"""Calls as the two formats write them, and everything that is nearly one: told alike however the text arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.prompt.elements import Arguments, CallStart
from foveate.prompt.reasoning import Words
from foveate.prompt.tools import CallSplit
from foveate.prompt.typed import typed
from tests.prompt.splits import cut, splits

SCHEMAS: dict[str, Any] = {
    "write": {
        "type": "object",
        "$defs": {"Mode": {"enum": ["a", "b"]}, "Spot": {"type": "object"}},
        "properties": {
            "path": {"type": "string"},
            "lines": {"type": "integer"},
            "ratio": {"type": "number"},
            "deep": {"$ref": "#/$defs/Spot"},
            "mode": {"$ref": "#/$defs/Mode"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "any": {},
        },
    },
    "now": {"type": "object", "properties": {}},
}
Told = tuple[str, list[tuple[str, str]]]


def told(pieces: list[str], single: bool = False) -> Told:
    """All text, and name and arguments of each call."""
    parser = CallSplit(SCHEMAS, single)
    text, calls = "", list[tuple[str, str]]()
    for part in [part for piece in pieces for part in parser.push(piece)] + parser.flush():
        if isinstance(part, Words):
            text += part.text
        elif isinstance(part, CallStart):
            calls.append((part.name, ""))
        else:
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return text, calls


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def function(name: str, *parameters: str) -> str:
    return f"<tool_call>\n<function={name}>\n{''.join(parameters)}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("path", 'a "b"\n\n c\\', 'a "b"\n\n c\\'), ("path", "5", "5"), ("lines", "5", 5), ("lines", " 5 ", 5),
        ("ratio", "5", 5), ("ratio", "0.5", 0.5), ("lines", "many", "many"), ("deep", '{"x": [1]}', {"x": [1]}),
        ("mode", "a", "a"), ("maybe", "None", None), ("maybe", "null", None), ("maybe", "5", "5"), ("any", "[1]", [1]),
        ("any", "plain", "plain"), ("undeclared", "5", "5"), ("lines", "True", True), ("ratio", "NaN", "NaN"),
        ("deep", "[" * 100_000, "[" * 100_000), ("path", "</parameter", "</parameter"), ("path", "", ""),
        ("path", "<tool_call>é\U0001f600", "<tool_call>é\U0001f600"), ("lines", "9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_a_parameter_s_type_decides_how_it_is_read(key: str, raw: str, value: Any) -> None:
    text, ((name, arguments),) = told([function("write", parameter(key, raw))])
    assert (text, name, json.loads(arguments)) == ("", "write", {key: value})


def test_a_reference_that_leads_nowhere_says_nothing() -> None:
    for reference in ("#/no/where", "elsewhere.json", "#/properties/x"):
        assert typed("[1]", {"properties": {"x": {"$ref": reference}}}, "x") == [1]
    assert typed("5", {"properties": {"x": {"type": ["string", "integer"]}}}, "x") == 5
    assert typed("5", {"properties": {"x": {"const": "y"}}}, "x") == "5"


def test_several_calls_and_the_text_around_them() -> None:
    hermes = '<tool_call>\n{"name": "now", "arguments": {"a": "}</tool_call>{"}}\n</tool_call>'
    got = told(["Let me see.\n\n" + function("now") + "\n" + hermes + "\n" + function("write", parameter("path", "x"))])
    assert got == (
        "Let me see.",
        [("now", "{}"), ("now", '{"a": "}</tool_call>{"}'), ("write", '{"path":"x"}')],
    )
    assert told(["a " + function("now") + " b \n"]) == ("a b \n", [("now", "{}")])


def test_two_parameters_and_a_forgotten_end() -> None:
    body = "<tool_call><function=write><parameter=path>x</parameter><parameter=lines>\n2\n</parameter></tool_call> ok"
    assert told([body]) == (" ok", [("write", '{"path":"x","lines":2}')])
    two = function("now").removesuffix("\n</tool_call>") + "\n<function=now></function>\n</tool_call>"
    assert told([two]) == ("", [("now", "{}"), ("now", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        "plain", "a <tool_call", "  \n", "<tool_call>", "<tool_call>\n", "<tool_call>what?</tool_call>",
        "x \n<tool_call>\n<function=", "<tool_call><function=a\nb>", "<tool_call><function=></function></tool_call>",
        "<tool_call>" + "<function=" + "x" * 300 + ">", "<tool_call>{}</tool_call>", "<tool_call>{ oops }</tool_call>",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>', '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>', '<tool_call>{"name": "f", "arguments": {"a": NaN}}',
        '<tool_call>{"name": "f", "arguments": {"a": 1}', "<tool_call> <tool_call> {", "</tool_call>",
        '<tool_call>{"a": "\\}"}', '<tool_call>{"a": tru}}', "<function=now></function>", "</parameter>",
    ],
)  # fmt: skip
def test_what_is_no_call_is_shown_as_it_is(text: str) -> None:
    assert told([text]) == (text, [])
    assert told(list(text)) == (text, [])


def test_a_broken_call_does_not_hide_the_next() -> None:
    assert told(["<tool_call>{oops}" + function("now")]) == ("<tool_call>{oops}", [("now", "{}")])
    assert told(["<tool_call>" + function("now")]) == ("<tool_call>", [("now", "{}")])
    assert told([function("now").replace("<function", " hm <function")]) == (
        function("now").replace("<function", " hm <function"), [],
    )  # fmt: skip
    junk = "<tool_call><function=now> what? <b>\n<parameter=path>x</parameter></function></tool_call>"
    assert told([junk]) == ("what? <b>\n", [("now", '{"path":"x"}')])


@pytest.mark.parametrize(
    ("end", "arguments"),
    [
        ("<parameter=path>\nhalf a li", '{"path":"half a li'),
        ("<parameter=path>\nhalf\n</para", '{"path":"half\\n</para'),
        ("<parameter=lines>\n1", '{"lines":\n1'),
        ("<parameter=path>x</parameter>\n", '{"path":"x"'),
        ("", ""),
    ],
)
def test_a_call_that_is_cut_off_stays_unfinished(end: str, arguments: str) -> None:
    text = "<tool_call>\n<function=write>\n" + end
    for pieces in ([text], list(text)):
        assert told(pieces) == ("", [("write", arguments)])


def test_text_arguments_are_passed_on_as_they_come() -> None:
    parser = CallSplit(SCHEMAS)
    assert parser.push("<tool_call>\n<function=write>\n") == [CallStart("write")]
    assert parser.push("<parameter=path>\n/tmp") == [Arguments('{"path":'), Arguments('"'), Arguments("/tmp")]
    assert parser.push('/"x"\n') == [Arguments('/\\"x\\"')]
    assert parser.push("</parameter>\n</function>") == [Arguments('"'), Arguments("}")]


def test_one_call_only_where_one_is_allowed() -> None:
    two = "a" + function("now") + function("now")
    for pieces in ([two], list(two)):
        assert told(pieces, single=True) == ("a", [("now", "{}")])
    parser = CallSplit(SCHEMAS, single=True)
    parser.push('<tool_call>{"name": "now"')
    assert not parser.done
    parser.push("}")
    assert parser.done


MARKUP = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<function=", "write>", "now>", "</function>", "<parameter=", "path>", "lines>",
     "</parameter>", "\n", " ", "<", "{", "}", '"', '{"name": "now", "arguments": {', "\\", ":", "a", "5", "é", ","]
)  # fmt: skip
CALLS = st.sampled_from([function("write", parameter("path", "x y")), function("now"), '<tool_call>{"name":"now"}'])


@given(st.lists(st.one_of(MARKUP, CALLS), max_size=14).map("".join), splits(), st.booleans())
def test_the_outcome_does_not_depend_on_the_split(text: str, places: list[int], single: bool) -> None:
    whole = told([text], single)
    assert told(cut(text, places), single) == whole
    assert told(list(text), single) == whole


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.lists(st.dictionaries(st.sampled_from(["path", "other"]), WORDS, max_size=2), max_size=3), WORDS, splits())
def test_every_call_comes_back(calls: list[dict[str, str]], words: str, places: list[int]) -> None:
    sent = [{key: value for key, value in call.items() if "</parameter>" not in value} for call in calls]
    markup = "\n".join(function("write", *(parameter(*item) for item in call.items())) for call in sent)
    text, got = told(cut(words + "\n\n" + markup, places))
    assert [json.loads(arguments) for _, arguments in got] == sent
    assert text == (words.rstrip() if sent else words + "\n\n") or OPENS in words


OPENS = "<tool_call>"
