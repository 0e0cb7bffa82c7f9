"""What an answer consists of, as its text arrives: thoughts, words and tool calls.

Owns the order in which the markup of one answer is read: thoughts first, calls in what is said after them, and which
markup it is. Promises what `ReasoningSplit`, `CallSplit` and `DsmlSplit` promise. Refuses to know tokens and stop
strings: those come before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foveate.prompt.dsml import MARK, DsmlSplit
from foveate.prompt.elements import Arguments, CallStart
from foveate.prompt.reasoning import CLOSE, OPEN, ReasoningSplit, Thought, Words
from foveate.prompt.tools import CLOSE as CALL_CLOSE
from foveate.prompt.tools import OPEN as CALL_OPEN
from foveate.prompt.tools import CallSplit

MARKS = (OPEN, CLOSE, CALL_OPEN, CALL_CLOSE, MARK)
Said = Thought | Words | CallStart | Arguments


@dataclass(frozen=True, slots=True)
class Markup:
    """How to read an answer. By default it is all words.

    opened: None where the model has no thoughts, else whether the prompt ended inside one. schemas: the parameters of
    the functions that may be called; None if none may. single: the answer is over with its first call. dsml: calls are
    written as DeepSeek writes them, else as Qwen does.
    """

    opened: bool | None = None
    schemas: Mapping[str, Any] | None = None
    single: bool = False
    dsml: bool = False


class MarkupStream:
    """Reads one answer."""

    def __init__(self, markup: Markup) -> None:
        self._thoughts = None if markup.opened is None else ReasoningSplit(markup.opened)
        self._calls = None if markup.schemas is None else _splitter(markup, markup.schemas)

    @property
    def thinking(self) -> bool:
        """Whether what comes next is thought."""
        return self._thoughts is not None and self._thoughts.thinking

    @property
    def calls(self) -> int:
        """How many calls are complete."""
        return 0 if self._calls is None else self._calls.calls

    @property
    def done(self) -> bool:
        """Whether nothing more may follow."""
        return self._calls is not None and self._calls.done

    def push(self, text: str) -> list[Said]:
        """What can be told of the next text."""
        parts = [Words(text)] if self._thoughts is None else self._thoughts.push(text)
        return [said for part in parts for said in self._read(part)]

    def flush(self) -> list[Said]:
        """What was held back when no more text will come."""
        parts = [] if self._thoughts is None else self._thoughts.flush()
        said = [said for part in parts for said in self._read(part)]
        return said + ([] if self._calls is None else self._calls.flush())

    def _read(self, part: Thought | Words) -> list[Said]:
        if isinstance(part, Words) and self._calls is not None:
            return [*self._calls.push(part.text)]
        return [part] if part.text else []


def _splitter(markup: Markup, schemas: Mapping[str, Any]) -> CallSplit | DsmlSplit:
    return DsmlSplit(schemas, markup.single) if markup.dsml else CallSplit(schemas, markup.single)
