"""Answers of the Responses API that may be gone on from, or asked for again.

Owns a bounded number of them, the oldest forgotten first, in memory only: a restart forgets them all. Promises that
pictures count with their bytes, so that the store is bounded in memory too, and that an item counts once however many
turns of its conversation are stored. Refuses to know what items mean.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from foveate.core.errors import ResponseNotFound

MOST = 1000
MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Turn:
    """A stored response: its document, the items that it answered, and all items of the conversation up to its end.

    Turns of one conversation share the items themselves. Nothing of a turn changes once it is stored.
    """

    document: dict[str, Any]
    items: list[dict[str, Any]]
    conversation: list[dict[str, Any]]


class Stored:
    """The stored responses of one app."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._turns: OrderedDict[str, tuple[Turn, int]] = OrderedDict()  # with the bytes that are no item's
        self._held: dict[int, tuple[int, int]] = {}  # an item's identity -> how many turns hold it, its bytes

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def held_bytes(self) -> int:
        """About the memory of all stored responses."""
        return self._bytes

    def put(self, response_id: str, turn: Turn) -> None:
        """Store a response; what is too large alone is not kept."""
        if response_id in self._turns:
            self._forget(response_id)
        items = _items(turn)
        own = _size((turn.document, turn.items, turn.conversation), items)
        sizes = {key: self._held[key][1] if key in self._held else _size((item,)) for key, item in items.items()}
        if own + sum(sizes.values()) > self._most_bytes:
            return
        self._turns[response_id] = (turn, own)
        self._bytes += own
        for key, size in sizes.items():
            holders = self._held[key][0] if key in self._held else 0
            self._held[key] = (holders + 1, size)
            self._bytes += 0 if holders else size
        while len(self._turns) > self._most or self._bytes > self._most_bytes:
            self._forget(next(iter(self._turns)))

    def get(self, response_id: str, param: str) -> Turn:
        """A stored response. Raises ResponseNotFound."""
        if response_id not in self._turns:
            raise ResponseNotFound("there is no such response: it was not stored, or is not any more", param)
        return self._turns[response_id][0]

    def delete(self, response_id: str) -> None:
        """Forget a response. Raises ResponseNotFound."""
        self.get(response_id, "response_id")
        self._forget(response_id)

    def _forget(self, response_id: str) -> None:
        """Give back what no other turn holds."""
        turn, own = self._turns.pop(response_id)
        self._bytes -= own
        for key in _items(turn):
            holders, size = self._held.pop(key)
            if holders > 1:
                self._held[key] = (holders - 1, size)
            else:
                self._bytes -= size


def _items(turn: Turn) -> dict[int, dict[str, Any]]:
    """All items of a turn by identity, which no other object has for as long as the turn is stored."""
    return {id(item): item for item in (*turn.conversation, *turn.items, *turn.document.get("output", ()))}


def _size(values: Iterable[Any], without: Container[int] = ()) -> int:
    """The bytes of JSON values and of all that is in them, each object once and none of those in `without`."""
    found: dict[int, int] = {}
    left = list(values)
    while left:
        value = left.pop()
        if id(value) in found or id(value) in without:
            continue
        found[id(value)] = sys.getsizeof(value)
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
    return sum(found.values())
