"""The grammar of an answer: what its form, its tools and the model's own markup allow, in the engine's language.

Owns the translation of a wished form (a JSON schema, a regular expression, a choice, a grammar) and of tool calls that
must come into one grammar text, and the refusal of what cannot be one. A thought that the prompt has opened stays free:
the grammar begins behind it. Promises that what passes here is accepted by the engine. Refuses to know tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher, grammar_from

from foveate.core.chat import Form, Tools
from foveate.core.errors import InvalidRequest
from foveate.prompt import dsml
from foveate.prompt.typed import is_text

MAX_BYTES = 256 * 1024
# Room for a plain or an indented layout and no more: a weak model would otherwise fill an answer with white space.
_LAYOUT = {"whitespace_pattern": r"( |\n[ \t]{0,16})?"}
_THOUGHT = 'thought[suffix="</think>"]: /(.|\\n)*/\n'
# Either words alone, or words up to the mark of a first call: a lexer takes the longest, so one rule cannot be both.
_AUTO = 'WORDS: /(.|\\n)*/ & ~/(.|\\n)*MARK(.|\\n)*/\nfirst[suffix="MARK"]: /(.|\\n)*/\n'


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around: whether the prompt has opened a thought, and how calls are written.

    elements: an element a parameter, else one JSON object (both Qwen's). dsml: in DeepSeek's markup, whatever
    `elements` says.
    """

    opened: bool = False
    elements: bool = False
    dsml: bool = False

    @property
    def mark(self) -> str:
        """What opens the first call."""
        return dsml.OPEN if self.dsml else "<tool_call>"


def grammar_of(form: Form | None, tools: Tools | None, frame: Frame) -> str:
    """The grammar of an answer; '' where anything may come. Raises InvalidRequest for what is no grammar."""
    form = None if tools is not None and tools.choice == "required" else form
    calls = ""
    if tools is not None and _binds(tools, form):
        calls = _block(tools) if frame.dsml else _calls(tools, frame.elements)
    if not calls and form is None:
        return ""
    bodies = [_first(tools, frame) if _is_free(tools, form) else "calls"] if calls else []
    bodies += ["WORDS"] if _is_free(tools, form) else []
    bodies += ["@form"] if form is not None else []
    start = f"start: {'thought gap ' if frame.opened else ''}({' | '.join(bodies)})\n"
    auto = _AUTO.replace("MARK", frame.mark) if "WORDS" in bodies else ""
    rules = [start, "gap: /\\n*/\n", _THOUGHT if frame.opened else "", auto, calls]
    parts = [{"lark_grammar": "".join(rules)}, *([_form(form) | {"name": "form"}] if form is not None else [])]
    grammar = json.dumps({"grammars": parts})
    _check(grammar, "tools" if form is None else form.param)
    return grammar


def _binds(tools: Tools, form: Form | None) -> bool:
    """Whether calls need a grammar: where one must come, where their arguments are strict, or beside a form."""
    return tools.choice == "required" or form is not None or any(f.get("strict") for f in tools.functions)


def _is_free(tools: Tools | None, form: Form | None) -> bool:
    """Whether the answer may be words, or have them before its calls."""
    return tools is not None and tools.choice == "auto" and form is None


def _first(tools: Tools | None, frame: Frame) -> str:
    return "first inner (gap call)*" if tools is not None and tools.parallel and not frame.dsml else "first inner"


def _form(form: Form) -> dict[str, Any]:
    """The form as one of the engine's grammars."""
    value = form.value
    if form.kind in ("json", "schema"):
        schema = {"type": "object"} if form.kind == "json" else value
        return {"json_schema": schema | {"x-guidance": _LAYOUT} if isinstance(schema, Mapping) else schema}
    if form.kind == "choice":
        return {"lark_grammar": "start: " + " | ".join(_literal(text) for text in value)}
    if form.kind == "regex":
        return {"lark_grammar": json.loads(grammar_from("regex", value))["grammars"][0]["lark_grammar"]}
    try:
        return {"lark_grammar": grammar_from("grammar", value)}
    except ValueError as fault:
        raise InvalidRequest(f"the grammar is not valid: {_reason(str(fault))}", form.param) from None


def _calls(tools: Tools, elements: bool) -> str:
    """Rules for one call, or several where that is allowed."""
    functions = [f for f in tools.functions if tools.only in (None, f["name"])]
    rules = [_element(f, i) if elements and _is_plain(f) else _object(f, i) for i, f in enumerate(functions)]
    more = " (gap call)*" if tools.parallel and tools.only is None else ""
    names = " | ".join(f"function_{i}" for i in range(len(functions)))
    inner = f'inner: "\\n" ({names}) "\\n</tool_call>"\n'
    return f'calls: call{more}\ncall: "<tool_call>" inner\n{inner}' + "".join(rules)


