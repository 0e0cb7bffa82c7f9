"""The page for everybody: keyboard alone, a narrow phone, light and dark, less motion, screen readers, an API key."""

from __future__ import annotations

import re
from typing import Any

import pytest

from foveate.core.chat import ChoiceEnd, TextDelta
from foveate.core.observe import Gauges
from tests.page.acts import answer_text, overflow, paste, titles, until, write_and_send
from tests.page.conftest import watched_page
from tests.server.fake_service import TIMINGS, words
from tests.server.live import Live

LONG = (
    "A wordwhichisverylongindeed" + "x" * 200 + "\n\n```\n" + "code " * 60 + "\n```\n\n| " + " | ".join(["cell"] * 20)
)
LONG += " |\n|" + "---|" * 20 + "\n"


def focused(page: Any) -> str:
    """The name of what has the focus."""
    return page.evaluate("""() => {
        const node = document.activeElement;
        return node.getAttribute("aria-label") ?? node.textContent.trim() ?? node.tagName;
    }""")


def tab_to(page: Any, pattern: str, back: bool = False) -> None:
    """Press Tab until something of that name has the focus, as somebody without a mouse does."""
    for _ in range(80):
        if re.search(pattern, focused(page)):
            return
        page.keyboard.press("Shift+Tab" if back else "Tab")
    raise AssertionError(f"Tab never came to {pattern}")


def test_everything_can_be_done_by_keyboard(page: Any, live: Live) -> None:
    assert focused(page) == "Question"
    paste(page, 3)
    tab_to(page, "^Picture 3 of 3: chart-2.png", back=True)
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("Shift+ArrowLeft")
    assert focused(page).startswith("Picture 1 of 3: chart-2.png")
    assert page.inner_text("#said") == "chart-2.png is now picture 1 of 3"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Delete")
    assert page.inner_text("#said") == "Removed chart-0.png; 2 left"
    tab_to(page, "^Question$")
    page.keyboard.type("By hand")
    live.play(endless=TextDelta(0, "on and on "))
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.answer')?.innerText.includes('on and on')")
    page.keyboard.press("Escape")
    until(page, "document.querySelector('#said').textContent.startsWith('Answer stopped')")
    assert len(live.service.requests[-1].images) == 2
    live.play(*words("Again"))
    tab_to(page, "^Answer again$", back=True)
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#said').textContent === 'Answer complete. Again'")
    page.keyboard.press("Alt+n")
    assert focused(page) == "Question" and page.locator(".answer").count() == 0
    tab_to(page, "^By hand$", back=True)
    page.keyboard.press("Enter")
    assert answer_text(page) == "Again"
    tab_to(page, "^Rename By hand$")
    page.keyboard.press("Enter")
    page.keyboard.type("Renamed")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.conversation')?.textContent === 'Renamed'")
    tab_to(page, "^Delete Renamed$")
    page.keyboard.press("Enter")
    assert focused(page) == "Delete"
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.conversation').length === 0")


def test_shortcuts_open_dialogs_and_escape_gives_the_focus_back(page: Any) -> None:
    page.keyboard.press("Alt+p")
    assert page.locator("dialog[open] h2").inner_text() == "Parameters"
    page.keyboard.press("Escape")
    until(page, "document.querySelector('dialog') === null")
    assert focused(page) == "Question"
    page.locator("#question").blur()
    page.keyboard.press("?")
    assert page.locator("dialog[open] h2").inner_text() == "Shortcuts"
    page.keyboard.press("Escape")
    until(page, "document.querySelector('dialog') === null")
    page.keyboard.press("/")
    assert focused(page) == "Question" and page.input_value("#question") == ""
    page.keyboard.type("what? a/b")
    assert page.input_value("#question") == "what? a/b"


def test_everything_that_is_operated_has_a_name(page: Any, live: Live) -> None:
    paste(page, 2)
    write_and_send(page, "Names")
    answer_text(page)
    page.click("#params")
    nameless = page.evaluate("""() => [...document.querySelectorAll("button, input, textarea, summary, a")]
        .filter(node => !node.hidden && !node.closest("[hidden]"))
        .filter(node => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length))
        .map(node => node.outerHTML)""")
    assert nameless == []
    label = page.get_attribute(".answer .timeline", "aria-label")
    assert label.startswith("Timeline of 2 images: first token 0.50 s, hidden 0.30 s (75 % of 0.40 s encoding)")


@pytest.mark.parametrize("width", [360, 390, 768])
def test_nothing_reaches_beyond_a_narrow_screen(browser: Any, live: Live, width: int) -> None:
    live.service.gauges = Gauges(pages=1024, pages_used=1000, slots=128, slots_used=127, waiting=256, image_rows=65536)
    touch = {"viewport": {"width": width, "height": 740}, "has_touch": True, "is_mobile": True}
    with watched_page(browser, live.url, **touch) as page:
        page.wait_for_selector("#server:not([hidden])")
        assert overflow(page) == []  # the welcome with its examples
        live.play(TextDelta(0, LONG), ChoiceEnd(0, "stop", 2, TIMINGS))
        paste(page, 9)
        assert overflow(page) == []
        write_and_send(page, "word" * 60)
        answer_text(page)
        page.click(".timeline summary")
        assert overflow(page) == []
        page.click("#params")
        assert overflow(page) == []
        page.keyboard.press("Escape")
        page.click("#server")
        assert overflow(page) == []
        page.keyboard.press("Escape")
        page.click("#menu")
        page.wait_for_selector("#sidebar.open .conversation")
        assert overflow(page) == []
        assert titles(page)[0].startswith("wordword")
        page.keyboard.press("Escape")
        assert page.get_attribute("#menu", "aria-expanded") == "false"


