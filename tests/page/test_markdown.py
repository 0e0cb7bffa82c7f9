"""What a model writes is drawn as Markdown and never becomes part of the page."""

from __future__ import annotations

from typing import Any

import pytest

from foveate.core.chat import ChoiceEnd, TextDelta
from foveate.core.values import Timings
from tests.page.acts import answer_text, until, write_and_send
from tests.page.conftest import watched_page
from tests.server.live import Live

ATTACKS = [
    "<script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "<svg/onload=document.title='taken'>",
    "[press](javascript:document.title='taken')",
    "[press](JaVaScRiPt:document.title='taken')",
    "[press](\tjava\nscript:document.title='taken')",
    "[press](data:text/html,<script>document.title='taken'</script>)",
    "[press](vbscript:x) [press](//elsewhere.example/x) [press](/v1/models)",
    "<javascript:document.title='taken'>",
    "![x](https://elsewhere.example/picture.png)",
    '[x](https://a.example/"onmouseover="document.title=`taken`)',
    "```html\n<script>document.title='taken'</script>\n```",
    "`<img src=x onerror=document.title='taken'>`",
    "| <script>document.title='taken'</script> |\n|---|\n| <iframe src='javascript:alert(1)'></iframe> |",
    "- <style>body{display:none}</style>\n> <form action=/><button>",
    "# <a href=javascript:alert(1)>x</a>",
    '**<b onclick=alert(1)>x</b>** <https://a.example/"><script>alert(1)</script>',
]


def draw(page: Any, text: str) -> str:
    """Draw Markdown with the page's own module; the HTML that came of it."""
    return page.evaluate(
        """async text => {
            const { renderMarkdown } = await import("/page/markdown.js");
            const node = document.createElement("div");
            renderMarkdown(node, text);
            return node.innerHTML;
        }""",
        text,
    )


def test_nothing_in_an_answer_becomes_markup_or_a_script(page: Any, live: Live) -> None:
    text = "\n\n".join(ATTACKS)
    # In pieces that cut every construct somewhere.
    pieces = [TextDelta(0, text[at : at + 7], 1) for at in range(0, len(text), 7)]
    live.play(*pieces, ChoiceEnd(0, "stop", len(pieces), Timings(first_token_s=0.1, generation_s=0.2)))
    write_and_send(page, "<img src=x onerror=\"document.title='taken'\">")
    seen = answer_text(page)
    # The whole of the attack can be read, as the text that it is.
    assert "<script>document.title='taken'</script>" in seen and "<iframe src='javascript:alert(1)'></iframe>" in seen
    assert page.title() != "taken"
    made = page.locator(".answer .markdown >> css=script, img, svg, iframe, style, form, object, input")
    assert made.count() == 0
    assert page.locator(".question .bubble *").count() == 0
    links = page.locator(".answer .markdown a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert links and all(link.startswith("https://") for link in links)
    names = page.locator(".answer .markdown *").evaluate_all("all => all.flatMap(one => one.getAttributeNames())")
    allowed = {"href", "target", "rel", "class", "scope", "start", "tabindex", "role", "aria-label", "type"}
    assert set(names) <= allowed
    rels = page.locator(".answer .markdown a").evaluate_all("all => all.map(one => one.rel)")
    assert all("noopener" in rel and "noreferrer" in rel for rel in rels)


def test_the_policy_itself_stops_markup(browser: Any, live: Live) -> None:
    harmless = ("This document requires 'Trusted",)  # what Chromium says of the two that are provoked
    with watched_page(browser, live.url, harmless) as page:
        thrown = page.evaluate("""() => {
            const ways = [
                () => { document.createElement("div")["inner" + "HTML"] = "<b>x</b>"; },
                () => document.createElement("a").setAttribute("onclick", "document.title = 'taken'"),
            ];
            return ways.map((way) => { try { way(); return "nothing"; } catch (error) { return error.name; } });
        }""")
        assert thrown == ["TypeError", "TypeError"]


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a\nb", "<p>a<br>b</p>"),
        ("**a** *b* ~~c~~ `d`", "<p><strong>a</strong> <em>b</em> <del>c</del> <code>d</code></p>"),
        ("***a***", "<p><strong><em>a</em></strong></p>"),
        ("snake_case_name 2*3*4 __a__ _b_", "<p>snake_case_name 2<em>3</em>4 <strong>a</strong> <em>b</em></p>"),
        ("**open and *open", "<p>**open and *open</p>"),
        (r"\*not\* \`code\` a\b", r"<p>*not* `code` a\b</p>"),
        ("``a ` b``", "<p><code>a ` b</code></p>"),
        ("# One\n###### Six\ntext", "<h3>One</h3><h6>Six</h6><p>text</p>"),
        ("- a\n- b\n  - c", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>"),
        ("- a\n\n1. x\n2. y", "<ul><li>a</li></ul><ol><li>x</li><li>y</li></ol>"),
        ("3) c\n4) d", '<ol start="3"><li>c</li><li>d</li></ol>'),
        ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
        ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
        ("x < y & z", "<p>x &lt; y &amp; z</p>"),
    ],
)  # fmt: skip
def test_what_markdown_becomes(page: Any, text: str, html: str) -> None:
    assert draw(page, text) == html


