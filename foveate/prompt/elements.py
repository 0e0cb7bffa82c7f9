"""Tool calls written as elements inside a block, taken out of an answer while it arrives: what all markups share.

Owns the text that is held back, the opening mark that may turn out to be text, the elements of parameters and how
their text becomes the JSON of a call's arguments: strings while they come, anything else when it is whole. Promises
that the outcome does not depend on how the answer was split into pushes, and that nothing is lost but markup and the
white space that belongs to it. A markup says what its marks are and what may stand between a block's mark and a call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from foveate.prompt.reasoning import Words, held_len
from foveate.prompt.typed import is_text, typed

MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins: its function's name."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of the JSON text of the call's arguments."""

    text: str


Said = Words | CallStart | Arguments


@dataclass(frozen=True, slots=True)
class Marks:
    """What opens and closes a block, ends a call and ends a parameter; `pad` stands on both sides of a value."""

    open: str
    close: str
    call_end: str
    parameter_end: str
    pad: str


class ElementSplit:
    """Takes the calls out of one answer.

    schemas: JSON schema of the parameters by function; a parameter's type decides how its text becomes JSON. With
    `single`, the answer is `done` when its first call is complete.
    """

    marks: ClassVar[Marks]

    def __init__(self, schemas: Mapping[str, Any], single: bool = False) -> None:
        self._schemas, self._single = schemas, single
        self.calls = 0
        self._held = ""  # not yet told
        self._mark = ""  # the opening mark and the white space before it, while it is not sure that a call follows
        self._bare = False  # nothing was said since the last mark, so that white space belongs to it
        self._aside = ""  # what was found in the open call and is none of it
        self._out: list[Said] = []
        self._schema: Any = None
        self._key, self._keys, self._junk = "", 0, False
        self._step: Callable[[], bool] = self._text

    @property
    def done(self) -> bool:
        """Whether the one call that was allowed is complete."""
        return self._single and self.calls > 0 and self._step in (self._behind, self._text)

    def push(self, text: str) -> list[Said]:
        """What can be told of the next text."""
        self._held += text
        while not self.done and self._step():
            pass
        return self._told()

    def flush(self) -> list[Said]:
        """What was held back when no more text will come."""
        rest, self._held = self._held, ""
        if self._step in (self._value, self._raw):
            self._out += [Arguments(_inside(rest) if self._step == self._value else rest)] if rest else []
        elif self._step == self._call:
            self._aside += "" if self._is_mark(rest if self._junk else rest.lstrip()) else rest
        elif self._step == self._text:
            self._say("" if self.done or (self._bare and not rest.strip()) else rest)
        elif not self.done:
            self._say(self._unsure(rest))
        self._say_aside()
        return self._told()

    # --- what a markup says of itself ---

    def _open(self) -> bool:
        """The step behind the opening mark."""
        raise NotImplementedError

    def _behind(self) -> bool:
        """The step behind a complete call."""
        raise NotImplementedError

    def _unsure(self, rest: str) -> str:
        """What of the mark and of `rest` behind it is text, where the answer ends before it is sure."""
        raise NotImplementedError

    def _parameter(self, text: str) -> int | None:
        """Open the parameter that `text` begins with; the length of its opening, None where none begins."""
        raise NotImplementedError

    def _may_open_parameter(self, text: str) -> bool:
        """Whether `text` may be the beginning of a parameter's opening."""
        raise NotImplementedError

    # --- for these and between them ---

    def _told(self) -> list[Said]:
        out, self._out = self._out, []
        return out

    def _say(self, text: str) -> None:
        self._out += [Words(text)] if text else []
        self._bare = self._bare and not text

    def _say_aside(self) -> None:
        """What stood in a call and is none of it is said behind the call, which so stays in one piece."""
        aside, self._aside = self._aside, ""
        self._say(aside)

    def _is_mark(self, text: str) -> bool:
        """Whether `text`, between parameters, is nothing or may be the beginning of a mark."""
        ends = (self.marks.call_end, self.marks.close)
        return not text or self._may_open_parameter(text) or any(mark.startswith(text) for mark in ends)

    def _begin(self, name: str, rest: str) -> None:
        """A call of this function begins, with `rest` behind its opening."""
        self._out.append(CallStart(name))
        self._schema, self._keys, self._junk, self._bare = self._schemas.get(name), 0, False, True
        self._held, self._step = rest, self._call

    def _name_parameter(self, key: str) -> bool:
        """Write a parameter's key; whether the schema takes its value for a text."""
        self._key, self._junk = key, False
        self._out.append(Arguments(("," if self._keys else "{") + json.dumps(key, ensure_ascii=False) + ":"))
        self._keys += 1
        return is_text(self._schema, key)

    # Each step takes what it can from `_held` and says whether the next one may go on.

    def _text(self) -> bool:
        """Outside a block: text; what may be the opening mark, or white space before it, waits."""
        before, mark, after = self._held.partition(self.marks.open)
        if mark:
            shown = before.rstrip()
            self._say(shown)
            self._mark, self._held, self._step = before[len(shown) :] + mark, after, self._open
            return True
        shown = self._held[: len(self._held) - held_len(self._held, self.marks.open)].rstrip()
        self._say(shown)
        self._held = self._held[len(shown) :]
        return False

    def _call(self) -> bool:
        """Between parameters; anything else there is text, which waits for the call's end."""
        text, ends = self._held if self._junk else self._held.lstrip(), (self.marks.call_end, self.marks.close)
        if (opening := self._parameter(text)) is not None:
            self._held = text[opening:]
            return True
        for mark, after in zip(ends, (self._behind, self._text), strict=True):
            if text.startswith(mark):
                self._out.append(Arguments("}" if self._keys else "{}"))
                self._held, self._step, self.calls = text[len(mark) :], after, self.calls + 1
                self._say_aside()
                return True
        if self._is_mark(text):
            return False
        self._junk = True
        junk_len = text.find("<", 1) if "<" in text[1:] else len(text)
        self._aside += text[:junk_len]
        self._held = text[junk_len:]
        return bool(self._held)

    def _value(self) -> bool:
        """Text of a string as it comes, but for what may be its end."""
        before, mark, after = self._held.partition(self.marks.parameter_end)
        if mark:
            self._out.append(Arguments(_inside(before.removesuffix(self.marks.pad)) + '"'))
            self._held, self._step = after, self._call
            return True
        kept = self._held[: len(self._held) - held_len(self._held, self.marks.parameter_end)]
        kept = kept.removesuffix(self.marks.pad)
        self._out += [Arguments(_inside(kept))] if kept else []
        self._held = self._held[len(kept) :]
        return False

    def _raw(self) -> bool:
        """A parameter of another type is passed on when it is whole."""
        before, mark, after = self._held.partition(self.marks.parameter_end)
        if not mark:
            return False
        value = typed(before.removeprefix(self.marks.pad).removesuffix(self.marks.pad), self._schema, self._key)
        self._out.append(Arguments(json.dumps(value, ensure_ascii=False)))
        self._held, self._step = after, self._call
        return True


def _inside(text: str) -> str:
    """The inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
