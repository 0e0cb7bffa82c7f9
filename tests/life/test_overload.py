"""Too much to do: short memory, requests that can never fit, small ones behind large ones, and nobody starves."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from foveate.core.config import MIB
from foveate.core.errors import Busy
from foveate.service.memory import HostMemory, available_bytes
from tests.cases.oracle import eventually, open_house, refused, user
from tests.cases.test_picture_cases import bomb
from tests.life.gates import gated
from tests.support.engines import png


def test_short_memory_is_busy_for_pictures_and_passes_by(folder: Path) -> None:
    free = [1024 * MIB]
    with open_house(folder, memory=HostMemory(512 * MIB, lambda: free[0])) as house:
        want = house.ask(png(1), "x")
        free[0] = 100 * MIB
        for stream in (False, True):
            refused(house.post(user(png(1), "x"), stream=stream), 503, "server_busy")
        assert house.ask("text needs none").reason == "length"
        free[0] = 600 * MIB
        assert house.ask(png(1), "x").same(want)
        refused(house.post(user(bomb(6000, 6000), "x")), 503, "server_busy")  # 36 Mpx take some 400 MB to decode
        free[0] = 1024 * MIB
        assert house.ask(png(1), "x").same(want)
        house.check()


def test_memory_as_the_system_tells_it(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    group.mkdir()
    assert available_bytes(meminfo, group) is None
    HostMemory(10**18, lambda: None).check([10**12])  # not known: not refused
    meminfo.write_text("MemTotal:       8000 kB\nMemFree:        1000 kB\nMemAvailable:    4000 kB\n")
    assert available_bytes(meminfo, group) == 4000 * 1024
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert available_bytes(meminfo, group) == 4000 * 1024
    (group / "memory.max").write_text("3000000\n")
    (group / "memory.current").write_text("2500000\n")
    assert available_bytes(meminfo, group) == 500_000
    (group / "memory.stat").write_text("anon 7\ninactive_file 200000\nactive_file 9\n")
    assert available_bytes(meminfo, group) == 700_000
    meminfo.write_text("MemAvailable:    12\nnonsense\n")
    assert available_bytes(meminfo, group) == 12 * 1024
    with pytest.raises(Busy):
        HostMemory(0, lambda: 10).check([1])


def test_what_never_fits_is_refused_while_the_queue_stands(folder: Path) -> None:
    with open_house(folder, max_concurrency=1, image_rows=64, kv_tokens=512) as house, gated(house) as (encode, _):
        encode.close(lambda pixels: True)
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(house.ask, png(i), "x") for i in range(3)]
            eventually(lambda: house.engine.loop.stats().waiting == 2)
            for content in ((*[png(9, 256, 256)] * 9, "x"), ("x" * 600,)):
                refused(house.post(user(*content)), 400, "context_length_exceeded")
            assert house.engine.loop.stats().waiting == 2
            encode.open()
            assert all(one.result().reason == "length" for one in waiting)
        house.check()


def test_small_requests_pass_a_large_one_but_only_so_often(folder: Path) -> None:
    started: list[int] = []
    settings = {"kv_tokens": 320, "max_ctx": 320, "bypass": 2, "max_concurrency": 6}
    with open_house(folder, **settings) as house, ThreadPoolExecutor(8) as pool, gated(house) as (_, step):
        plain = house.engine.loop._scheduler.plan

        def noting(now: float) -> Any:
            plan = plain(now)
            started.extend(plan.started)
            return plan

        house.engine.loop._scheduler.plan = noting
        step.close(lambda plan: any(p.draw and p.draw.index == 2 for p in plan.slices))
        answers = [pool.submit(house.ask, "r" * 130, max_tokens=40)]
        assert step.reached.wait(60)
        for i in range(7):
            content = "l" * 180 if i == 0 else f"small {i}"
            answers.append(pool.submit(house.ask, content, max_tokens=3))
            eventually(lambda n=i + 1: house.engine.loop._mailbox.qsize() == n)
        step.open()
        assert all(one.result().reason == "length" for one in answers)
        first, large, *small = sorted(started)
        assert started[:4] == [first, small[0], small[1], large], "two may pass the large one, then it is its turn"
        house.engine.loop._scheduler.plan = plain
        house.check()


def test_a_large_request_is_served_under_a_steady_stream_of_small_ones(folder: Path) -> None:
    with open_house(folder, kv_tokens=512, max_concurrency=3, queue_requests=500) as house:
        done = threading.Event()

        def hammer(k: int) -> int:
            served = 0
            while not done.is_set():
                house.ask(png(k), f"small {served}", max_tokens=4)
                served += 1
            return served

        with ThreadPoolExecutor(5) as pool:
            small = [pool.submit(hammer, k) for k in range(4)]
            large = [pool.submit(house.ask, *[png(50 + i, 256, 256) for i in range(6)], "l" * 40) for _ in range(1)]
            assert large[0].result().usage["prompt_tokens_details"]["images"] == 6
            done.set()
            assert all(one.result() >= 0 for one in small)
        house.check()


def test_a_waiting_request_keeps_its_pictures_once_and_not_their_urls(folder: Path) -> None:
    import gc

    from foveate.core.chat import ChatRequest, ImageSource
    from foveate.server.openai_request import ChatCompletionRequest

    with open_house(folder, max_concurrency=1) as house, ThreadPoolExecutor(2) as pool, gated(house) as (encode, _):
        kinds = (ImageSource, ChatRequest, ChatCompletionRequest)

        def living() -> list[Any]:
            gc.collect()
            return [one for one in gc.get_objects() if type(one) in kinds]

        earlier = living()  # whatever another test has kept is no business of this one
        encode.close(lambda pixels: True)
        waiting = [pool.submit(house.post, user(png(i), "x"), stream=i == 1) for i in range(2)]
        eventually(lambda: house.engine.loop.stats().waiting == 1)
        kept = [one for one in living() if not any(one is other for other in earlier)]
        assert not kept, "a base64 copy is kept beside the bytes"
        encode.open()
        assert all(one.result().status_code == 200 for one in waiting)