def test_tables_code_and_links(page: Any) -> None:
    table = draw(page, "| a | b |\n|:--|--:|\n| 1 | **2** |\n| 3 \\| 4 |")
    assert '<th class="to-start" scope="col">a</th><th class="to-end" scope="col">b</th>' in table
    assert '<td class="to-end"><strong>2</strong></td>' in table and "3 | 4" in table
    code = draw(page, "```python\nif a < b:\n    *x*\n")
    assert "<span>python</span>" in code and "if a &lt; b:\n    *x*" in code  # the fence may still be open
    link = draw(page, '[a *b*](https://x.example/p?q=1 "title") and https://y.example/z).')
    assert 'href="https://x.example/p?q=1"' in link and "a <em>b</em></a>" in link
    assert 'href="https://y.example/z"' in link and "</a>)." in link


@pytest.mark.parametrize("piece", ["*a ", "[", "`", "> ", "- ", "_a", "**", "](", "| a ", "<", "https://", "\n- "])
def test_hostile_repetition_takes_no_long_time(page: Any, piece: str) -> None:
    spent_ms = page.evaluate(
        """async text => {
            const { renderMarkdown } = await import("/page/markdown.js");
            const start = performance.now();
            renderMarkdown(document.createElement("div"), text);
            return performance.now() - start;
        }""",
        piece * 20_000,
    )
    assert spent_ms < 10_000  # seconds would mean square time: that would be minutes


def test_an_answer_that_grows_keeps_what_is_drawn(page: Any) -> None:
    kept = page.evaluate("""async () => {
        const { renderMarkdown } = await import("/page/markdown.js");
        const node = document.createElement("div");
        renderMarkdown(node, "first\\n\\nsecon");
        const first = node.firstChild;
        renderMarkdown(node, "first\\n\\nsecond\\n\\n- third");
        return [node.firstChild === first, node.textContent];
    }""")
    assert kept == [True, "firstsecondthird"]


def test_reasoning_is_folded_away(page: Any, live: Live) -> None:
    def chunk(delta: str, more: str = "null") -> str:
        return f'data: {{"id":"x","choices":[{{"index":0,"delta":{delta},"finish_reason":{more}}}]}}\n\n'

    body = chunk('{"reasoning_content":"Let me **think**."}') + chunk('{"content":"Done."}') + chunk("{}", '"stop"')
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body + "data: [DONE]\n\n", headers={"content-type": "text/event-stream"}),
    )
    write_and_send(page, "Hello")
    assert answer_text(page) == "Done."
    reasoning = page.locator(".reasoning")
    assert reasoning.get_attribute("open") is None and not reasoning.locator("strong").is_visible()
    reasoning.locator("summary").click()
    assert reasoning.locator(".markdown").inner_text() == "Let me think."
    until(page, "document.querySelector('.reasoning strong').textContent === 'think'")
