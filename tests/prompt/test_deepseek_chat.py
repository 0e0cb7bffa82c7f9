"""DeepSeek's conversations: what its published encoding writes for them, pictures in place, client text as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.core.errors import CheckpointError, InvalidRequest
from foveate.prompt.chat import BUILT_IN, ChatTemplate
from foveate.prompt.dsml import DsmlSplit
from foveate.prompt.elements import Arguments, CallStart
from foveate.prompt.tokens import Tokens
from tests.prompt.vocabulary import make_tokenizer

BOS, EOS, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
IMAGE, D = "<｜deepseek_image｜>", "｜DSML｜"
SPECIAL = (BOS, EOS, USER, ASSISTANT, IMAGE)
MARKUP = ("<think>", "</think>", D, "<tool_result>", "</tool_result>")
TOKENS = Tokens(make_tokenizer(SPECIAL, MARKUP))
IMAGE_ID = TOKENS.id_of(IMAGE)
SOURCE = BUILT_IN["deepseek_v4"].read_text("utf-8")
TEMPLATE = ChatTemplate(SOURCE, TOKENS, IMAGE_ID, {"bos_token": BOS, "eos_token": EOS})
LOOK = {
    "name": "look",
    "description": "Löök",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": LOOK}, {"type": "function", "function": {"name": "now"}}]


def turn(role: str, content: Any = "", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def calling(name: str, call_id: str = "c", **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_of(*messages: dict[str, Any], **options: Any) -> str:
    return TOKENS.text(TEMPLATE.render(messages, options).ids)


THINK = {"enable_thinking": True}
OLD = (turn("user", "Q1"), turn("assistant", "A1", reasoning_content="R1"), turn("user", "Q2"))


@pytest.mark.parametrize(
    ("messages", "options", "text"),
    [
        ((turn("user", "Hi"),), {}, f"{BOS}{USER}Hi{ASSISTANT}</think>"),
        ((turn("user", "Hi"),), THINK, f"{BOS}{USER}Hi{ASSISTANT}<think>"),
        ((turn("user", "Hi"),), {"thinking": True}, f"{BOS}{USER}Hi{ASSISTANT}<think>"),
        ((turn("user", "Hi"),), THINK | {"reasoning_effort": "none"}, f"{BOS}{USER}Hi{ASSISTANT}</think>"),
        ((turn("user", "Hi"),), THINK | {"reasoning_effort": "low"}, f"{BOS}{USER}Hi{ASSISTANT}<think>"),
        ((turn("system", "S"), turn("user", "Hi")), {}, f"{BOS}S{USER}Hi{ASSISTANT}</think>"),
        ((turn("system", "S"), turn("developer", "T"), turn("user", "")), {}, f"{BOS}S\n\nT{USER}{ASSISTANT}</think>"),
        (OLD, {}, f"{BOS}{USER}Q1{ASSISTANT}</think>A1{EOS}{USER}Q2{ASSISTANT}</think>"),
        (OLD, THINK, f"{BOS}{USER}Q1{ASSISTANT}</think>A1{EOS}{USER}Q2{ASSISTANT}<think>"),
        (OLD[:2], THINK, f"{BOS}{USER}Q1{ASSISTANT}<think>R1</think>A1{EOS}{ASSISTANT}<think>"),
        ((turn("user", "a"), turn("user", "b")), {}, f"{BOS}{USER}a\n\nb{ASSISTANT}</think>"),
        ((turn("user", "Hi"),), {"add_generation_prompt": False}, f"{BOS}{USER}Hi"),
        ((turn("system"), turn("assistant", "A"), turn("user", "Q")), {}, f"{BOS}A{EOS}{USER}Q{ASSISTANT}</think>"),
    ],
)  # fmt: skip
def test_plain_conversations(messages: tuple[dict[str, Any], ...], options: dict[str, Any], text: str) -> None:
    assert text_of(*messages, **options) == text


@pytest.mark.parametrize(
    ("effort", "head"), [("high", "Reasoning Effort: Absolute"), ("max", "Reasoning Effort: Beyond")]
)
def test_efforts_stand_before_everything(effort: str, head: str) -> None:
    text = text_of(turn("system", "S"), turn("user", "Hi"), enable_thinking=True, reasoning_effort=effort)
    assert text.startswith(BOS + head) and text.endswith(f".\n\nS{USER}Hi{ASSISTANT}<think>")
    assert head not in text_of(turn("user", "Hi"), reasoning_effort=effort), "nothing to strain where it does not think"


def test_the_answer_begins_inside_a_thought_or_behind_it() -> None:
    assert TEMPLATE.render([turn("user", "Hi")], THINK).opened and not TEMPLATE.render([turn("user", "Hi")]).opened
    assert TEMPLATE.thinks and TEMPLATE.dsml and {"tools", "enable_thinking", "reasoning_effort"} <= TEMPLATE.variables


def test_tools_are_told_one_a_line_after_the_system_text() -> None:
    text = text_of(turn("system", "S"), turn("user", "Hi"), tools=TOOLS)
    before, _, rest = text.partition("### Available Tool Schemas\n\n")
    assert (
        before.startswith(f"{BOS}S\n\n## Tools\n\nYou have access to a set of tools") and f"<{D}tool_calls>" in before
    )
    lines = "".join(json.dumps(tool["function"], ensure_ascii=False) + "\n" for tool in TOOLS)
    assert rest.startswith(lines + "\nYou MUST strictly follow") and rest.endswith(f".\n{USER}Hi{ASSISTANT}</think>")
    assert text_of(turn("user", "Hi"), tools=TOOLS).startswith(f"{BOS}\n\n## Tools")
    assert D in [TOKENS.text([token]) for token in TEMPLATE.render([turn("user", "Hi")], {"tools": TOOLS}).ids]


def test_calls_and_results() -> None:
    calls = [calling("look", "a", at='x "y"\n', times=2, deep={"é": [None]}), calling("now", "b")]
    talk = (
        turn("user", "Q"),
        turn("assistant", "Well.", reasoning_content="R", tool_calls=calls),
        turn("tool", "one", tool_call_id="a"),
        turn("tool", [{"type": "text", "text": "two"}, {"type": "text", "text": "2"}], tool_call_id="b"),
        turn("user", "go on"),
    )
    written = (
        f'\n\n<{D}tool_calls>\n<{D}invoke name="look">\n<{D}parameter name="at" string="true">x "y"\n</{D}parameter>\n'
        f'<{D}parameter name="times" string="false">2</{D}parameter>\n'
        f'<{D}parameter name="deep" string="false">{{"é": [null]}}</{D}parameter>\n</{D}invoke>\n'
        f'<{D}invoke name="now">\n\n</{D}invoke>\n</{D}tool_calls>{EOS}'
    )
    results = f"{USER}<tool_result>one</tool_result>\n\n<tool_result>two\n\n2</tool_result>\n\ngo on{ASSISTANT}"
    assert text_of(*talk) == f"{BOS}{USER}Q{ASSISTANT}</think>Well.{written}{results}</think>"
    thought = text_of(*talk, tools=TOOLS, **THINK)
    assert thought.endswith(f"{USER}Q{ASSISTANT}<think>R</think>Well.{written}{results}<think>")
    swapped = (*talk[:2], talk[3], talk[2], talk[4])
    assert text_of(*swapped) == text_of(*talk), "results stand in the order of their calls"
    stray = (*talk[:2], turn("tool", "whose?", tool_call_id="z"), *talk[2:])
    assert "2</tool_result>\n\n<tool_result>whose?</tool_result>\n\ngo on" in text_of(*stray)
    assert f"{ASSISTANT}</think>Well." in text_of(*talk, **THINK), "without tools, earlier thoughts are left out"


NAMES = st.text("abcdefg_", min_size=1, max_size=8)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(
    lambda text: f"</{D}parameter>" not in text
)
VALUES = st.one_of(WORDS, st.integers(-999, 999), st.booleans(), st.none(), st.lists(WORDS, max_size=2))


@given(st.lists(st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), min_size=1, max_size=3))
def test_what_is_written_of_a_call_reads_as_that_call(calls: list[tuple[str, dict[str, Any]]]) -> None:
    said = turn("assistant", "", tool_calls=[calling(name, **arguments) for name, arguments in calls])
    text = text_of(turn("user", "Q"), said, add_generation_prompt=False).partition("</think>")[2].removesuffix(EOS)
    parser, read = DsmlSplit({}), list[list[str]]()
    for part in parser.push(text) + parser.flush():
        if isinstance(part, CallStart):
            read.append([part.name, ""])
        elif isinstance(part, Arguments):
            read[-1][1] += part.text
    assert [(name, json.loads(arguments)) for name, arguments in read] == calls


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_keep_their_place() -> None:
    parts = [
        {"type": "image", "image": 1},
        {"type": "text", "text": "between"},
        {"type": "image", "image": 0},
        {"type": "image", "image": 2},
    ]
    rendered = TEMPLATE.render([turn("user", parts)])
    text = f"{BOS}{USER}{IMAGE}\n\nbetween\n\n{IMAGE}\n\n{IMAGE}{ASSISTANT}</think>"
    assert TOKENS.text(rendered.ids) == text and rendered.images == (1, 0, 2)
    assert [rendered.ids[place] for place in rendered.places] == [IMAGE_ID] * 3


def test_pictures_in_tool_results_and_earlier_turns() -> None:
    shot = [{"type": "text", "text": "shot"}, {"type": "image", "image": 1}]
    talk = (turn("user", [{"type": "image", "image": 0}]), turn("assistant", "A", tool_calls=[calling("look")]),
            turn("tool", shot, tool_call_id="c"))  # fmt: skip
    rendered = TEMPLATE.render(talk)
    assert rendered.images == (0, 1)
    assert TOKENS.text(rendered.ids).endswith(f"<tool_result>shot\n\n{IMAGE}</tool_result>{ASSISTANT}</think>")


def test_a_text_model_refuses_pictures() -> None:
    blind = ChatTemplate(SOURCE, TOKENS, None, {})
    with pytest.raises(InvalidRequest, match="text only"):
        blind.render([turn("user", [{"type": "image", "image": 0}])])
    assert TOKENS.text(blind.render([turn("user", "Hi")]).ids) == f"{BOS}{USER}Hi{ASSISTANT}</think>"


CONTROL = st.lists(st.sampled_from([*SPECIAL, *MARKUP, "<", "｜", "DSML", ">", "a", "\n"]), max_size=6).map("".join)


@given(CONTROL, st.sampled_from(["user", "tool", "system"]))
def test_client_text_never_becomes_a_control_token(text: str, role: str) -> None:
    empty = TEMPLATE.render([turn("system", "S"), turn("user", "Q"), turn(role, "", tool_call_id="c")]).ids
    given_ = TEMPLATE.render([turn("system", "S"), turn("user", "Q"), turn(role, text, tool_call_id="c")]).ids
    control = [token for token in given_ if token in TOKENS.added]
    assert control == [token for token in empty if token in TOKENS.added]
    if role == "user":
        assert text in TOKENS.text(given_)


def test_the_last_answer_can_be_continued() -> None:
    rendered = TEMPLATE.render([turn("user", "Q"), turn("assistant", "Once upon")], {}, open_end=True)
    assert TOKENS.text(rendered.ids) == f"{BOS}{USER}Q{ASSISTANT}</think>Once upon" and not rendered.opened


# --- where the template comes from ------------------------------------------------------------------------------------


def test_a_folder_s_own_template_goes_first(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": {"content": EOS}}))
    known = ChatTemplate.load(tmp_path, TOKENS, IMAGE_ID, "deepseek_v4")
    assert TOKENS.text(known.render(OLD).ids) == text_of(*OLD)
    with pytest.raises(CheckpointError, match="no chat template"):
        ChatTemplate.load(tmp_path, TOKENS, IMAGE_ID, "qwen3_5")
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}own:{{ messages[0].content }}")
    own = ChatTemplate.load(tmp_path, TOKENS, IMAGE_ID, "deepseek_v4")
    assert TOKENS.text(own.render([turn("user", "Q")]).ids) == f"{BOS}own:Q" and not own.dsml
