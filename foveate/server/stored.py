"""Answers of the Responses API that may be gone on from, or asked for again.

Owns a bounded number of them, the oldest forgotten first, in memory only: a restart forgets them all. Promises that
pictures count with their bytes, so that the store is bounded in memory too. Refuses to know what items mean.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from foveate.core.errors import ResponseNotFound

MOST = 1000
MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Turn:
    """A stored response: its document, the items that it answered, and all items of the conversation up to its end."""

    document: dict[str, Any]
    items: list[dict[str, Any]]
    conversation: list[dict[str, Any]]


class Stored:
    """The stored responses of one app."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._turns: OrderedDict[str, tuple[Turn, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def put(self, response_id: str, turn: Turn) -> None:
        """Store a response; what is too large alone is not kept."""
        size = _size(turn.conversation) + _size(turn.document)
        self._turns[response_id] = (turn, size)
        self._bytes += size
        while len(self._turns) > self._most or self._bytes > self._most_bytes:
            self._bytes -= self._turns.popitem(last=False)[1][1]

    def get(self, response_id: str, param: str) -> Turn:
        """A stored response. Raises ResponseNotFound."""
        if response_id not in self._turns:
            raise ResponseNotFound("there is no such response: it was not stored, or is not any more", param)
        return self._turns[response_id][0]

    def delete(self, response_id: str) -> None:
        """Forget a response. Raises ResponseNotFound."""
        self.get(response_id, "response_id")
        self._bytes -= self._turns.pop(response_id)[1]


def _size(value: Any) -> int:
    """About the bytes of a JSON value: those of its texts, and a little for each value."""
    if isinstance(value, str):
        return 50 + len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 50 + sum(map(_size, inner))
