"""`foveate bench`: each measurement against a scripted target with known times, and end to end on a tiny model."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from foveate.bench import itl, rates, record, start, ttft
from foveate.bench.arms import Subject, arms_of, floor_of, placements
from foveate.bench.asking import Hear, Offline, Question, Server, Shot, Target
from foveate.bench.charts import painter
from foveate.core.config import Config, DeviceFacts, ModelFacts, Settings, resolve
from foveate.core.errors import ConfigError, RequestFailed
from foveate.core.values import Timings
from foveate.core.work import Peak, Work
from foveate.server.app import create_app
from foveate.server.run import GracefulServer, listen, url_of
from tests.support.engines import serving
from tests.support.harness import tiny

QUIET = Console(quiet=True)
FLOOR = (Work(1e9, 1e6, 1e6, 0, 0, 0, 1e3, 0, 1e6), Peak(1e12, 1e15))


def shot(*stamps: float, tokens: int = 1, text: str = "a", **timings: float) -> Shot:
    told = asdict(Timings(**timings)) if timings else {}
    return Shot(10.0, [10.0 + at for at in stamps], 10.0 + stamps[-1], tokens, 100, text, told)


def resolved(settings: Settings, gpus: int) -> Config:
    return resolve(settings, ModelFacts("m", 4096, True, 64), DeviceFacts(8, gpus, 100_000 if gpus else None))


@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [
        (0, {"streamed": "cpu", "sequential": "cpu", "same_device": "cpu"}),
        (1, {"second_stream": "cuda:0", "same_device": "cuda:0"}),
        (2, {"streamed": "cuda:1", "sequential": "cuda:1", "second_stream": "cuda:0", "same_device": "cuda:0"}),
    ],
)
def test_every_machine_has_its_arms(gpus: int, wanted: dict[str, str]) -> None:
    arms = placements(Settings(), resolved(Settings(), gpus))
    got = {arm: resolved(settings, gpus) for arm, settings in arms.items()}
    assert {arm: config.encoder_device for arm, config in got.items()} == wanted
    assert got["same_device"].encoder_worker == "inline"
    for arm, config in got.items():
        assert config.encoder_apart == (arm != "same_device")
        assert config.settings.encoder_stream == (arm != "sequential")
    if "streamed" in got:
        assert replace(got["streamed"], settings=Settings()) == replace(got["sequential"], settings=Settings())


def test_arms_that_are_not_there_and_unknown_words_are_refused() -> None:
    subject = Subject(str(tiny("dense")[2]), Settings())
    assert list(arms_of(subject, ("same_device",))) == ["same_device"]
    with pytest.raises(ConfigError, match="no arm second_stream on this machine; there are streamed"):
        arms_of(subject, ("second_stream",))
    with pytest.raises(ConfigError, match="unknown GPU: H900"):
        floor_of(replace(subject, gpu="H900"))
    for kind, size in (("photos", ""), ("charts", "850"), ("charts", "50x50")):
        with pytest.raises(ConfigError):
            painter(kind, size)


def test_pictures_are_equal_by_seed_and_of_their_size() -> None:
    for kind, sides in (("charts", (850, 600)), ("screenshots", (1920, 1080))):
        draw, size = painter(kind)
        assert size == sides and draw(5) == draw(5) != draw(6)


def test_percentiles_and_medians() -> None:
    values = [float(i) for i in range(1, 101)]
    assert record.percentile(values, 0.99) == 99 and record.percentile(values, 0.5) == 50
    assert record.percentile([3.0], 0.99) == 3.0
    assert record.summed([1.0, 4.0, 2.0]) == {"median": 2.0, "spread": 1.5, "count": 3}
    assert record.share(1.0, 4.0) == 0.25 and record.share(None, 4.0) is None
    assert json.loads(record.line({"a": 1}))["record"].keys() == {"date", "machine", "commit", "command"}


def test_first_token_figures_say_what_streaming_brought() -> None:
    rung = ttft.Rung(4)
    rung.shots["streamed"] = [shot(2.0, encode_s=1.7, prefill_s=0.9, hidden_s=0.6, waited_s=1.1)] * 3
    rung.shots["sequential"] = [shot(3.0, encode_s=1.6, prefill_s=0.8)] * 3
    row = ttft.figures(rung, ttft.Plan(), FLOOR)
    assert row["bound_s"] == 0.4 + 3 * 0.4 + 0.2 and row["streamed_over_bound"] == round(2.0 / 1.8, 4)
    assert row["overlap_share"] == round(1.0 / 1.2, 4) and row["hidden_s"] == 0.6 and row["identical"]
    assert row["hidden_share"] == round(0.6 / 1.7, 3)
    assert row["floor_s"]["streamed"] <= row["floor_s"]["sequential"] > 0
    rung.shots["streamed"][1] = shot(2.0, text="b", encode_s=1.7, prefill_s=0.9)
    assert not ttft.figures(rung, ttft.Plan(), None)["identical"]
    line = ttft.report([rung], ttft.Plan(), FLOOR, QUIET)
    assert set(line["images"]) == {"4"}


def test_one_image_and_other_servers_have_no_overlap() -> None:
    rung = ttft.Rung(1, {"server": [shot(2.0)]})
    assert "bound_s" not in ttft.figures(rung, ttft.Plan(), None)
    rung = ttft.Rung(1, {arm: [shot(2.0, encode_s=1.0, prefill_s=1.0)] for arm in ("streamed", "sequential")})
    assert "overlap_share" not in ttft.figures(rung, ttft.Plan(), None)


def test_rates_of_a_group() -> None:
    group = rates.Group((shot(0.5, 1.0, 1.5, tokens=9), shot(1.0, 2.5, tokens=5)))
    assert group.total == 14 / 2.5 and group.decode == 12 / 2.0
    row = rates.figures(2, [group], FLOOR)
    assert row["floor_tok_s"] == 2000.0 and row["share_of_floor"] == round(6 / 2000, 3)
    assert rates.report({2: [group]}, rates.Plan(), FLOOR, QUIET)["batches"]["2"]["tokens"] == 14


class Scripted:
    """A target whose text streams give a piece every turn of the loop, slowly while a request with pictures runs."""

    name = "scripted"

    def __init__(self) -> None:
        self.closed, self.asked = False, list[Question]()
        self.busy = False

    async def ask(self, question: Question, hear: Hear | None = None) -> Shot:
        self.asked.append(question)
        out = Shot(time.monotonic())
        self.busy = bool(question.pictures)
        for _ in range(question.tokens if not question.pictures else 50):
            await asyncio.sleep(0)
            out.stamps.append(time.monotonic())
            if hear is not None:
                hear(out)
        self.busy = False
        out.tokens = question.tokens
        return out

    async def aclose(self) -> None:
        self.closed = True


def opened(target: Target) -> Callable[[], Awaitable[Target]]:
    async def open_it() -> Target:
        return target

    return open_it


async def test_gaps_are_sorted_by_what_happens_meanwhile() -> None:
    target = Scripted()
    gaps = await itl.measure(opened(target), itl.Plan(3, 2, 2, 5, most=10**6), lambda text: None)
    assert target.closed and len(gaps.first_token_s) == 2
    assert len(gaps.idle) >= 2 * 3 * 5 and gaps.busy
    assert [len(question.pictures) for question in target.asked] == [2, 0, 0, 0, 2, 2]
    row = itl.figures(gaps, itl.Plan(3, 2, 2, 5), FLOOR)
    assert row["idle_p50_ms"] <= row["idle_p99_ms"] and row["floor_ms"] == 1.0
    assert itl.report({"server": gaps}, itl.Plan(3), FLOOR, QUIET)["arms"].keys() == {"server"}


async def test_streams_that_end_too_early_are_no_measurement() -> None:
    with pytest.raises(RequestFailed, match="more tokens"):
        await itl.measure(opened(Scripted()), itl.Plan(2, 1, 1, 5, most=4), lambda text: None)


async def test_an_engine_here_and_a_server_are_told_alike() -> None:
    draw, _ = painter("charts", "256x224")
    question = Question("What is it?", (draw(1), draw(2)), 6)
    async with serving(tiny("dense")[2], image_cache=False) as service:
        here = await Offline(service).ask(question)
        with listen("127.0.0.1", 0, 30.0) as sock:
            ready = asyncio.Event()
            server = GracefulServer(create_app(service, Settings()), service, 5.0, ready.set)
            task = asyncio.create_task(server.serve(sockets=[sock]))
            await ready.wait()
            client = Server(url_of(sock), "")
            try:
                await client.find_model()
                pieces: list[int] = []
                there = await client.ask(question, lambda so_far: pieces.append(len(so_far.stamps)))
                with pytest.raises(RequestFailed, match="400"):
                    await client.ask(replace(question, pictures=(b"no picture",)))
            finally:
                await client.aclose()
                server.should_exit = True
                await task
    assert (here.text, here.tokens, here.prompt_tokens) == (there.text, there.tokens, there.prompt_tokens)
    assert here.tokens == 6 and pieces == list(range(1, len(pieces) + 1))
    assert here.stamps == sorted(here.stamps) and here.began_s < here.stamps[0] <= here.ended_s
    assert there.timings["encode_s"] > 0 and here.timings["encode_s"] > 0
    assert here.first_token_s > 0 and len(here.gaps) == len(here.stamps) - 1


async def test_no_server_is_one_plain_error() -> None:
    client = Server(f"http://127.0.0.1:{start.free_port()}", "")
    try:
        with pytest.raises(RequestFailed, match="no server that lists its models"):
            await client.find_model()
    finally:
        await client.aclose()


def test_the_ladder_on_a_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(kv_tokens=2048, page_len=16, threads=2, encoder_worker="thread", draft="none")
    plan = ttft.Plan((1, 2), 1, size="256x224", arms=("streamed", "sequential"), beside=False, tokens=3)
    found = json.loads(ttft.run(Subject(str(tiny("dense")[2]), settings, gpu="H200"), plan))
    assert set(found["images"]) == {"1", "2"} and "streamed" in capsys.readouterr().out
    for row in found["images"].values():
        assert row["identical"] and set(row["first_token_s"]) == {"streamed", "sequential"} == set(row["floor_s"])
        assert row["encode_s"] > 0 and row["streamed_over_bound"] > 0
    assert found["record"]["machine"]


def test_rates_on_a_tiny_model() -> None:
    settings = Settings(kv_tokens=2048, page_len=16, threads=1, draft="none")
    found = json.loads(rates.run(Subject(str(tiny("dense")[2]), settings), rates.Plan((1, 2), 5, 1, "text")))
    assert {size: row["tokens"] for size, row in found["batches"].items()} == {"1": 5, "2": 10}


SERVER = """
import http.server, json, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.give(json.dumps({"data": [{"id": "m"}]}))
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        usage = {"prompt_tokens": 3, "completion_tokens": 1}
        self.give("data: " + json.dumps({"choices": [{"delta": {"content": "x"}}], "usage": usage}) + "\\n\\ndata: [DONE]\\n\\n")
    def give(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *words):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""  # noqa: E501


def test_a_start_is_timed_from_the_process_to_its_first_answer(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    port = start.free_port()
    plan = start.Plan((), f"{sys.executable} {tmp_path}/server.py {port}", f"http://127.0.0.1:{port}", repeats=2)
    found = json.loads(start.run(plan))
    assert 0 < found["ready_s"]["median"] <= found["first_answer_s"]["median"] and found["ready_s"]["count"] == 2


def test_a_server_that_ends_is_told_at_once() -> None:
    plan = start.Plan((), f"{sys.executable} -c 'raise SystemExit(7)'", "http://127.0.0.1:9", repeats=1)
    with pytest.raises(RequestFailed, match="ended with 7"):
        start.run(plan)


def test_foveate_is_started_on_a_port_of_its_own() -> None:
    words, url = start.command_of(start.Plan(("demo", "--threads", "2")))
    assert words[1:6] == ["-m", "foveate.cli", "serve", "demo", "--threads"] and url.endswith(words[-1])
