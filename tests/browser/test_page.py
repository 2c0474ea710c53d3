"""The page at `/` in a browser, over a real server with the shadow model: by role and text, as people find things."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from benchmarks.shadow_server import server

KEY = "sesame"
STEP_MS = 4.0
MS = 60_000.0
"""For what takes a moment on a machine however busy."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that needs a key, with steps of a few milliseconds."""
    with server(STEP_MS, of_server={"api_key": KEY}) as (port, _):
        yield f"http://127.0.0.1:{port}"


class Opened:
    """A page, what it asked for, and what it complained about."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.set_default_timeout(MS)

    def say(self, text: str) -> Locator:
        """Send a message, and return its answer."""
        self.page.get_by_role("textbox", name="Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")
        return self.page.get_by_role("article", name="Answer").last

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)


@contextmanager
def opened(browser: Browser, url: str, *, key: str | None = KEY, **context: Any) -> Iterator[Opened]:
    made = browser.new_context(**context)
    if key is not None:
        made.add_init_script(f"localStorage.setItem('sluice.key', {json.dumps(json.dumps(key))})")
    found = Opened(made.new_page())
    found.page.goto(url)
    yield found
    made.close()


def complete(answer: Locator) -> str:
    """The text of an answer that is over."""
    expect(answer).to_contain_text("tokens/s", timeout=MS)
    expect(answer.get_by_role("button", name="Copy this answer")).to_be_visible(timeout=MS)
    return answer.locator(".text").inner_text()


def test_a_conversation(browser: Browser, url: str) -> None:
    """Type, read the answer, ask for another one, come back later: what a chat is."""
    with opened(browser, url) as here:
        page = here.page
        page.get_by_text("Settings").click()
        page.get_by_label("Most tokens").fill("40")
        page.get_by_label("Seed").fill("1")
        page.get_by_label("System prompt").fill("Be brief")
        page.get_by_text("Settings").click()
        expect(page.locator("#model")).to_have_text("shadow", timeout=MS)
        first = complete(here.say("hello there"))
        assert first.strip()
        expect(page.get_by_role("article", name="Answer")).to_contain_text("first token after")
        here.button("Regenerate").click()
        assert complete(page.get_by_role("article", name="Answer").last) == first, "the same seed"
        assert page.get_by_role("article", name="Answer").count() == 1
        page.reload()
        expect(page.get_by_role("article", name="Your message")).to_have_text("hello there", timeout=MS)
        assert page.get_by_role("article", name="Answer").locator(".text").inner_text() == first
        here.button("New conversation").click()
        expect(page.get_by_role("article")).to_have_count(0)
        here.button("hello there").click()
        expect(page.get_by_role("article")).to_have_count(2)
        assert here.complaints == []


def test_an_answer_is_stopped_and_what_was_written_stays(browser: Browser, url: str) -> None:
    with opened(browser, url) as here:
        answer = here.say("go on for a long time")
        expect(answer).to_contain_text("tokens/s", timeout=MS)
        here.button("Stop").click()
        expect(answer).to_contain_text("stopped")
        assert answer.locator(".text").inner_text().strip()
        expect(here.button("Send")).to_be_visible()


def test_a_key_is_asked_for_and_never_in_an_address(browser: Browser, url: str) -> None:
    """Addresses are in logs, histories and the Referer of other sites."""
    with opened(browser, url, key=None) as here:
        page = here.page
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_contain_text("needs an API key", timeout=MS)
        page.get_by_label("Key of this server").fill("wrong")
        here.button("Use this key").click()
        expect(dialog).to_be_visible(timeout=MS)
        page.get_by_label("Key of this server").fill(KEY)
        page.keyboard.press("Enter")
        expect(page.locator("#model")).to_have_text("shadow", timeout=MS)
        page.reload()
        expect(page.locator("#model")).to_have_text("shadow", timeout=MS)
        assert not dialog.is_visible()
        assert not [each for each in here.asked if KEY in each or "wrong" in each]
        assert {each.partition("?")[0].removeprefix(url)[:6] for each in here.asked} <= {
            "/",
            "/page/",
            "/v1/mo",
            "/v1/tr",
        }
        here.button("API key").click()
        here.button("Forget the key").click()
        expect(dialog).not_to_be_visible()
        assert page.evaluate("localStorage.getItem('sluice.key')") is None


RENDER = """async (text) => {
  const {markdown, GrowingMarkdown} = await import('/page/markdown.js');
  const whole = document.createElement('div'), grown = document.createElement('div');
  whole.append(markdown(text));
  const growing = new GrowingMarkdown(grown);
  for (let end = 1; end <= text.length; end++) growing.show(text.slice(0, end));
  return [whole.innerHTML, grown.innerHTML];
}"""
MARKDOWN = [
    ("a **b** and *c*", "<p>a <strong>b</strong> and <em>c</em></p>"),
    ("x_y_z 2*3*4 a * b * c", "<p>x_y_z 2<em>3</em>4 a * b * c</p>"),
    ("## T\n\nText", "<h4>T</h4><p>Text</p>"),
    ("- a\n- b\n  - c\n\n1. d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol><li>d</li></ol>"),
    ("3. a\n\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("> q\n> r\n\nx", "<blockquote><p>q\nr</p></blockquote><p>x</p>"),
    ("`<b>` and ``a`b``", "<p><code>&lt;b&gt;</code> and <code>a`b</code></p>"),
    ("\\*a\\*", "<p>*a*</p>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
]


@pytest.mark.parametrize(("text", "made"), MARKDOWN)
def test_markdown(browser: Browser, url: str, text: str, made: str, markdown_page: Page) -> None:
    assert markdown_page.evaluate(RENDER, text) == [made, made], "whole, and as it grew"


@pytest.fixture(scope="module")
def markdown_page(browser: Browser, url: str) -> Iterator[Page]:
    with opened(browser, url) as here:
        yield here.page


UNSAFE = """<img src=x onerror=alert(1)> <script>alert(1)</script>

