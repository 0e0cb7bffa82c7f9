"""Tool calls as DeepSeek V4 writes them, taken out of an answer while it arrives.

Owns the markup of one block, `<｜DSML｜tool_calls>`, with an `invoke` element a call and a `parameter` element an
argument, each of which says whether its text is a string or JSON. Promises what `elements` promises, that whatever
is no call is shown as the text it is, and that a call cut off by the answer's end keeps its arguments unfinished.
"""

from __future__ import annotations

import re

from foveate.prompt.elements import MAX_NAME, Arguments, ElementSplit, Marks

MARK = "｜DSML｜"
OPEN, CLOSE = f"<{MARK}tool_calls>", f"</{MARK}tool_calls>"
INVOKE, INVOKE_END = f"<{MARK}invoke", f"</{MARK}invoke>"
PARAMETER, PARAMETER_END = f"<{MARK}parameter", f"</{MARK}parameter>"
MAX_HEAD = MAX_NAME + 64  # characters of an element's opening, its name included
_INVOKE = re.compile(rf'{INVOKE} name="([^"<>\n]{{1,{MAX_NAME}}})">')
_PARAMETER = re.compile(rf'{PARAMETER} name="([^"<>\n]{{1,{MAX_NAME}}})"(?: string="(true|false)")?>')


class DsmlSplit(ElementSplit):
    """Calls as elements of one block; a parameter's schema decides where it does not say what its text is."""

    marks = Marks(OPEN, CLOSE, INVOKE_END, PARAMETER_END, pad="")

    def _unsure(self, rest: str) -> str:
        if self._mark:
            return self._mark + rest
        return rest if rest.strip() else ""

    def _parameter(self, text: str) -> int | None:
        found = _PARAMETER.match(text)
        if found is None:
            return None
        is_string = self._name_parameter(found[1])
        if found[2] is not None:
            is_string = found[2] == "true"
        self._out += [Arguments('"')] if is_string else []
        self._step = self._value if is_string else self._raw
        return found.end()

    def _may_open_parameter(self, text: str) -> bool:
        return _may_become(text, PARAMETER)

    def _open(self) -> bool:
        """Between calls: another one, or the closing mark. A block without a call is text, its mark included."""
        text = self._held.lstrip()
        if found := _INVOKE.match(text):
            self._mark = ""
            self._begin(found[1], text[found.end() :])
            return True
        if text.startswith(CLOSE) and not self._mark:
            self._held, self._step = text[len(CLOSE) :], self._text
            return True
        if _may_become(text, INVOKE) or (CLOSE.startswith(text) and not self._mark):
            return False
        self._say(self._mark)
        self._mark, self._step = "", self._text
        return True

    _behind = _open


def _may_become(text: str, head: str) -> bool:
    """Whether `text` may be the beginning of an element that opens like `head`."""
    if text.startswith(head):
        return len(text) <= MAX_HEAD and ">" not in text and "\n" not in text
    return head.startswith(text)
