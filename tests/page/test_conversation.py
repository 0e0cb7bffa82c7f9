"""Asking with pictures, watching, stopping, coming back: a person's way through the page, on a scripted service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foveate.core.chat import ChoiceEnd, Progress, TextDelta
from foveate.core.errors import Busy, InvalidImage, StepFailed
from foveate.core.observe import Gauges, RequestView
from foveate.core.values import ImageTiming, Timings
from tests.page.acts import DROP, answer_text, facts, lanes, paste, pictures, titles, until, write_and_send
from tests.server.fake_service import TIMINGS, Gate, Script, words
from tests.server.live import Live
from tests.support.engines import png


def test_two_charts_are_pasted_asked_about_watched_and_found_again(page: Any, live: Live) -> None:
    first, second, third = Gate(), Gate(), Gate()
    end = ChoiceEnd(0, "stop", 3, TIMINGS)
    live.play(first, Progress(0, 2), second, Progress(1, 2), third, TextDelta(0, "Two charts."), end)
    paste(page, 2)
    write_and_send(page, "What are these?")
    page.wait_for_selector(".answer .timeline .tl-lane")
    assert page.locator(".answer .tl-lane").count() == 3  # two pictures and the answer
    assert page.locator(".answer .tl-name img").count() == 2
    # As the pictures land, lanes grow: the first one's encode is over, the second one's is under way.
    first.open()
    until(page, "document.querySelectorAll('.tl-bar.encode:not([hidden]):not(.open)').length === 1")
    until(page, "document.querySelectorAll('.tl-bar.encode.open:not([hidden])').length === 1")
    assert lanes(page, "generate") == []
    second.open()
    until(page, "document.querySelectorAll('.tl-bar.encode:not([hidden]):not(.open)').length === 2")
    third.open()
    assert answer_text(page) == "Two charts."
    # From here on, the server's own times: the second picture was encoded while the first was prefilled.
    encodes, prefills = lanes(page, "encode"), lanes(page, "prefill")
    assert len(encodes) == 2 and len(prefills) == 1 and len(lanes(page, "generate")) == 1
    assert encodes[1][0] == pytest.approx(prefills[0][0], abs=1)
    assert page.locator(".tl-band").count() == 1
    shown = facts(page)
    assert shown["hidden"] == "0.30 s 75 % of 0.40 s encoding"
    assert shown["first token"] == "0.50 s" and shown["speed"] == "8.0 tok/s 3 tokens"

    # A second question; its answer never ends by itself and is stopped.
    live.play(endless=TextDelta(0, "more "))
    write_and_send(page, "And now?")
    until(page, "document.querySelectorAll('.answer')[1]?.innerText.includes('more more')")
    page.click("button.stop")
    assert live.service.close_seen.wait(60)  # the server was told at once and gave the slot back
    until(page, "document.querySelectorAll('.answer')[1].innerText.includes('Stopped.')")
    assert live.service.aborted == 1
    kept = answer_text(page)

    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.locator(".question .bubble").all_inner_texts() == ["What are these?", "And now?"]
    assert answer_text(page, 0) == "Two charts." and answer_text(page) == kept
    until(page, "[...document.querySelectorAll('.strip img')].every(image => image.naturalWidth === 96)")
    assert page.locator(".strip img").count() == 2
    assert page.locator(".answer .timeline").count() == 2
    assert titles(page) == ["What are these?"]
    # The whole conversation goes to the server again, pictures in their order.
    asked = live.service.requests[1]
    assert [message["role"] for message in asked.messages] == ["user", "assistant", "user"]
    assert [image.url for image in asked.images] == [f"data:image/png;base64,{coded}" for _, coded in pictures(2)]


def test_lanes_follow_the_servers_own_status(page: Any, live: Live) -> None:
    hold = Gate()
    live.service.gauges = Gauges(running=1, pages=64, pages_used=32, slots=4, slots_used=3, waiting=5, image_rows=100)
    live.play(hold, *words("Yes"))
    paste(page, 2)
    write_and_send(page, "Well?")
    assert hold.reached.wait(60)
    images = (ImageTiming("a", 9, 0.0, 0.1, 0.1, 0.8, 0.8, 1.2), ImageTiming("b", 9, 0.1, 0.2))
    view = RequestView("unknown", "prefill", 30, 0, 1.5, timings=Timings(images=images))
    live.service.views = ((view,), ())
    page.wait_for_selector(".answer .tl-bar.prefill:not([hidden])")
    assert len(lanes(page, "decode")) == 2
    # The status tells of an encode once it is over; the one under way is drawn as supposed, beside the prefill.
    assert page.locator(".tl-bar.encode.supposed.open:not([hidden])").count() == 1
    assert page.locator(".tl-band").count() == 1
    assert facts(page)["encoded"] == "1 of 2"
    panel = page.locator("#server")
    assert panel.get_attribute("aria-label") == "What the server does: slots 3/4, memory 50 %, image rows 0 %, queue 5"
    page.keyboard.press("Alt+s")
    card = page.locator("dialog section")
    assert card.locator("h4").inner_text() == "reading · 2 pictures · 30 tokens in · 0 out"
    assert card.locator(".tl-bar.prefill:not([hidden])").count() == 1
    live.service.views = ((), (RequestView("unknown", "stop", 30, 1, 2.0, timings=TIMINGS),))
    page.wait_for_selector("dialog section:has-text('finished') .tl-facts:has-text('hidden')")
    page.keyboard.press("Escape")
    hold.open()
    assert answer_text(page) == "Yes"


def test_an_encode_that_is_under_way_is_drawn_from_its_start(page: Any, live: Live) -> None:
    hold = Gate()
    live.play(hold, *words("Yes"))
    paste(page, 2)
    write_and_send(page, "Well?")
    assert hold.reached.wait(60)
    images = (ImageTiming("a", 9, 0.0, 0.1, 0.1, 0.8), ImageTiming("b", 9, 0.1, 0.2, 0.8))
    live.service.views = ((RequestView("unknown", "encode", 30, 0, 1.5, timings=Timings(images=images)),), ())
    page.wait_for_selector(".answer .tl-facts:has-text('1 of 2')")  # now it is the server's word that is drawn
    assert page.locator(".answer .tl-bar.encode.open:not(.supposed):not([hidden])").count() == 1
    assert page.locator(".tl-bar.encode.supposed:not([hidden])").count() == 0
    hold.open()
    assert answer_text(page) == "Yes"


def test_acceptance_of_drafts_is_told_where_there_are_drafts(page: Any, live: Live) -> None:
    timings = Timings(first_token_s=0.1, generation_s=1.0, decode_steps=10, drafted=40, accepted=(8, 6, 4, 2))
    live.play(TextDelta(0, "Fast", 1), ChoiceEnd(0, "stop", 31, timings))
    write_and_send(page, "Quick?")
    answer_text(page)
    assert facts(page)["drafts accepted"] == "50 % 3.0 tokens a step"
    assert page.locator(".tl-lane").count() == 1


def test_the_limit_of_pictures_is_told_and_kept(page: Any, live: Live) -> None:
    page.evaluate(DROP, pictures(18, 8))
    page.wait_for_selector(".tray li:nth-child(16)")
    assert "2 pictures were left out: a conversation may hold 16" in page.inner_text(".composer .notice")
    write_and_send(page, "All of them")
    answer_text(page)
    assert len(live.service.requests[-1].images) == 16
    page.evaluate(DROP, pictures(1, 8))
    page.wait_for_selector(".composer .notice:has-text('1 picture was left out')")
    assert page.locator(".tray li").count() == 0


def test_pictures_are_moved_by_pointer_and_removed(page: Any, live: Live) -> None:
    paste(page, 3)
    names = page.locator(".thumb").evaluate_all("all => all.map(one => one.title.split(',')[0])")
    assert names == ["chart-0.png", "chart-1.png", "chart-2.png"]
    page.locator(".thumb").nth(2).hover()
    page.mouse.down()
    target = page.locator(".thumb").nth(0).bounding_box()
    page.mouse.move(target["x"] + 30, target["y"] + 30, steps=4)
    page.mouse.up()
    names = page.locator(".thumb").evaluate_all("all => all.map(one => one.title.split(',')[0])")
    assert names == ["chart-2.png", "chart-0.png", "chart-1.png"]
    page.locator(".thumb-remove").nth(1).click()
    write_and_send(page, "In this order")
    answer_text(page)
    sent = [image.url.split(",")[1] for image in live.service.requests[-1].images]
    assert sent == [dict(pictures(3))[name] for name in ("chart-2.png", "chart-1.png")]


def test_pictures_are_chosen_from_files_and_other_files_left(page: Any, tmp_path: Path) -> None:
    (tmp_path / "chart.png").write_bytes(png(1))
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Alt+u")
    chooser.value.set_files(tmp_path / "chart.png")
    page.wait_for_selector(".tray li")
    page.evaluate(DROP.replace("image/png", "text/plain"), pictures(1))
    page.wait_for_selector(".composer .notice:has-text('Only pictures can be added.')")
    assert page.locator(".tray li").count() == 1


def test_an_answer_is_asked_for_again_and_the_last_question_edited(page: Any, live: Live) -> None:
    live.play(*words("One"))
    paste(page, 2)
    write_and_send(page, "First wording")
    assert answer_text(page) == "One"
    live.play(*words("Two"))
    page.click(".answer .again")
    until(page, "document.querySelector('.answer')?.innerText.includes('Two')")
    assert page.locator(".answer").count() == 1
    page.click(".question .edit")
    until(page, "document.querySelector('#question').value === 'First wording'")
    assert page.locator(".tray li").count() == 2
    page.locator(".thumb-remove").first.click()
    live.play(*words("Three"))
    write_and_send(page, "Second wording")
    until(page, "document.querySelector('.answer')?.innerText.includes('Three')")
    assert page.locator(".question .bubble").all_inner_texts() == ["Second wording"]
    asked = live.service.requests[-1]
    assert len(asked.messages) == 1 and len(asked.images) == 1
    # The picture that no question holds any more is gone from the browser too.
    count = """() => new Promise(resolve => {
        indexedDB.open("foveate", 1).onsuccess = ({ target }) => {
            const counted = target.result.transaction("pictures").objectStore("pictures").count();
            counted.onsuccess = () => { target.result.close(); resolve(counted.result); };
        };
    })"""
    until(page, f"async () => await ({count})() === 1")


def test_a_busy_server_is_told_with_the_time_to_wait(page: Any, live: Live) -> None:
    live.play(admission=[Busy("the queue is full", retry_after_s=1)])
    write_and_send(page, "Hello")
    page.wait_for_selector(".error:has-text('The server is busy')")
    assert "the queue is full" in page.inner_text(".error")
    again = page.locator(".error .again")
    assert again.inner_text() == "Try again in 1 s" and again.is_disabled()
    live.play(*words("Now"))
    again.click()  # waits until it may be pressed
    assert answer_text(page) == "Now"


def test_a_refusal_gives_the_servers_reason_and_its_place(page: Any, live: Live) -> None:
    live.play(admission=[InvalidImage("the picture is truncated", "messages[0].content[1].image_url.url")])
    paste(page, 2)
    write_and_send(page, "Hello")
    page.wait_for_selector(".error:has-text('The server refused this request')")
    told = page.inner_text(".error")
    assert "the picture is truncated" in told and "messages[0].content[1].image_url.url" in told


def test_a_failure_in_the_middle_keeps_what_was_said(page: Any, live: Live) -> None:
    live.play(TextDelta(0, "Half an "), StepFailed("the step failed"))
    write_and_send(page, "Hello")
    page.wait_for_selector(".error:has-text('the step failed')")
    assert page.locator(".answer .markdown").last.inner_text() == "Half an"


def test_parameters_and_the_system_prompt_are_sent(page: Any, live: Live) -> None:
    page.click("#params")
    for name, value in {"temperature": "0.5", "top_p": "0.9", "max_tokens": "40", "seed": "7"}.items():
        page.fill(f"#param-{name}", value)
    page.fill("#param-system", "Be brief.")
    page.keyboard.press("Escape")
    write_and_send(page, "Hello")
    answer_text(page)
    asked = live.service.requests[-1]
    wishes = asked.wishes
    assert (wishes.temperature, wishes.top_p, wishes.max_tokens, wishes.seed) == (0.5, 0.9, 40, 7)
    assert asked.messages[0] == {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    page.click("#params")
    page.fill("#param-temperature", "9")
    assert page.get_attribute("#param-temperature", "aria-invalid") == "true"
    page.click("dialog >> text=Use the model's own")
    page.keyboard.press("Escape")
    write_and_send(page, "Hello again")
    until(page, "document.querySelectorAll('.answer .again').length === 1")
    answer_text(page, 1)
    assert live.service.requests[-1].wishes.temperature is None


def test_conversations_are_started_renamed_and_deleted(page: Any, live: Live) -> None:
    for text in ("First", "Second"):
        page.click(".button.new")
        write_and_send(page, text)
        answer_text(page)
    assert titles(page) == ["Second", "First"]
    page.click("[aria-label='Rename First']", force=True)
    page.fill(".conversations input", "Renamed")
    page.press(".conversations input", "Enter")
    page.click(".conversation >> text=Renamed")
    assert page.locator(".question .bubble").all_inner_texts() == ["First"]
    page.click("[aria-label='Delete Second']", force=True)
    page.click(".confirm >> text=Delete")
    until(page, "!document.querySelector('.confirm')")  # it stays until the deletion is kept
    assert titles(page) == ["Renamed"]
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert titles(page) == ["Renamed"]


def test_an_answer_goes_on_while_another_conversation_is_open(page: Any, live: Live) -> None:
    hold = Gate()
    live.play(TextDelta(0, "Still "), hold, *words("here"))
    write_and_send(page, "Slow")
    until(page, "document.querySelector('.answer')?.innerText.includes('Still')")
    page.click(".button.new")
    assert page.locator(".answer").count() == 0
    live.play(*words("Quick"))
    write_and_send(page, "Fast")
    assert answer_text(page) == "Quick"
    page.click(".conversation >> text=Slow")
    hold.open()
    assert answer_text(page) == "Still here"


def test_a_question_without_a_connection_can_be_asked_again(page: Any, live: Live) -> None:
    page.route("**/v1/chat/completions", lambda route: route.abort())
    write_and_send(page, "Hello")
    page.wait_for_selector(".error:has-text('The server cannot be reached.')")
    page.unroute("**/v1/chat/completions")
    live.service.script = Script(words("Back"))
    page.click(".error .again")
    assert answer_text(page) == "Back"
