"""What a person does on the page, and what is drawn there, in the words of the tests."""

from __future__ import annotations

import base64
from typing import Any

from tests.support.engines import png

# Pastes as a browser does it: a paste event whose clipboard holds files.
PASTE = """pictures => {
    const data = new DataTransfer();
    for (const [name, coded] of pictures) {
        const bytes = Uint8Array.from(atob(coded), (char) => char.charCodeAt(0));
        data.items.add(new File([bytes], name, { type: "image/png" }));
    }
    const target = document.activeElement ?? document.body;
    target.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
}"""
DROP = PASTE.replace('ClipboardEvent("paste", { clipboardData: data,', 'DragEvent("drop", { dataTransfer: data,')


def pictures(count: int, width: int = 96) -> list[tuple[str, str]]:
    """Names and base64 of small pictures, each another."""
    return [(f"chart-{seed}.png", base64.b64encode(png(seed, width)).decode()) for seed in range(count)]


def until(page: Any, expression: str, argument: Any = None) -> None:
    """Wait until an expression holds on the page. Fails after 60 seconds.

    Playwright's own `wait_for_function` evaluates strings from within the page, which the page's policy forbids.
    """
    for _ in range(1200):
        if page.evaluate(expression, argument):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def paste(page: Any, count: int) -> None:
    page.evaluate(PASTE, pictures(count))
    until(page, "count => document.querySelectorAll('.tray li').length === count", count)


def write_and_send(page: Any, text: str) -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")


def answer_text(page: Any, index: int = -1) -> str:
    """The words of an answer, once it is complete."""
    answers = page.locator(".answer")
    at = answers.nth(index) if index >= 0 else answers.last
    at.locator(".tools button, .error").first.wait_for()
    return at.locator(".markdown").last.inner_text()


def lanes(page: Any, kind: str) -> list[tuple[float, float]]:
    """Left edge and width in pixels of every visible bar of a kind in the last timeline, from top to bottom."""
    bars = page.locator(".answer .timeline").last.locator(f".tl-bar.{kind}:not([hidden])")
    boxes = bars.evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect()).map(box => [box.left, box.width])")
    return [tuple(box) for box in boxes]


def facts(page: Any) -> dict[str, str]:
    """The sums under the last timeline."""
    pairs = page.locator(".answer .timeline").last.locator(".tl-facts > div")
    return dict(pairs.evaluate_all("all => all.map(one => [...one.children].map(child => child.textContent))"))


def titles(page: Any) -> list[str]:
    """Titles of the conversations in the list."""
    return page.locator(".conversation").all_inner_texts()


def overflow(page: Any) -> list[str]:
    """Elements that reach beyond the window's right edge without being in something that scrolls by itself."""
    return page.evaluate("""() => {
        const wide = [];
        if (document.documentElement.scrollWidth > innerWidth) wide.push("document");
        for (const node of document.querySelectorAll("body *")) {
            const box = node.getBoundingClientRect();
            if (box.width === 0 || box.height === 0) continue;
            if (node.closest(".scroll-x, .code pre, .off-screen, #sidebar:not(.open), .conversation")) continue;
            if (box.right > innerWidth + 0.5) wide.push(`${node.tagName}.${node.className} ${box.right}`);
        }
        return wide;
    }""")
