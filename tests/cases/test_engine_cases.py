"""Cases B26 to B35: chunk ends, full caches, pressure and company change no answer, and nothing waits for ever."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from foveate.prompt.layout import lay_out
from tests.cases.oracle import House, Said, open_house, parts, refused, user
from tests.cases.test_picture_cases import encoded
from tests.support.engines import png
from tests.support.harness import Drive, Job, make_job
from tests.support.tiny import IMAGE_PAD

LARGE = [png(70 + i, 256, 256) for i in range(6)]  # 64 rows each, the most that this model makes of a picture
QUESTIONS: list[tuple[Any, ...]] = [
    ("short",),
    (png(80), "one"),
    ("before", png(81), "between", png(82, 160, 64), "after"),
    (LARGE[0], "large, then a longer text that goes on for a while"),
    (LARGE[1], LARGE[2], "two large ones"),
]


def all_at_once(*jobs: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [done.result() for done in [pool.submit(job) for job in jobs]]


def asked(house: House, questions: list[tuple[Any, ...]], **fields: Any) -> list[Said]:
    """All at once."""
    return all_at_once(*(lambda q=q: house.ask(*q, **fields) for q in questions))


@pytest.fixture
def solo(house: House) -> list[Said]:
    """What each question is answered alone, in large steps."""
    return [house.ask(*question) for question in QUESTIONS]


@pytest.mark.parametrize("chunk", [1, 5, 16, 63, 64, 65])
def test_B26_a_chunk_may_end_anywhere_in_an_image(folder: Path, solo: list[Said], chunk: int) -> None:
    with open_house(folder, step_tokens=chunk, mixed_tokens=chunk, encoder_stream=chunk % 2 == 0) as chunked:
        for question, want in zip(QUESTIONS, solo, strict=True):
            assert chunked.ask(*question).same(want), f"chunks of {chunk}: {question[-1]}"
        chunked.check()


def test_B27_images_that_do_not_fit_together_are_served_one_after_the_other(folder: Path, house: House) -> None:
    want = house.ask(*LARGE[:2], "both?")
    with open_house(folder, image_rows=100) as tight:
        assert tight.ask(*LARGE[:2], "both?").same(want)
        assert all(got.same(want) for got in asked(tight, [(*LARGE[:2], "both?")] * 4))
        tight.ask(*LARGE, "six?")
        tight.check()
    with open_house(folder, image_rows=100, encoder_stream=False) as whole:
        refused(whole.post(user(*LARGE[:2], "both?")), 400, "context_length_exceeded")
        whole.check()


def test_B28_what_can_never_fit_is_refused_at_admission(folder: Path, house: House) -> None:
    with open_house(folder, image_rows=32) as narrow:
        message = refused(narrow.post(user(LARGE[0], "large?")), 400, "context_length_exceeded")
        assert "64" in message and "32" in message
        narrow.check()
    with open_house(folder, kv_tokens=160) as small:
        for content, most in (((*LARGE[:3], "x"), 8), (("x",), 160), ((LARGE[0], "x"), 100)):
            for stream in (False, True):
                response = small.post(user(*content), max_tokens=most, stream=stream)
                assert "160" in refused(response, 400, "context_length_exceeded")
        small.check()
    message = refused(house.post(user(*[png(1)] * 17, "many")), 400, param="messages")
    assert "16" in message


def test_B29_equal_text_and_size_never_mean_the_same_picture(house: House) -> None:
    first = np.random.RandomState(1).randint(0, 256, (96, 96, 3)).astype(np.uint8)
    last_rows = first.copy()
    last_rows[-8:] = 255 - last_rows[-8:]
    a, b = encoded(Image.fromarray(first)), encoded(Image.fromarray(last_rows))
    want = {data: house.ask(data, "what?") for data in (a, b)}
    assert not want[a].same(want[b])
    for _ in range(5):
        order = [a, b, a, b, b, a]
        got = asked(house, [(data, "what?") for data in order])
        assert all(said.same(want[data]) for said, data in zip(got, order, strict=True))
        # There is no cache of prefixes across requests yet, and nothing claims that there was.
        assert all(said.usage["prompt_tokens_details"]["cached_tokens"] == 0 for said in got)


@pytest.mark.parametrize("images", [1, 2, 4])
def test_B31_positions_after_images_are_the_same_in_decode_as_in_prefill(images: int) -> None:
    """Without speculation: what decode generated, given back as prompt, is continued as before."""
    job = make_job(300 + images, images, text_len=60)
    [whole] = Drive().run([job])
    ids, done = [], 0
    for span in job.prompt.spans:
        ids += [*job.prompt.tokens[done : span.start_at], IMAGE_PAD]
        done = span.end_at
    ids += job.prompt.tokens[done:]
    for kept in (1, 5, 11):
        again = Job(lay_out([*ids, *whole.tokens[:kept]], IMAGE_PAD, job.pictures, 2), job.pictures)
        assert Drive().run([again])[0].tokens[: 12 - kept] == whole.tokens[kept:]


@pytest.mark.parametrize("draft_len", [1, 2, 4])
def test_B31_guessing_ahead_of_images_changes_no_token(folder: Path, draft_len: int) -> None:
    """Images early, late, two, and a long text behind them. (How much is accepted: tests/spec, tests/model.)"""
    said = []
    for settings in ({"draft": "none"}, {"draft": "mtp", "draft_len": draft_len, "draft_adaptive": False}):
        with open_house(folder, **settings) as house:
            together = asked(house, QUESTIONS, max_tokens=40)
            said.append([*together, *(house.ask(*question, max_tokens=40) for question in QUESTIONS)])
            house.check()
    assert all(one.same(other) for one, other in zip(*said, strict=True))
    plain, guessed = ([one.timings["drafted"] for one in each] for each in said)
    assert not any(plain) and all(count >= draft_len for count in guessed)


def test_B32_shared_and_cancelled_images_under_pressure(folder: Path, house: House) -> None:
    shared = png(90, 128, 128)
    questions = [(shared if i % 2 else png(100 + i, 128, 128), f"number {i % 5}") for i in range(30)]
    want = {question: house.ask(*question) for question in set(questions)}
    with open_house(folder, image_rows=40, kv_tokens=320, max_concurrency=6) as tight:
        leaving = [tight.open_request(user(shared, "leaves"), stream=i % 2 == 0, max_tokens=64) for i in range(6)]
        with ThreadPoolExecutor(31) as pool:
            answers = [pool.submit(tight.ask, *question) for question in questions]
            for sock in leaving:
                sock.close()
            for question, answer in zip(questions, answers, strict=True):
                assert answer.result().same(want[question])
        tight.check()


def test_B33_a_preempted_image_request_is_answered_as_if_undisturbed(folder: Path, house: House) -> None:
    questions = [(png(110 + i, 128, 96), f"a longer story {i}") for i in range(5)]
    want = [house.ask(*question, max_tokens=90) for question in questions]
    with open_house(folder, kv_tokens=320, max_ctx=300, max_concurrency=5) as tight:
        got = asked(tight, questions, max_tokens=90)
        assert sum(said.timings["preemptions"] for said in got) > 0, "nobody was preempted: this test shows nothing"
        assert all(said.same(other) for said, other in zip(got, want, strict=True))
        tight.check()


@pytest.mark.parametrize("company", [2, 5, 16])
def test_B34_nobody_sees_anothers_picture(folder: Path, house: House, company: int) -> None:
    """Each picture another colour and size, many at a time; fifty rounds in all."""
    sizes = [(64, 64), (96, 64), (160, 96), (256, 256)]
    colours = [encoded(Image.new("RGB", sizes[i % 4], (i * 15, 255 - i * 15, i * 40 % 256))) for i in range(company)]
    questions = [(colour, "which colour?") for colour in colours]
    want = [house.ask(*question) for question in questions]
    for _ in range({2: 20, 5: 20, 16: 10}[company]):
        assert all(got.same(said) for got, said in zip(asked(house, questions), want, strict=True))


@pytest.mark.parametrize("content", [("again",), (png(120), "again")], ids=["text", "image"])
def test_B35_equal_requests_get_equal_answers_in_any_company(house: House, content: tuple[Any, ...]) -> None:
    """In float32 on a CPU: the same tokens, and log-probabilities that agree to float rounding."""
    want = house.ask(*content, max_tokens=24)
    for company in ([content] * 4, [content, ("other",), content, (png(121), "other")]):
        for question, got in zip(company, asked(house, company, max_tokens=24), strict=True):
            assert question != content or got.same(want)


def test_identity_one_picture_two_ways_in_is_encoded_once(house: House, web: Any) -> None:
    """The same bytes by two ways, while both requests live, are one key and one encode; anything else is another."""
    tower = house.engine.loop._encoder.worker._tower
    plain, seen = tower.encode, []

    def counting(pixels: list[Any]) -> Any:
        seen.append(len(pixels))
        return plain(pixels)

    picture = Image.open(io.BytesIO(png(130))).convert("RGB")
    data = encoded(picture)
    web.pages["/twin"] = data
    others = [encoded(picture.resize((64, 64))), encoded(picture.convert("L")), encoded(picture.convert("P"))]
    twin = {"type": "image_url", "image_url": {"url": web.url("/twin")}}
    tower.encode = counting
    try:
        response = house.post([{"role": "user", "content": parts(data, twin, data, "the same?")}])
        assert response.status_code == 200 and response.json()["usage"]["prompt_tokens_details"]["images"] == 3
        assert sum(seen) == 1
        house.settle()  # or the rows of the first request are still there for the second
        house.ask(data, *others, "all different?")
        assert sum(seen) == 1 + 4
    finally:
        tower.encode = plain
