"""Scoring and the evaluation loop, with models that are functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from foveate.core.errors import ConfigError, RequestFailed
from foveate.evals import charts as charts_module
from foveate.evals.charts import SETS, Plan, data_url, http_ask, load, print_report, run
from foveate.evals.score import description_is_right, is_right, number

DATA = {
    "title": "Sales 2020",
    "labels": ["Oslo", "Oslo East", "2010"],
    "series": ["value"],
    "values": [["12", "30", "7"]],
}


@pytest.mark.parametrize(
    ("answer", "wanted", "numeric", "right"),
    [
        ("Paris", "paris", False, True),
        (' "Paris". ', "Paris", False, True),
        ("Paris and Rome", "Paris", False, False),
        ("1,234", "1234", True, True),
        ("$1250", "$1200", True, True),
        ("1261", "1200", True, False),
        ("about 12", "12", True, False),
        ("12%", "12", True, True),
        ("2", "3", True, False),
        ('{"a":1, "b": 2}', '{"a": 1, "b": 2}', False, True),
        ('{"a": 1}', '{"a": 2}', False, False),
        ("{a", '{"a": 2}', False, False),
    ],
)
def test_right_and_wrong(answer: str, wanted: str, numeric: bool, right: bool) -> None:
    assert is_right(answer, wanted, numeric) is right


def test_numbers() -> None:
    assert [number(text) for text in ("$1,200.5", "-3", "7 %", "seven", "")] == [1200.5, -3, 7, None, None]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('This bar chart is titled "Sales 2020". It shows 3 categories: Oslo 12, Oslo East 30, 2010 7.', True),
        ("Oslo 12, Oslo East 12, 2010 7", False),
        ("The highest is Oslo East with 30.", True),
        ("The highest is Oslo with 30.", False),
        ("It shows 4 categories.", False),
        ("A nice chart.", False),
        ("Values reach 30.", True),
    ],
)
def test_descriptions(text: str, right: bool) -> None:
    assert description_is_right(text, DATA) is right


async def test_a_perfect_and_a_silent_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = {(question.question, question.images): question.answer for question in load("charts")}

    async def perfect(question: str, images: Sequence[Path]) -> str:
        return known[(question, tuple(images))]

    async def silent(question: str, images: Sequence[Path]) -> str:
        raise ValueError("no model")

    first = await run(Plan("charts", out=tmp_path / "one.jsonl"), perfect)
    assert (first.right, len(first.outcomes), first.identical) == (220, 220, None)
    second = await run(Plan("charts", limit=20, against=tmp_path / "one.jsonl"), silent)
    assert (second.right, second.identical, len(second.unanswered)) == (0, 0, 20)
    with pytest.raises(RequestFailed, match=r"no question was answered.*no model"):
        print_report(second)
    again = await run(Plan("charts", limit=20, against=tmp_path / "one.jsonl"), perfect)
    print_report(again)
    record = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert (record["questions"], record["right"], record["identical"]) == (20, 20, 20)


async def test_what_a_plan_lacks_is_told_before_the_first_question(tmp_path: Path) -> None:
    async def never(question: str, images: Sequence[Path]) -> str:
        raise AssertionError("asked")

    (tmp_path / "other.jsonl").write_text("[1]\n")
    for plan in (
        Plan("charts", concurrency=0),
        Plan("charts", limit=0),
        Plan("charts", limit=-3),
        Plan("charts", out=tmp_path / "none" / "x.jsonl"),
        Plan("charts", against=tmp_path / "none.jsonl"),
        Plan("charts", against=tmp_path / "other.jsonl"),
    ):
        with pytest.raises(ConfigError):
            await run(plan, never)


@pytest.mark.parametrize("name", sorted(SETS))
def test_every_set_loads_with_its_pictures(name: str) -> None:
    questions = load(name)
    assert questions and all(image.exists() for question in questions for image in question.images)
    assert all(question.judge(question.answer).right for question in questions)


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(KeyError):
        load("photos")


async def test_the_http_client_sends_pictures_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def serve(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), json.loads(request.content)))
        return httpx.Response(200, json={"choices": [{"message": {"content": "12"}}]})

    client = httpx.AsyncClient
    monkeypatch.setattr(
        charts_module.httpx, "AsyncClient", lambda **kw: client(**kw, transport=httpx.MockTransport(serve))
    )
    picture = load("sanity")[0].images[0]
    assert await http_ask("http://127.0.0.1:8000/v1/", "demo")("How much?", [picture]) == "12"
    url, body = seen[0]
    assert url == "http://127.0.0.1:8000/v1/chat/completions"
    assert body["temperature"] == 0
    assert [part["type"] for part in body["messages"][0]["content"]] == ["image_url", "text"]
    assert body["messages"][0]["content"][0]["image_url"]["url"] == data_url(picture)
