"""The store of responses: bounded by what it really holds, where turns of one conversation share their items."""

from __future__ import annotations

import gc
import json
import random
import sys
from typing import Any

import pytest

from foveate.core.errors import ResponseNotFound
from foveate.server.stored import MOST_BYTES, Stored, Turn
from tests.server.live import PIXEL, Live


def picture(name: str, size: int) -> dict[str, Any]:
    url = name + "x" * size
    return {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}


def after(before: Turn | None, name: str, *given: dict[str, Any]) -> Turn:
    """The next turn of a conversation, put together as the server does it."""
    items = [*given] or [{"type": "message", "role": "user", "content": f"go on, {name}"}]
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": name * 10}]}]
    document = {"id": name, "output": output, "instructions": None, "tools": [{"name": name + "tool"}]}
    return Turn(document, items, [*(before.conversation if before else ()), *items, *output])


def distinct(stored: Stored) -> int:
    """The bytes of all objects that the stored turns hold, each object once, as the interpreter sees them."""
    left: list[Any] = [turn for turn, _ in stored._turns.values()]
    found: dict[int, int] = {}
    while left:
        value = left.pop()
        if id(value) in found or isinstance(value, type):
            continue
        found[id(value)] = 0 if isinstance(value, Turn) else sys.getsizeof(value)
        left += gc.get_referents(value)
    return sum(found.values())


def test_the_store_is_bounded_in_number_and_bytes() -> None:
    stored = Stored(3, 10_000)
    turn = Turn({"a": "x" * 1000}, [], [{"b": "y" * 1000}])
    for number in range(5):
        stored.put(f"r{number}", turn)
    assert len(stored) == 3 and stored.get("r2", "id") is turn
    stored.put("large", Turn({}, [], [{"b": "y" * 9000}]))
    assert len(stored) == 1 and json.dumps(stored.get("large", "id").conversation)
    stored.put("huge", Turn({}, [], [{"b": "y" * 20_000}]))
    assert len(stored) == 1, "what is too large alone pushes nothing out"


def test_what_turns_share_counts_once() -> None:
    stored, size = Stored(), 2**20
    stored.put("first", after(None, "first"))
    turn = after(None, "0", picture("p", size))
    stored.put("0", turn)
    for number in range(1, 400):
        turn = after(turn, str(number))
        stored.put(str(number), turn)
    assert size < stored.held_bytes < 4 * size + 400 * 400 * 8 * 2
    assert stored.get("first", "id") and len(stored) == 401


def test_the_count_is_what_is_held_and_all_of_it_is_given_back() -> None:
    draw, stored, turns = random.Random(1), Stored(20, 200_000), dict[str, Turn]()
    for number in range(400):
        before = draw.choice([None, *turns.values()])
        given = [picture(str(number), draw.randrange(20_000))] if draw.random() < 0.3 else []
        name = f"r{number}"
        turn = after(before, name, *given)
        stored.put(name, turn)
        turns = {each: kept for each, (kept, _) in stored._turns.items()}
        if turns and draw.random() < 0.2:
            stored.delete(draw.choice([*turns]))
        held = distinct(stored)
        # No object is left out; only names and words that Python keeps one of for all are counted by each item.
        assert held <= stored.held_bytes <= min(200_000, held + 2_500 * len(stored._held))
    for name in [*stored._turns]:
        stored.delete(name)
    assert stored.held_bytes == 0 and stored._held == {}


def test_deleting_one_turn_keeps_what_another_holds() -> None:
    stored = Stored()
    first = after(None, "a", picture("p", 100_000))
    second = after(first, "b")
    for name, turn in (("a", first), ("b", second), ("b", second)):
        stored.put(name, turn)
    stored.delete("a")
    assert 100_000 < stored.held_bytes < 110_000
    stored.delete("b")
    assert stored.held_bytes == 0
    with pytest.raises(ResponseNotFound):
        stored.delete("b")


def test_a_long_conversation_about_a_picture_leaves_other_responses(live: Live) -> None:
    def ask(**fields: Any) -> str:
        answer = live.http.post("/v1/responses", json=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    other, size = ask(input="hello"), 3 * 2**20
    large = {"type": "input_image", "image_url": PIXEL.rstrip("=") + "A" * size}
    last = ask(input=[{"role": "user", "content": [large]}])
    for _ in range(MOST_BYTES // size + 1):
        last = ask(input="more", previous_response_id=last)
    assert live.http.get(f"/v1/responses/{other}").status_code == 200