# Pairs of what is written and the ground it stands on.
TEXTS = [
    (".lead", "body"), (".conversations .quiet", "#sidebar"), (".gauge-name", ".top"), (".try-words", ".try"),
    (".try-words small", ".try"), ("#question", ".composer"), ("#model", ".top"), (".new", ".new"),
]  # fmt: skip
ANSWER = [
    (".bubble", ".bubble"), (".tl-name", ".timeline"), (".tl-axis", ".timeline"), (".tl-facts dt", ".timeline"),
    (".tl-facts .main dd", ".timeline"), (".markdown a", "body"), (".markdown code", ".markdown code"),
]  # fmt: skip
BARS = ["decode", "encode", "prefill", "generate"]


def contrast(page: Any, text: str, ground: str, what: str = "color") -> float:
    """The contrast of WCAG 2 between a colour of one element and the background of another."""

    def luminance(colour: str) -> float:
        values = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def style(selector: str, name: str) -> str:
        return page.locator(selector).first.evaluate("(node, name) => getComputedStyle(node)[name]", name)

    light, dark = sorted((luminance(style(text, what)), luminance(style(ground, "backgroundColor"))), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough_in_light_and_dark(browser: Any, live: Live, scheme: str) -> None:
    live.service.gauges = Gauges(pages=10, slots=4, image_rows=10)
    with watched_page(browser, live.url, color_scheme=scheme) as page:
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        page.wait_for_selector("#server:not([hidden])")
        for text, ground in TEXTS:
            assert contrast(page, text, ground) >= 4.5, (text, scheme)
        live.play(TextDelta(0, "[a](https://a.example) `b`"), ChoiceEnd(0, "stop", 2, TIMINGS))
        paste(page, 2)
        write_and_send(page, "Colours")
        answer_text(page)
        for text, ground in ANSWER:
            assert contrast(page, text, ground) >= 4.5, (text, scheme)
        for kind in BARS:
            colour = page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{kind}')")
            page.evaluate("colour => document.querySelector('.timeline').style.setProperty('color', colour)", colour)
            assert contrast(page, ".timeline", ".timeline") >= 3.0, (kind, scheme)
        page.click("#theme")
        other = {"light": "dark", "dark": "light"}[scheme]
        assert page.evaluate("document.documentElement.dataset.theme") == other
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate("document.documentElement.dataset.theme") == other


def test_less_motion_is_respected(browser: Any, live: Live) -> None:
    live.play(endless=TextDelta(0, "on "))
    with watched_page(browser, live.url, reduced_motion="reduce") as page:
        write_and_send(page, "Calm")
        page.wait_for_selector(".streaming")
        # Streaming words and open lanes would pulse.
        assert page.evaluate("document.getAnimations().length") == 0
        page.keyboard.press("Escape")
        page.wait_for_selector(".answer .tools button")


def test_a_key_is_asked_for_and_sent(browser: Any, live: Live) -> None:
    seen: list[str | None] = []

    def guard(route: Any) -> None:
        key = route.request.headers.get("authorization")
        seen.append(key)
        if key == "Bearer right":
            route.continue_()
        else:
            body = '{"error": {"message": "a valid API key is needed", "param": null}}'
            route.fulfill(status=401, body=body, headers={"content-type": "application/json"})

    with browser.new_context() as visit:
        page = visit.new_page()
        page.route(re.compile(r"/v1/|/status/events"), guard)
        page.goto(live.url)
        page.wait_for_selector("dialog:has-text('The server asks for a key')")
        page.fill("#key", "right")
        page.press("#key", "Enter")
        page.wait_for_selector("body[data-ready]")
        page.wait_for_selector("#server:not([hidden])")
        live.play(*words("Open"))
        write_and_send(page, "Hello")
        assert answer_text(page) == "Open"
    assert seen[0] is None and seen[-1] == "Bearer right"


def test_the_examples_are_one_click(page: Any, live: Live) -> None:
    assert page.locator(".try").count() > 10
    live.play(*words("325"))
    page.click(".try >> text=What is the value of ENVY?")
    assert answer_text(page) == "325"
    asked = live.service.requests[-1]
    assert len(asked.images) == 1 and asked.messages[0]["content"][1]["text"] == "What is the value of ENVY?"
    page.keyboard.press("Alt+n")
    page.click(".try >> nth=0")
    answer_text(page)
    assert len(live.service.requests[-1].images) == 4
