"""Tool calls in a model's answer, taken out while it arrives.

Owns the two ways in which models of the Qwen family call, both inside `<tool_call> … </tool_call>`: one element a
parameter (`<function=name>`, `<parameter=key>`; Qwen3.5), whose arguments are passed on while they come, and one JSON
object (Hermes), passed on when it is whole. Promises what `elements` promises, and that whatever is no call is shown
as the text it is. A call cut off by the answer's end keeps its arguments unfinished, so that nobody runs half of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from foveate.prompt.elements import MAX_NAME, Arguments, CallStart, ElementSplit, Marks

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_NAME = re.compile(r"<(?:function|parameter)=([^<>\n]{1,256})>")


class CallSplit(ElementSplit):
    """The two ways in one: what follows the opening mark decides."""

    marks = Marks(OPEN, CLOSE, FUNCTION_END, PARAMETER_END, pad="\n")

    def __init__(self, schemas: Mapping[str, Any], single: bool = False) -> None:
        super().__init__(schemas, single)
        self._tried = 0  # characters of a JSON object that are known not to be the whole of it

    def _unsure(self, rest: str) -> str:
        return self._mark + rest if self._step in (self._open, self._json) else ""

    def _parameter(self, text: str) -> int | None:
        found = _NAME.match(text) if text.startswith(PARAMETER) else None
        if found is None:
            return None
        self._step = self._first if self._name_parameter(found[1].strip()) else self._raw
        return found.end()

    def _may_open_parameter(self, text: str) -> bool:
        return _may_become(text, PARAMETER)

    def _open(self) -> bool:
        """Behind the opening mark, which of the two ways follows."""
        text = self._held.lstrip()
        if text.startswith("{"):
            self._step, self._tried = self._json, 0
            return True
        if found := _NAME.match(text) if text.startswith(FUNCTION) else None:
            self._begin(found[1].strip(), text[found.end() :])
            return True
        return False if _may_become(text, FUNCTION) else self._give_up()

    def _give_up(self) -> bool:
        """It is no call: the mark is text, and what follows may be anything."""
        self._say(self._mark)
        self._step = self._text
        return True

    def _json(self) -> bool:
        """A JSON object; it can only be complete where a brace closes."""
        while (end := self._held.find("}", self._tried)) >= 0:
            self._tried = end + 1
            call, broken = _read_call(self._held[: self._tried])
            if call is not None:
                self._out += [CallStart(call[0]), Arguments(call[1])]
                self._bare = True
                self._held, self._step, self.calls = self._held[self._tried :], self._behind, self.calls + 1
                return True
            if broken:
                return self._give_up()
        return False

    def _first(self) -> bool:
        """The line break that the markup puts before a value."""
        if not self._held:
            return False
        self._held = self._held.removeprefix("\n")
        self._out.append(Arguments('"'))
        self._step = self._value
        return True

    def _behind(self) -> bool:
        """Behind a complete call: the closing mark, or without it another function."""
        text = self._held.lstrip()
        if text.startswith(CLOSE):
            self._held, self._step = text[len(CLOSE) :], self._text
        elif text.startswith(FUNCTION):
            self._mark, self._step = "", self._open
        elif CLOSE.startswith(text) or FUNCTION.startswith(text):
            return False
        else:
            self._step = self._text
        return True


def _may_become(text: str, mark: str) -> bool:
    """Whether `text` may be the beginning of `mark` with a name and '>'."""
    if text.startswith(mark):
        rest = text[len(mark) :]
        return len(rest) <= MAX_NAME and not any(c in "<>\n" for c in rest)
    return mark.startswith(text)


def _read_call(text: str) -> tuple[tuple[str, str] | None, bool]:
    """(name, arguments as JSON) of a complete object, and whether it can never become one."""
    try:
        value = json.loads(text, strict=False, parse_constant=_no_constant)
    except json.JSONDecodeError as fault:
        # An object that is only cut off ends where the text does, or inside a string.
        return None, not (fault.msg.startswith("Unterminated string") or fault.pos >= len(text))
    except (ValueError, RecursionError):
        return None, True
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None, True
    return (name, json.dumps(arguments, ensure_ascii=False)), False


def _no_constant(word: str) -> Any:
    raise ValueError(word)