def _block(tools: Tools) -> str:
    """Rules for DeepSeek's one block of calls."""
    functions = [f for f in tools.functions if tools.only in (None, f["name"])]
    names = " | ".join(f"function_{i}" for i in range(len(functions)))
    more = "+" if tools.parallel and tools.only is None else ""
    inner = f'inner: "\\n" call{more} {_literal(dsml.CLOSE)}\ncall: ({names}) "\\n"\n'
    # The model sets an empty line before its calls, and here it may stand at the very beginning.
    start = f'calls: ("\\n\\n")? {_literal(dsml.OPEN)} inner\n'
    return start + inner + "".join(_invoke(function, i) for i, function in enumerate(functions))


def _invoke(function: Mapping[str, Any], number: int) -> str:
    """A call in DeepSeek's markup; without a list of properties, any parameters may come."""
    schema = function.get("parameters") or {}
    head, end = _literal(f'{dsml.INVOKE} name="{function["name"]}">\n'), _literal(dsml.INVOKE_END)
    if not _is_plain(function):
        return f"function_{number}: {head} any_{number}* {end}\n{_any(f'any_{number}')}"
    required = set(schema.get("required") or ())
    rules, body = "", ""
    for place, key in enumerate(schema.get("properties", {})):
        name = f"parameter_{number}_{place}"
        body += f" {name}" if key in required else f" {name}?"
        mark = f'{dsml.PARAMETER} name="{key}" string="{str(is_text(schema, key)).lower()}">'
        rules += _parameter(name, key, schema, (_literal(mark), _literal(dsml.PARAMETER_END + "\n")))
    # Without parameters, the markup leaves an empty line.
    return f'function_{number}: {head}{body} "\\n"? {end}\n{rules}'


def _any(name: str) -> str:
    """A parameter of any name and value in DeepSeek's markup."""
    head, middle, end = (_literal(text) for text in (f'{dsml.PARAMETER} name="', '" string="', dsml.PARAMETER_END))
    value = f'("true\\">" {name}_text | "false\\">" %json {{}} {end})'
    return f'{name}: {head} /[^"<>\\n]{{1,64}}/ {middle} {value} "\\n"\n{_text(name, end)}'


def _is_plain(function: Mapping[str, Any]) -> bool:
    """Whether the parameters are a list of properties and nothing more, so that each can be an element."""
    schema = function.get("parameters") or {}
    return not {"anyOf", "oneOf", "allOf", "$ref"} & schema.keys() and isinstance(schema.get("properties", {}), Mapping)


def _object(function: Mapping[str, Any], number: int) -> str:
    """A call as one JSON object (Hermes)."""
    schema = function.get("parameters") or {"type": "object"}
    head = _literal('{"name": ' + json.dumps(function["name"], ensure_ascii=False) + ', "arguments": ')
    return f'function_{number}: {head} %json {json.dumps(schema | {"x-guidance": _LAYOUT})} "}}"\n'


def _element(function: Mapping[str, Any], number: int) -> str:
    """A call with an element for each parameter, in the order of the schema (Qwen3.5)."""
    schema = function.get("parameters") or {}
    required = set(schema.get("required") or ())
    rules, body = "", ""
    for place, key in enumerate(schema.get("properties", {})):
        name = f"parameter_{number}_{place}"
        body += f" {name}" if key in required else f" {name}?"
        marks = _literal(f"<parameter={key}>\n"), _literal("\n</parameter>\n")
        rules += _parameter(name, key, schema, marks)
    head = _literal(f"<function={function['name']}>\n")
    return f'function_{number}: {head}{body} "</function>"\n{rules}'


def _parameter(name: str, key: str, schema: Mapping[str, Any], marks: tuple[str, str]) -> str:
    """A parameter between its two marks, which are literals."""
    own, (head, end) = schema["properties"][key], marks
    if not is_text(schema, key):
        definitions = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
        whole = (own | definitions if isinstance(own, Mapping) else {}) | {"x-guidance": _LAYOUT}
        return f"{name}: {head} %json {json.dumps(whole)} {end}\n"
    if isinstance(own.get("enum"), list):
        return f"{name}: {head} ({' | '.join(_literal(str(text)) for text in own['enum'])}) {end}\n"
    return f"{name}: {head} {name}_text\n{_text(name, end)}"


def _text(name: str, end: str) -> str:
    """Any text up to and with its end mark."""
    return f"{name}_text[suffix={end}]: /(.|\\n)*/\n"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _check(grammar: str, param: str) -> None:
    if len(grammar) > MAX_BYTES:
        raise InvalidRequest(f"the grammar is larger than {MAX_BYTES // 1024} KiB", param)
    if fault := LLMatcher.validate_grammar(grammar, None):
        raise InvalidRequest(f"no grammar can be made of this: {_reason(fault)}", param)


def _reason(text: str) -> str:
    """The engine's words, in one short line."""
    return " ".join(text.split())[:300]
