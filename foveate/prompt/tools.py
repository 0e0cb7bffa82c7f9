"""Tool calls in a model's answer, taken out while it arrives.

Owns the two ways in which models of the Qwen family call, both inside `<tool_call> … </tool_call>`: one element a
parameter (`<function=name>`, `<parameter=key>`; Qwen3.5), whose arguments are passed on while they come, and one JSON
object (Hermes), passed on when it is whole. Promises that the outcome does not depend on how the answer was split
into pushes, and that whatever is no call is shown as the text it is: nothing is lost but markup and the white space
that belongs to it. A call cut off by the answer's end keeps its arguments unfinished, so that nobody runs half of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foveate.prompt.reasoning import Words, held_len
from foveate.prompt.typed import is_text, typed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
MAX_NAME = 256
_NAME = re.compile(r"<(?:function|parameter)=([^<>\n]{1,256})>")


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins: its function's name."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of the JSON text of the call's arguments."""

    text: str


Said = Words | CallStart | Arguments


class CallSplit:
    """Takes the calls out of one answer.

    schemas: JSON schema of the parameters by function; a parameter's type decides how its text becomes JSON. With
    `single`, the answer is `done` when its first call is complete.
    """

    def __init__(self, schemas: Mapping[str, Any], single: bool = False) -> None:
        self._schemas, self._single = schemas, single
        self.calls = 0
        self._held = ""  # not yet told
        self._mark = ""  # the opening mark and the white space before it, while it is not sure that a call follows
        self._bare = False  # nothing was said since the last mark, so that white space belongs to it
        self._out: list[Said] = []
        self._schema: Any = None
        self._key, self._keys, self._junk, self._tried = "", 0, False, 0
        self._step: Callable[[], bool] = self._text

    @property
    def done(self) -> bool:
        """Whether the one call that was allowed is complete."""
        return self._single and self.calls > 0 and self._step in (self._close, self._text)

    def push(self, text: str) -> list[Said]:
        """What can be told of the next text."""
        self._held += text
        while not self.done and self._step():
            pass
        return self._told()

    def flush(self) -> list[Said]:
        """What was held back when no more text will come."""
        rest, self._held = self._held, ""
        if self._step in (self._open, self._json):
            self._say(self._mark + rest)
        elif self._step in (self._value, self._raw):
            self._out += [Arguments(_inside(rest) if self._step == self._value else rest)] if rest else []
        elif self._step in (self._text, self._function) and not self.done:
            self._say("" if self._bare and not rest.strip() else rest)
        return self._told()

    def _told(self) -> list[Said]:
        out, self._out = self._out, []
        return out

    def _say(self, text: str) -> None:
        self._out += [Words(text)] if text else []
        self._bare = self._bare and not text

    # Each step takes what it can from `_held` and says whether the next one may go on.

    def _text(self) -> bool:
        """Outside a call: text; what may be the opening mark, or white space before it, waits."""
        before, mark, after = self._held.partition(OPEN)
        if mark:
            shown = before.rstrip()
            self._say(shown)
            self._mark, self._held, self._step = before[len(shown) :] + OPEN, after, self._open
            return True
        shown = self._held[: len(self._held) - held_len(self._held, OPEN)].rstrip()
        self._say(shown)
        self._held = self._held[len(shown) :]
        return False

    def _open(self) -> bool:
        """Behind the opening mark, which of the two ways follows."""
        text = self._held.lstrip()
        if text.startswith("{"):
            self._step, self._tried = self._json, 0
            return True
        if found := _NAME.match(text) if text.startswith(FUNCTION) else None:
            self._begin(found[1].strip())
            self._held, self._step = text[found.end() :], self._function
            return True
        return False if _may_become(text, FUNCTION) else self._give_up()

    def _give_up(self) -> bool:
        """It is no call: the mark is text, and what follows may be anything."""
        self._say(self._mark)
        self._step = self._text
        return True

    def _begin(self, name: str) -> None:
        self._out.append(CallStart(name))
        self._schema, self._keys, self._junk, self._bare = self._schemas.get(name), 0, False, True

    def _json(self) -> bool:
        """A JSON object; it can only be complete where a brace closes."""
        while (end := self._held.find("}", self._tried)) >= 0:
            self._tried = end + 1
            call, broken = _read_call(self._held[: self._tried])
            if call is not None:
                self._out += [CallStart(call[0]), Arguments(call[1])]
                self._bare = True
                self._held, self._step, self.calls = self._held[self._tried :], self._close, self.calls + 1
                return True
            if broken:
                return self._give_up()
        return False

    def _function(self) -> bool:
        """Between parameters; anything else there is text."""
        text = self._held if self._junk else self._held.lstrip()
        if found := _NAME.match(text) if text.startswith(PARAMETER) else None:
            self._open_parameter(found[1].strip())
            self._held = text[found.end() :]
            return True
        for mark, after in ((FUNCTION_END, self._close), (CLOSE, self._text)):
            if text.startswith(mark):
                self._out.append(Arguments("}" if self._keys else "{}"))
                self._held, self._step, self.calls = text[len(mark) :], after, self.calls + 1
                return True
        if not text or _may_become(text, PARAMETER) or any(mark.startswith(text) for mark in (FUNCTION_END, CLOSE)):
            return False
        self._junk = True
        junk_len = text.find("<", 1) if "<" in text[1:] else len(text)
        self._say(text[:junk_len])
        self._held = text[junk_len:]
        return bool(self._held)

    def _open_parameter(self, key: str) -> None:
        self._key, self._junk = key, False
        self._out.append(Arguments(("," if self._keys else "{") + json.dumps(key, ensure_ascii=False) + ":"))
        self._keys += 1
        self._step = self._first if is_text(self._schema, key) else self._raw

    def _first(self) -> bool:
        """The line break that the markup puts before a value."""
        if not self._held:
            return False
        self._held = self._held.removeprefix("\n")
        self._out.append(Arguments('"'))
        self._step = self._value
        return True

    def _value(self) -> bool:
        """Text of a parameter as it comes, but for what may be its end."""
        before, mark, after = self._held.partition(PARAMETER_END)
        if mark:
            self._out.append(Arguments(_inside(before.removesuffix("\n")) + '"'))
            self._held, self._step = after, self._function
            return True
        kept = self._held[: len(self._held) - held_len(self._held, PARAMETER_END)].removesuffix("\n")
        self._out += [Arguments(_inside(kept))] if kept else []
        self._held = self._held[len(kept) :]
        return False

    def _raw(self) -> bool:
        """A parameter of another type is passed on when it is whole."""
        before, mark, after = self._held.partition(PARAMETER_END)
        if not mark:
            return False
        value = typed(before.removeprefix("\n").removesuffix("\n"), self._schema, self._key)
        self._out.append(Arguments(json.dumps(value, ensure_ascii=False)))
        self._held, self._step = after, self._function
        return True

    def _close(self) -> bool:
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


def _inside(text: str) -> str:
    """The inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


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