![seen](https://evil.example/a.png) [run](javascript:alert(1)) [data](data:text/html,x) [here](/v1/models)

<https://a.example> https://b.example/c. [ok](https://c.example "t")

```html
<script>alert(2)</script>
```

| <b>a</b> | b |
|---|---|
| <i>c</i> | [x](vbscript:y) |
"""


def test_what_a_model_writes_is_never_run_or_loaded(browser: Browser, url: str, markdown_page: Page) -> None:
    """A model repeats what a site or a document told it to write."""
    script = """async (text) => {
      const {markdown} = await import('/page/markdown.js');
      document.querySelector('#messages').append(markdown(text));
      const nodes = [...document.querySelectorAll('#messages *')];
      return [[...new Set(nodes.map((node) => node.tagName))], nodes.filter((n) => n.href).map((n) => n.href),
        nodes.flatMap((n) => [...n.attributes].map((a) => a.name)).filter((name) => name.startsWith('on'))];
    }"""
    loaded: list[str] = []
    markdown_page.on("request", lambda request: loaded.append(request.url))
    tags, links, handlers = markdown_page.evaluate(script, UNSAFE)
    assert not {"IMG", "SCRIPT", "B", "I", "IFRAME", "STYLE"} & {*tags}
    assert links == ["https://evil.example/a.png", "https://a.example/", "https://b.example/c", "https://c.example/"]
    assert handlers == []
    assert loaded == []
    forbidden = "() => { document.createElement('div').innerHTML = '<b>x</b>'; }"
    with pytest.raises(Exception, match="TrustedHTML"):
        markdown_page.evaluate(forbidden)


def test_a_request_as_code(browser: Browser, url: str) -> None:
    """What is pasted must run, hold what was set, and not hold the key."""
    with opened(browser, url, permissions=["clipboard-read", "clipboard-write"]) as here:
        page = here.page
        page.get_by_text("Settings").click()
        page.get_by_label("Top k").fill("5")
        page.get_by_label("Temperature").fill("0.5")
        page.get_by_text("Settings").click()
        page.get_by_role("textbox", name="Message", exact=True).fill('it\'s "so"\n$HOME')
        copied = {}
        for name in ("curl", "Python"):
            here.button(f"Copy as {name}").click()
            expect(page.get_by_role("status")).to_have_text(f"Request as {name}: copied")
            copied[name] = str(page.evaluate("navigator.clipboard.readText()"))
            assert KEY not in copied[name]
        assert f"'{url}/v1/chat/completions'" in copied["curl"]
        body = json.loads(re.split(r"-d '", copied["curl"])[1][:-1].replace("'\\''", "'"))
        assert body["messages"] == [{"role": "user", "content": 'it\'s "so"\n$HOME'}]
        assert (body["temperature"], body["top_k"], body["stream"]) == (0.5, 5, True)
        compile(copied["Python"], "snippet", "exec")
        assert 'extra_body={"top_k": 5}' in copied["Python"]
