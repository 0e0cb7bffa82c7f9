"""Tool calls as DeepSeek V4 writes them, taken out of an answer while it arrives.

Owns the markup of one block, `<｜DSML｜tool_calls>`, with an `invoke` element a call and a `parameter` element an
argument, each of which says whether its text is a string or JSON. Promises what `tools.CallSplit` promises: the outcome
does not depend on how the answer was split into pushes, whatever is no call is shown as the text it is, strings are
passed on while they come, and a call cut off by the answer's end keeps its arguments unfinished.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from foveate.prompt.reasoning import Words, held_len
from foveate.prompt.tools import MAX_NAME, Arguments, CallStart, Said
from foveate.prompt.typed import is_text, typed

MARK = "｜DSML｜"
OPEN, CLOSE = f"<{MARK}tool_calls>", f"</{MARK}tool_calls>"
INVOKE, INVOKE_END = f"<{MARK}invoke", f"</{MARK}invoke>"
PARAMETER, PARAMETER_END = f"<{MARK}parameter", f"</{MARK}parameter>"
MAX_HEAD = MAX_NAME + 64  # characters of an element's opening, its name included
_INVOKE = re.compile(rf'{INVOKE} name="([^"<>\n]{{1,{MAX_NAME}}})">')
_PARAMETER = re.compile(rf'{PARAMETER} name="([^"<>\n]{{1,{MAX_NAME}}})"(?: string="(true|false)")?>')


class DsmlSplit:
    """Takes the calls out of one answer.

    schemas: JSON schema of the parameters by function; it decides where a parameter does not say what its text is. With
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
        self._key, self._keys, self._junk = "", 0, False
        self._step: Callable[[], bool] = self._text

    @property
    def done(self) -> bool:
        """Whether the one call that was allowed is complete."""
        return self._single and self.calls > 0 and self._step in (self._block, self._text)

    def push(self, text: str) -> list[Said]:
        """What can be told of the next text."""
        self._held += text
        while not self.done and self._step():
            pass
        return self._told()

    def flush(self) -> list[Said]:
        """What was held back when no more text will come."""
        rest, self._held = self._held, ""
        if self._step == self._block and not self.done:
            self._say(self._mark + rest if self._mark else rest.strip() and rest)
        elif self._step in (self._value, self._raw):
            self._out += [Arguments(_inside(rest) if self._step == self._value else rest)] if rest else []
        elif self._step in (self._text, self._invoke) and not self.done:
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
        """Outside a block: text; what may be the opening mark, or white space before it, waits."""
        before, mark, after = self._held.partition(OPEN)
        if mark:
            shown = before.rstrip()
            self._say(shown)
            self._mark, self._held, self._step = before[len(shown) :] + OPEN, after, self._block
            return True
        shown = self._held[: len(self._held) - held_len(self._held, OPEN)].rstrip()
        self._say(shown)
        self._held = self._held[len(shown) :]
        return False

    def _block(self) -> bool:
        """Between calls: another one, or the closing mark. A block without a call is text, its mark included."""
        text = self._held.lstrip()
        if found := _INVOKE.match(text):
            self._mark = ""
            self._out.append(CallStart(found[1]))
            self._schema, self._keys, self._junk, self._bare = self._schemas.get(found[1]), 0, False, True
            self._held, self._step = text[found.end() :], self._invoke
            return True
        if text.startswith(CLOSE) and not self._mark:
            self._held, self._step = text[len(CLOSE) :], self._text
            return True
        if _may_become(text, INVOKE) or (CLOSE.startswith(text) and not self._mark):
            return False
        self._say(self._mark)
        self._mark, self._step = "", self._text
        return True

    def _invoke(self) -> bool:
        """Between parameters; anything else there is text."""
        text = self._held if self._junk else self._held.lstrip()
        if found := _PARAMETER.match(text):
            self._open_parameter(found[1], found[2])
            self._held = text[found.end() :]
            return True
        for mark, after in ((INVOKE_END, self._block), (CLOSE, self._text)):
            if text.startswith(mark):
                self._out.append(Arguments("}" if self._keys else "{}"))
                self._held, self._step, self.calls = text[len(mark) :], after, self.calls + 1
                return True
        if not text or _may_become(text, PARAMETER) or any(mark.startswith(text) for mark in (INVOKE_END, CLOSE)):
            return False
        self._junk = True
        junk_len = text.find("<", 1) if "<" in text[1:] else len(text)
        self._say(text[:junk_len])
        self._held = text[junk_len:]
        return bool(self._held)

    def _open_parameter(self, key: str, string: str | None) -> None:
        self._key, self._junk = key, False
        self._out.append(Arguments(("," if self._keys else "{") + json.dumps(key, ensure_ascii=False) + ":"))
        self._keys += 1
        if string == "true" or (string is None and is_text(self._schema, key)):
            self._out.append(Arguments('"'))
            self._step = self._value
        else:
            self._step = self._raw

    def _value(self) -> bool:
        """Text of a string as it comes, but for what may be its end."""
        before, mark, after = self._held.partition(PARAMETER_END)
        if mark:
            self._out.append(Arguments(_inside(before) + '"'))
            self._held, self._step = after, self._invoke
            return True
        kept = self._held[: len(self._held) - held_len(self._held, PARAMETER_END)]
        self._out += [Arguments(_inside(kept))] if kept else []
        self._held = self._held[len(kept) :]
        return False

    def _raw(self) -> bool:
        """A parameter of another type is passed on when it is whole."""
        before, mark, after = self._held.partition(PARAMETER_END)
        if not mark:
            return False
        self._out.append(Arguments(json.dumps(typed(before, self._schema, self._key), ensure_ascii=False)))
        self._held, self._step = after, self._invoke
        return True


def _inside(text: str) -> str:
    """The inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _may_become(text: str, head: str) -> bool:
    """Whether `text` may be the beginning of an element that opens like `head`."""
    if text.startswith(head):
        return len(text) <= MAX_HEAD and ">" not in text and "\n" not in text
    return head.startswith(text)
