"""The page at `/` in a browser, over a real server with the shadow model: by role and text, as people find things."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from benchmarks.shadow_server import children_of, server
from browser.looking import CONTRAST, TIMEOUT_MS
from slow import slow
from sluice.types.scheduler_limits import Bound

KEY = "sesame"
STEP_MS = 4.0
CHUNK = 500
ENGINES: dict[str, int] = {}
"""Server processes by URL; each has started its engine."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that needs a key, with steps of a few milliseconds."""
    with server(STEP_MS, of_server={"api_key": KEY}, chunked_prefill_size=CHUNK) as (port, pid):
        ENGINES[f"http://127.0.0.1:{port}"] = pid
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
        page.set_default_timeout(TIMEOUT_MS)

    def say(self, text: str) -> Locator:
        """Send a message, and return its answer."""
        self.page.get_by_role("textbox", name="Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")
        return self.page.get_by_role("article", name="Answer").last

    def say_on(self, text: str) -> Locator:
        """The same; the answer goes on until it is stopped, whatever the model writes."""

        self.ask_for(ignore_eos=True)
        return self.say(text)

    def ask_for(self, **fields: Any) -> None:
        """Add these fields to what the page asks for."""

        def changed(route: Route) -> None:
            route.continue_(post_data={**(route.request.post_data_json or {}), **fields})

        self.page.route("**/v1/chat/completions", changed)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)


def answer(route: Route) -> None:
    """Answer a chat in the place of the server."""
    told = {"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]}
    route.fulfill(body=f"data: {json.dumps(told)}\n\n", content_type="text/event-stream")


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
    expect(answer).to_contain_text("first token after")
    expect(answer.get_by_role("button", name="Copy this answer")).to_be_visible()
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
        expect(page.locator("#model")).to_have_text("shadow")
        first = complete(here.say("hello there"))
        assert first.strip()
        expect(page.get_by_role("article", name="Answer")).to_contain_text("first token after")
        here.button("Regenerate").click()
        assert complete(page.get_by_role("article", name="Answer").last) == first, "the same seed"
        assert page.get_by_role("article", name="Answer").count() == 1
        page.reload()
        expect(page.get_by_role("article", name="Your message")).to_have_text("hello there")
        assert page.get_by_role("article", name="Answer").locator(".text").inner_text() == first
        here.button("New conversation").click()
        expect(page.get_by_role("article")).to_have_count(0)
        here.button("hello there").click()
        expect(page.get_by_role("article")).to_have_count(2)
        here.say_on("the last words")
        here.button("Delete the conversation hello there").click()
        expect(page.get_by_role("article")).to_have_count(0)
        page.reload()
        expect(here.button("hello there")).to_have_count(0)
        assert here.complaints == []


def test_an_answer_is_stopped_and_what_was_written_stays(browser: Browser, url: str) -> None:
    with opened(browser, url) as here:
        answer = here.say_on("go on for a long time")
        expect(answer).to_contain_text("tokens/s")
        here.button("Stop").click()
        expect(answer).to_contain_text("stopped")
        assert answer.locator(".text").inner_text().strip()
        expect(here.button("Send")).to_be_visible()


LEFT = """async () => {
  await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  const log = document.querySelector('#messages');
  return log.scrollHeight - log.clientHeight - log.scrollTop;
}"""
"""The pixels of the chat below what is seen of it."""


@pytest.mark.parametrize("width", [slow(1300), 390])
def test_the_end_of_an_answer_is_seen(browser: Browser, url: str, width: int) -> None:
    """What is added when an answer is over was cut off: its figures, the buttons below the chat, an error."""
    with opened(browser, url, viewport={"width": width, "height": 500}) as here:
        log = here.page.get_by_role("log", name="Messages")
        here.ask_for(max_tokens=150, ignore_eos=True)
        complete(here.say("a line\n" * 30))
        expect(here.button("Regenerate")).to_be_visible()
        assert log.evaluate("log => log.scrollHeight > 1.5 * log.clientHeight")
        assert here.page.evaluate(LEFT) < 1
        here.page.unroute("**/v1/chat/completions")
        failure = {"error": {"message": "no room " * 30}}
        here.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, json=failure))
        expect(here.say("more")).to_contain_text("no room")
        assert here.page.evaluate(LEFT) < 1


def test_one_who_reads_above_stays_there(browser: Browser, url: str) -> None:
    with opened(browser, url, viewport={"width": 1300, "height": 500}) as here:
        log = here.page.get_by_role("log", name="Messages")
        expect(here.say_on("a line\n" * 30)).to_contain_text("tokens/s")
        log.evaluate("log => { log.scrollTop = 0; }")
        here.page.evaluate(LEFT)
        here.button("Stop").click()
        expect(here.page.get_by_role("article", name="Answer")).to_contain_text("stopped")
        assert log.evaluate("log => log.scrollTop") == 0


def test_a_message_without_an_answer_is_not_sent_again(browser: Browser, url: str) -> None:
    """Many chat templates refuse two messages of the user in a row."""
    with opened(browser, url) as here:
        asked: list[list[str]] = []

        def tell(route: Route) -> None:
            body = route.request.post_data_json or {}
            asked.append([each["content"] for each in body["messages"]])
            if len(asked) == 1:
                route.fulfill(status=503, json={"error": {"message": "no room"}})
            else:
                answer(route)

        here.page.route("**/v1/chat/completions", tell)
        expect(here.say("one")).to_contain_text("no room")
        complete(here.say("two"))
        complete(here.say("three"))
        assert asked == [["one"], ["two"], ["two", "yes", "three"]]


def test_a_message_waits_until_the_model_is_loaded(browser: Browser, url: str) -> None:
    """It failed in red, and had to be typed again."""
    loading = "cannot serve requests: the model is loading: packing, 42%, 12 s so far, about 9 s left"
    refused = {"status": 503, "json": {"error": {"message": loading, "code": "service_unavailable"}}}
    with opened(browser, url) as here:
        is_loaded, asked = False, 0

        def tell(route: Route) -> None:
            nonlocal asked
            asked += 1
            answer(route) if is_loaded else route.fulfill(**refused)

        here.page.route("**/v1/models", lambda route: route.continue_() if is_loaded else route.fulfill(**refused))
        here.page.route("**/v1/chat/completions", tell)
        here.page.reload()
        shown = "loading: packing, 42%, 12 s so far, about 9 s left"
        expect(here.page.locator("#model")).to_have_text(shown)
        waiting = here.say("hello")
        expect(waiting).to_contain_text(f"waits: {shown}")
        here.button("Stop").click()
        expect(here.page.get_by_role("article", name="Answer")).to_contain_text("stopped")
        waiting = here.say("are you there?")
        expect(waiting).to_contain_text(f"waits: {shown}")
        is_loaded = True
        assert complete(here.page.get_by_role("article", name="Answer").last) == "yes"
        expect(here.page.locator("#model")).to_have_text("shadow")
        assert here.page.get_by_role("alert").count() == 0
        assert asked > 2


def test_two_tabs_keep_the_conversations_of_both(browser: Browser, url: str) -> None:
    """The tab that was written to last overwrote what the other one had kept."""
    with opened(browser, url) as here:
        other, held = Opened(here.page.context.new_page()), list[Route]()
        other.page.goto(url)
        here.page.route("**/v1/chat/completions", answer)
        other.page.route("**/v1/chat/completions", answer)
        complete(here.say("one"))
        complete(other.say("two"))
        for tab in (here, other):
            expect(tab.button("one")).to_be_visible()
            expect(tab.button("two")).to_be_visible()
        here.button("two").click()
        complete(here.say("three"))
        expect(other.page.get_by_role("article")).to_have_count(4)
        other.page.route("**/v1/chat/completions", lambda route: held.append(route))
        with other.page.expect_request("**/v1/chat/completions"):
            other.say("four")
        expect(here.page.get_by_role("article")).to_have_count(5)
        complete(here.say("five"))
        answer(held[0])
        for tab in (here, other):
            expect(tab.button("two")).to_have_count(2)
        texts = [tab.page.get_by_role("article", name="Your message").all_inner_texts() for tab in (here, other)]
        assert texts == [["two", "three", "four", "five"], ["two", "three", "four"]], "both were continued at once"
        here.button("Delete the conversation one").click()
        expect(other.button("one")).to_have_count(0)


def test_a_key_that_was_given_is_not_asked_for_again(browser: Browser, url: str) -> None:
    """A refusal of a request that was sent before the key was given opened the dialog again."""
    with opened(browser, url, key=None) as here:
        page, late = here.page, list[Route]()
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_be_visible()
        page.route("**/v1/models", lambda route: route.continue_() if late else late.append(route))
        page.reload()
        expect(dialog).to_be_visible()
        page.get_by_label("Key of this server").fill(KEY)
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").first).to_contain_text("live")
        late[0].continue_()
        expect(page.locator("#model")).to_have_text("shadow")
        assert not dialog.is_visible()


def test_a_key_is_asked_for_and_never_in_an_address(browser: Browser, url: str) -> None:
    """Addresses are in logs, histories and the Referer of other sites."""
    with opened(browser, url, key=None) as here:
        page = here.page
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_contain_text("needs an API key")
        page.get_by_label("Key of this server").fill("wrong")
        here.button("Use this key").click()
        expect(dialog).to_be_visible()
        page.get_by_label("Key of this server").fill(KEY)
        page.keyboard.press("Enter")
        expect(page.locator("#model")).to_have_text("shadow")
        page.reload()
        expect(page.locator("#model")).to_have_text("shadow")
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


NOTE_LABELS = """(node) => {
  window.labels = [];
  new MutationObserver(() => window.labels.push(node.textContent)).observe(node, {childList: true});
}"""
"""Keep what a button says."""


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
            here.button(f"Copy as {name}").evaluate(NOTE_LABELS)
            here.button(f"Copy as {name}").click()
            expect(page.locator("#announcer")).to_have_text(f"Request as {name}: copied")
            assert page.evaluate("window.labels[0]") == "Copied"
            expect(here.button(f"Copy as {name}")).to_be_visible()
            copied[name] = str(page.evaluate("navigator.clipboard.readText()"))
            assert KEY not in copied[name]
        assert f"'{url}/v1/chat/completions'" in copied["curl"]
        body = json.loads(re.split(r"-d '", copied["curl"])[1][:-1].replace("'\\''", "'"))
        assert body["messages"] == [{"role": "user", "content": 'it\'s "so"\n$HOME'}]
        assert (body["temperature"], body["top_k"], body["stream"]) == (0.5, 5, True)
        compile(copied["Python"], "snippet", "exec")
        assert 'extra_body={"top_k": 5}' in copied["Python"]


REFUSE = """() => {
  const refuse = () => Promise.reject(new DOMException('no', 'NotAllowedError'));
  Object.defineProperty(navigator, 'clipboard', {value: {writeText: refuse}});
}"""


def test_a_clipboard_that_is_refused_is_told(browser: Browser, url: str) -> None:
    """A button that did nothing that one could see."""
    with opened(browser, url) as here:
        page = here.page
        page.evaluate(REFUSE)
        here.ask_for(max_tokens=5, ignore_eos=True)
        complete(here.say("hello"))
        here.button("Copy as curl").evaluate(NOTE_LABELS)
        here.button("Copy as curl").click()
        dialog = page.get_by_role("dialog", name="Request as curl")
        expect(dialog).to_contain_text("refused the clipboard")
        expect(dialog.get_by_role("textbox")).to_have_value(re.compile("^curl -N"))
        assert page.evaluate("window.labels[0]") == "Not copied"
        dialog.get_by_role("button", name="Close").click()
        expect(here.button("Copy as curl")).to_be_visible()


def test_one_sees_what_the_server_does_with_a_request(browser: Browser, url: str) -> None:
    with opened(browser, url) as here:
        page = here.page
        expect(page.locator("#trace-state")).to_have_text("live")
        page.get_by_text("Settings").click()
        page.get_by_label("Most tokens").fill("40")
        page.get_by_text("Settings").click()
        complete(here.say_on("hello timeline"))
        page.get_by_text("Requests as a table").click()
        row = page.get_by_role("table", name="Requests").get_by_role("row").filter(has_text="(yours)")
        expect(row).to_contain_text("length")
        heads = page.get_by_role("table", name="Requests").get_by_role("columnheader").all_inner_texts()
        cells = dict(zip(heads, row.locator("th, td").all_inner_texts(), strict=True))
        assert (cells["Output"], cells["Chunks"]) == ("40", "1")
        assert cells["First token"].endswith("s")
        assert cells["Between tokens"].endswith("ms")
        expect(page.locator("#pool")).to_contain_text("cached")
        until_drawn(page, "#timeline", "decode")
        assert here.complaints == []


def test_the_words_of_the_timeline_are_explained(browser: Browser, url: str) -> None:
    """By the keyboard, and on a phone, where nothing can be pointed at; every limit that the engine may name."""
    with opened(browser, url, viewport={"width": 390, "height": 800}) as here:
        page = here.page
        here.button("Timeline").click()
        words = page.get_by_text("What do these words mean?")
        words.focus()
        page.keyboard.press("Enter")
        for word in ("step, steps/s", "offloaded context", "prompt began in the cache", "device, host, disk"):
            expect(page.get_by_role("term").filter(has_text=word)).to_be_visible()
        known = page.locator("#limit-words").get_by_role("term").all_inner_texts()
        assert known == ["no limit", *(bound.value for bound in Bound if bound is not Bound.NOTHING)]
        expect(page.get_by_text("The step held all that there was to do.")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        here.button("Chat").click()
        here.ask_for(max_tokens=3)
        complete(here.say("hello"))
        here.button("Timeline").click()
        shown = page.get_by_role("list", name="Limits of the steps").get_by_role("listitem").filter(has_text="no limit")
        expect(shown).to_have_attribute("title", "The step held all that there was to do.")


def until_drawn(page: Page, canvas: str, colour: str) -> None:
    """Wait until a colour is seen, as the timeline lags behind; 600 frames are ten seconds."""
    for _ in range(600):
        if drawn_pixels(page, canvas, colour) > 5:
            return
        page.evaluate("new Promise(requestAnimationFrame)")
    raise AssertionError(f"nothing on {canvas} is drawn in the colour {colour}")


def drawn_pixels(page: Page, canvas: str, colour: str) -> int:
    """How many pixels of a canvas have one of the page's colours."""
    script = """([selector, name]) => {
      const canvas = document.querySelector(selector), probe = document.createElement('span');
      probe.style.color = getComputedStyle(canvas).getPropertyValue('--' + name);
      canvas.parentElement.append(probe);
      const [r, g, b] = getComputedStyle(probe).color.match(/[0-9]+/g).map(Number);
      probe.remove();
      const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      let found = 0;
      for (let at = 0; at < data.length; at += 4)
        found += data[at + 3] > 60
          && Math.abs(data[at] - r) + Math.abs(data[at + 1] - g) + Math.abs(data[at + 2] - b) < 30;
      return found;
    }"""
    return int(page.evaluate(script, [canvas, colour]))


def test_a_long_prompt_is_sent_and_no_stream_stops(browser: Browser, url: str) -> None:
    with opened(browser, url) as here:
        page = here.page
        expect(page.locator("#trace-state")).to_have_text("live")
        here.button("Send a long prompt now").click()
        said = page.locator("#long-result")
        expect(said).to_contain_text("tokens were read in")
        expect(said).to_have_text(
            re.compile(r"before the prompt up to [0-9.]+ m?s, while it was read up to [0-9.]+ m?s")
        )
        told = re.match(r"([0-9,]+) tokens were read in .*, in ([0-9]+) chunks?", said.inner_text())
        assert told is not None
        tokens, chunks = (int(number.replace(",", "")) for number in told.groups())
        assert tokens // CHUNK <= chunks <= tokens // CHUNK + 2
        expect(page.locator("#bounds")).to_contain_text("chunked_prefill_size")
        assert here.complaints == []


VERDICT = """async ([gaps, arrived, firstToken]) => {
  const {verdictOf} = await import('/page/experiment.js');
  const request = {arrived, firstToken}, other = {};
  const watched = gaps.map(([from, to]) => ({request: other, from, to}));
  return verdictOf([...watched, {request, from: 0, to: 9000000}], request);
}"""
BUSY = "The machine is busy, or slow for this model: the streams were slow before the prompt, too."
VERDICTS = [
    ([(0, 40_000), (90_000, 190_000)], "before the prompt up to 40 ms, while it was read up to 100 ms."),
    ([(0, 90_000), (350_000, 900_000)], "before the prompt up to 90 ms."),
    ([(50_000, 150_000)], "while it was read up to 100 ms."),
]


@pytest.mark.parametrize(("gaps", "said"), VERDICTS)
def test_the_streams_before_the_prompt_are_told_apart(markdown_page: Page, gaps: Any, said: str) -> None:
    """On a busy machine they were as slow before. The prompt comes at 100 ms, its first token at 300 ms."""
    found = markdown_page.evaluate(VERDICT, [gaps, 100_000, 300_000])
    assert found == f"The longest that a stream stood still: {said}"


def test_a_slow_chunk_is_named_with_the_option(markdown_page: Page) -> None:
    """Streams that stand still for seconds, without a word why, look broken."""
    advice = "The option --itl-target auto lets the server cut shorter ones."
    assert markdown_page.evaluate(VERDICT, [[(150_000, 750_000)], 100_000, 800_000]).endswith(advice)
    assert advice not in markdown_page.evaluate(VERDICT, [[(150_000, 550_000)], 100_000, 800_000])


@pytest.mark.parametrize(("milliseconds", "tokens"), [(50, 4000), (400, 3200), (1000, 1300), (4000, 500)])
def test_the_prompt_is_read_in_ten_seconds(markdown_page: Page, milliseconds: int, tokens: int) -> None:
    """On a slow machine 4,000 tokens took minutes. 128 tokens took these milliseconds."""
    script = "async (took) => (await import('/page/experiment.js')).lengthFor(took)"
    assert markdown_page.evaluate(script, milliseconds) == tokens


def test_a_busy_machine_is_named(markdown_page: Page) -> None:
    gaps = [(0, 300_000), (300_000, 600_000)]
    assert markdown_page.evaluate(VERDICT, [gaps, 400_000, 500_000]).endswith(f"up to 300 ms. {BUSY}")
    assert BUSY not in markdown_page.evaluate(VERDICT, [[(0, 200_000)], 400_000, 500_000])
    assert markdown_page.evaluate(VERDICT, [[], 0, 1]) == "No stream ran beside it."


AXIS = """() => {
  window.labels = [];
  const said = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const {a: ratio, e: left} = this.getTransform();
    const end = left + ratio * (x + this.measureText(text).width);
    if (this.canvas.id === 'recorded' && text.endsWith(' s')) window.labels.push([text, end <= this.canvas.width]);
    said.call(this, text, x, y);
  };
}"""
"""Keep the labels of the recorded run's axis, and whether they end inside of it."""


def test_a_recorded_run_is_beside_it(browser: Browser, url: str) -> None:
    """Its axis began at -9 s, its last label was cut off, and its seconds looked as if they were of this machine."""
    with opened(browser, url) as here:
        page = here.page
        told = page.locator("#recorded-result")
        expect(told).to_contain_text("1,500 tokens were read in one piece")
        expect(told).to_contain_text("recorded on another machine")
        picture = page.get_by_role("img", name="Recorded: the same without chunks")
        heading = page.get_by_role("heading", name="Recorded: the same without chunks")
        tops = [each.bounding_box() for each in (heading, picture)]
        assert tops[0] is not None
        assert tops[1] is not None
        assert tops[0]["y"] + tops[0]["height"] <= tops[1]["y"]
        until_drawn(page, "#recorded", "prefill")
        page.evaluate(AXIS)
        here.button("Play the recorded run").click()
        for _ in range(600):
            if len(labels := page.evaluate("window.labels")) >= 20:
                break
            page.evaluate("new Promise(requestAnimationFrame)")
        assert {*map(tuple, labels)} == {(f"{second} s", True) for second in range(10)}, "from the first frame on"


GAPS = """async () => {
  const {Run} = await import('/page/run.js');
  const marks = [], run = new Run((mark) => marks.push(mark));
  const pool = {running: 2, waiting: 0, free_pages: 1, cached_pages: 0, total_pages: 9, preemptions: 0, tiers: []};
  const step = (step, began, micros, more) =>
    ({step, began, micros, known: began + micros, bound_by: 'nothing', ...more});
  const steps = (...steps) => run.take({kind: 'steps', now: steps.at(-1).known, steps, pool});
  run.take({kind: 'hello', now: 0, is_serving: true, page_size: 16, requests: [{id: 1, arrived: 0, prompt_tokens: 8}]});
  steps(step(1, 0, 20000, {admitted: [1], chunks: [{id: 1, start: 2, length: 6, samples: true}]}),
        step(2, 20000, 20000, {decodes: [1]}), step(3, 40000, 20000, {}));
  run.take({kind: 'requests', now: 60000, arrived: [{id: 2, arrived: 55000, prompt_tokens: 4000}], ended: []});
  steps(step(4, 60000, 900000, {decodes: [1], admitted: [2], chunks: [{id: 2, start: 0, length: 4000, samples: true}]}),
        step(5, 960000, 20000, {decodes: [1, 2]}));
  run.take({kind: 'engine', now: 980000, is_serving: false});
  run.take({kind: 'engine', now: 2900000, is_serving: true});
  steps(step(1, 2950000, 50000, {admitted: [1, 2], chunks: [{id: 1, start: 0, length: 13, samples: true}]}));
  run.take({kind: 'requests', now: 3000000, arrived: [],
            ended: [{id: 1, at: 3000000, reason: 'length', output_tokens: 6, cached_tokens: 2}]});
  steps(step(2, 3000000, 20000, {decodes: [1, 2]}));
  const request = run.requests.get(1);
  return {gaps: run.gaps.map((gap) => [gap.request.id, gap.micros, gap.why]), output: request.outputTokens,
          cached: request.cachedTokens, state: request.state, open: run.open.map(({id}) => id),
          marks: [...new Set(marks.map(({kind}) => kind))].sort()};
}"""


def test_a_stream_that_stood_still_is_found_and_explained(markdown_page: Page) -> None:
    found = markdown_page.evaluate(GAPS)
    first, second = (gap for gap in found["gaps"] if gap[0] == 1)
    assert first[:2] == [1, 900_000]
    assert "step 4 took 900 ms of it: read 4,000 tokens of request 2, 1 decode" in first[2]
    assert second[1] == 2_020_000
    assert "the engine ended, and another one was started" in second[2]
    assert "computed nothing" in second[2]
    assert "preempted" not in second[2]
    assert (found["output"], found["cached"], found["state"], found["open"]) == (6, 2, "length", [2])
    assert found["marks"] == ["end", "gap", "prefill", "step", "wait"]


def test_the_trace_is_taken_up_again(browser: Browser, url: str) -> None:
    """A server that was restarted, or a proxy that closes connections after a while."""
    with opened(browser, url) as here:
        calls: list[str] = []

        def answer(route: Route) -> None:
            calls.append(route.request.url)
            if len(calls) == 1:
                route.abort()
            elif len(calls) == 2:
                route.fulfill(status=502, body="no server")
            else:
                route.continue_()

        here.page.route("**/v1/trace", answer)
        here.page.reload()
        expect(here.page.locator("#trace-state")).to_have_text("live")
        assert calls == [f"{url}/v1/trace"] * 3


OWN = """async () => {
  const {Run} = await import('/page/run.js');
  const run = new Run(), hello = (now) =>
    run.take({kind: 'hello', now, is_serving: true, page_size: 16, requests: [{id: 1, arrived: 0, prompt_tokens: 8}]});
  hello(1000);
  run.markOwn(1);
  return [2000, 500].map((now) => { hello(now); return run.requests.get(1).isOwn; });
}"""
GUESSED = """async () => {
  const {Run} = await import('/page/run.js');
  const run = new Run(), arrive = (...requests) => run.take({kind: 'requests', now: 9000, ended: [],
    arrived: requests.map(([id, arrived]) => ({id, arrived, prompt_tokens: 8}))});
  const own = () => [...run.requests.values()].filter(({isOwn}) => isOwn).map(({id}) => id);
  run.take({kind: 'hello', now: 0, is_serving: true, page_size: 16, requests: []});
  const first = run.expectOwn(1000), second = run.expectOwn(1000);
  arrive([1, 900], [2, 1100], [3, 1200], [4, 1300]);
  const guessed = own();
  first(2);
  second(4);
  first(null);
  const refused = run.expectOwn(2000);
  arrive([5, 2100]);
  const seen = [guessed, own()];
  refused(null);
  return [...seen, own()];
}"""


def test_a_request_is_ones_own_before_its_first_token(markdown_page: Page) -> None:
    """Its number comes with the token, and its lane was another's until then. A wrong guess is taken back."""
    assert markdown_page.evaluate(GUESSED) == [[2, 3], [2, 4, 5], [2, 4]]


LANES = """async () => {
  const {Lanes} = await import('/page/lanes.js');
  const lanes = new Lanes(4), made = (id, arrived, end = null) =>
    ({id, arrived, lastSeen: arrived, lane: null, end: end === null ? null : {at: end}});
  const place = (...requests) => requests.forEach((request) => lanes.place(request, 0));
  const seen = [], note = () => seen.push([lanes.requests.map(({id, lane}) => [id, lane]).flat(), lanes.count]);
  const late = made(1, 10), gone = made(2, 20, 90), third = made(3, 30), full = made(5, 50);
  place(gone, third, late, made(4, 40, 300), full);
  note();
  seen.push([lanes.arrange(0), full.lane, lanes.arrange(0)]);
  note();
  seen.push([lanes.arrange(100), gone.lane]);
  lanes.place(gone, 100);
  lanes.place(full, 100);
  note();
  full.end = third.end = {at: 110};
  lanes.arrange(200);
  note();
  return seen;
}"""


def test_lanes_are_in_order_and_without_holes(markdown_page: Page) -> None:
    assert markdown_page.evaluate(LANES) == [
        [[2, 0, 3, 1, 1, 2, 4, 3], 4],
        [True, None, False],
        [[1, 0, 2, 1, 3, 2, 4, 3], 4],
        [True, None],
        [[1, 0, 3, 1, 4, 2, 5, 3], 4],
        [[1, 0, 4, 1], 2],
    ]


NAMES = """() => {
  window.names = [];
  const said = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (this.canvas.id === 'timeline' && text.includes('request')) {
      const end = this.getTransform().e + this.getTransform().a * (x + this.measureText(text).width);
      window.names.push([text, Math.ceil(end)]);
    }
    said.call(this, text, x, y);
  };
  const drawn = CanvasRenderingContext2D.prototype.drawImage;
  CanvasRenderingContext2D.prototype.drawImage = function (...given) {
    if (this.canvas.id === 'timeline') window.left = this.getTransform().e;
    drawn.apply(this, given);
  };
}"""
"""Keep the names on the timeline with where they end, and where the drawing begins."""


@pytest.mark.parametrize(("width", "name"), [(1600, r"you: request \d+, \d+ tokens"), (390, r"you: request \d+")])
def test_a_lane_has_a_name_beside_what_is_drawn(browser: Browser, url: str, width: int, name: str) -> None:
    """Names lay upon the first seconds of the drawing, and were numbers that nobody understood."""
    with opened(browser, url, viewport={"width": width, "height": 900}) as here:
        page = here.page
        expect(page.locator("#trace-state")).to_have_text("live")
        page.evaluate(NAMES)
        here.ask_for(max_tokens=20, ignore_eos=True)
        complete(here.say("hello"))
        if width < 800:
            here.button("Timeline").click()
        until_drawn(page, "#timeline", "decode")
        names, left = page.evaluate("[window.names, window.left]")
        own = {text for text, _ in names if text.startswith("you")}
        assert own
        assert all(re.fullmatch(name, text) for text in own)
        assert max(end for _, end in names) <= left


def test_requests_of_another_server_are_not_ones_own(markdown_page: Page) -> None:
    """Its clock and its numbers begin anew; those of a server whose trace was taken up again do not."""
    assert markdown_page.evaluate(OWN) == [True, False]


RESUMED = """async () => {
  const {Run} = await import('/page/run.js');
  const marks = [], run = new Run((mark) => marks.push(mark));
  const hello = (server, now, ...requests) =>
    run.take({kind: 'hello', server, now, is_serving: true, page_size: 16, requests});
  const pool = {running: 2, waiting: 0, free_pages: 1, cached_pages: 0, total_pages: 9, preemptions: 0, tiers: []};
  const step = (step, began, decodes) => run.take({kind: 'steps', now: began + 20000, pool,
    steps: [{step, began, micros: 20000, known: began + 20000, bound_by: 'nothing', decodes}]});
  hello('a', 0, {id: 1, arrived: 0, prompt_tokens: 8}, {id: 2, arrived: 0, prompt_tokens: 8});
  step(1, 0, [1, 2]);
  step(2, 20000, [1, 2]);
  hello('a', 9000000, {id: 1, arrived: 0, prompt_tokens: 8, output_tokens: 300},
        {id: 3, arrived: 5000000, prompt_tokens: 4, output_tokens: 9});
  step(400, 9000000, [1, 3]);
  step(401, 9020000, [1, 3]);
  const requests = [1, 2, 3].map((id) => run.requests.get(id));
  const seen = [run.gaps.length, run.steps.length, ...['state', 'firstToken', 'outputTokens'].map(
    (name) => requests.map((request) => request[name])), marks.filter(({kind}) => kind === 'unseen')
    .map(({from, to}) => [from, to])];
  hello('b', 9100000);
  return [seen, run.requests.size, run.steps.length];
}"""


def test_a_trace_that_was_not_read_for_a_while_goes_on(markdown_page: Page) -> None:
    """A page that was hidden began its timeline anew; and the time in which it saw nothing is no gap of a stream."""
    states, firsts, outputs = ["streams", "ended unseen", "streams"], [20_000, 20_000, None], [302, 2, 11]
    seen = [0, 4, states, firsts, outputs, [[40_000, 9_000_000]]]
    assert markdown_page.evaluate(RESUMED) == [seen, 0, 0], "and that of another server begins anew"


SHOW = """(isShown) => {
  Object.defineProperty(document, 'hidden', {value: !isShown, configurable: true});
  document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_a_hidden_page_does_not_read_the_trace(browser: Browser, url: str) -> None:
    """A browser opens six connections to a server: hidden pages took them all. Shown again, it goes on where it was."""
    with opened(browser, url) as here:
        page, state = here.page, here.page.locator("#trace-state")
        expect(state).to_have_text("live")
        here.ask_for(max_tokens=3)
        complete(here.say("hello"))
        page.get_by_text("Requests as a table").click()
        row = page.get_by_role("table", name="Requests").get_by_role("row").filter(has_text="(yours)")
        expect(row).to_contain_text("length")
        with page.expect_event("requestfailed", lambda request: request.url.endswith("/v1/trace")):
            page.evaluate(SHOW, False)
        expect(state).to_have_text("not read while this page is hidden")
        with page.expect_request("**/v1/trace"):
            page.evaluate(SHOW, True)
        expect(state).to_have_text("live")
        expect(row).to_be_visible()
        assert here.complaints == []


STEPS = [
    {"chunks": [{"id": 1, "start": 0, "length": 9, "samples": True}], "decodes": []},
    {"decodes": [1, 2], "counts": {1: 17, 2: 0}},
    {"decodes": [1, 2], "counts": {1: 30}},
    {"decodes": [2]},
    {"decodes": [1, 2], "failed": True},
]
"""They bring 50 tokens."""


def test_tokens_are_counted_and_not_rows(browser: Browser, url: str) -> None:
    """A step brings several tokens of a request where guesses were right, and none if it fails."""
    times = [{"step": n, "began": n * 10_000, "micros": 9_000, "known": n * 10_000 + 9_000} for n in range(len(STEPS))]
    steps = [{**time, "bound_by": "nothing", **step} for time, step in zip(times, STEPS, strict=True)]
    pool = {"running": 2, "waiting": 0, "free_pages": 1, "cached_pages": 0, "total_pages": 9, "tiers": []}
    told = [
        {"kind": "hello", "now": 0, "is_serving": True, "page_size": 16, "requests": []},
        {"kind": "steps", "now": 100_000, "steps": steps, "pool": pool},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in told)
    with opened(browser, url) as here:
        here.page.route("**/v1/trace", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
        here.page.reload()
        expect(here.page.locator("#fact-written")).to_have_text("10")


PACE = """async (times) => {
  const {Pace} = await import('/page/pace.js');
  const pace = new Pace();
  pace.begin(0);
  for (const time of times) pace.token(time);
  return pace.shown();
}"""


def test_the_rate_leaves_the_first_burst_out(markdown_page: Page) -> None:
    """Its tokens took the time to the first token, which the rate does not count."""
    assert "6 tokens · 5.0 tokens/s" in markdown_page.evaluate(PACE, [100, 100.2, 100.4, 300, 500, 700.0])
    assert "tokens/s" not in markdown_page.evaluate(PACE, [100, 100.2, 100.4])


def test_tokens_that_arrive_together_are_one_arrival(markdown_page: Page) -> None:
    """A browser reads several at once: most times between them were 0.0 ms, and the rate was that of an instant."""
    bursts = [at + 0.1 * token for at in range(100, 1100, 40) for token in range(5)]
    told = "first token after 100 ms · 125 tokens · 125.0 tokens/s · between tokens 40 ms in the median, 40 ms at most"
    assert markdown_page.evaluate(PACE, bursts) == told


def test_a_short_answer_has_no_rate_and_no_median(markdown_page: Page) -> None:
    few = [at + 0.1 * token for at in (100, 115) for token in range(5)]
    told = "first token after 100 ms · 10 tokens · between tokens 15 ms at most"
    assert markdown_page.evaluate(PACE, few) == told
    assert markdown_page.evaluate(PACE, [100]) == "first token after 100 ms · 1 token"


def test_a_fast_stream_is_not_one_arrival(markdown_page: Page) -> None:
    """Each of its tokens comes together with the one before."""
    fast = [100 + 0.5 * token for token in range(2000)]
    told = "2000 tokens · 2000.0 tokens/s · between tokens 20 ms in the median, 20 ms at most"
    assert markdown_page.evaluate(PACE, fast).endswith(told)


@pytest.mark.parametrize("scheme", ["light", slow("dark")])
def test_it_can_be_read_on_a_phone(browser: Browser, url: str, scheme: Any) -> None:
    """Pages that scroll sideways, and grey on grey. 4.5 is what WCAG asks of text."""
    with opened(browser, url, viewport={"width": 390, "height": 800}, color_scheme=scheme) as here:
        page = here.page
        page.get_by_text("Settings").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for text in ("#model", "#send", "#prompt", "#settings label"):
            assert page.evaluate(CONTRAST, text) >= 4.5, text
        here.button("Timeline").click()
        expect(page.get_by_role("heading", name="Live timeline")).to_be_visible()
        expect(page.locator("#chat")).not_to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for text in ("#live .quiet", ".legend li", "#send-long", "#recorded-result", ".facts-now dt"):
            assert page.evaluate(CONTRAST, text) >= 4.5, text


NOTE_STATES = """() => {
  const state = document.querySelector('#trace-state');
  window.states = [];
  const note = (changes) => changes.forEach((each) => window.states.push(...each.addedNodes));
  new MutationObserver(note).observe(state, { childList: true });
}"""
"""Keep what the page says about the engine."""


@pytest.mark.slow
def test_an_answer_goes_on_when_the_engine_dies(browser: Browser, url: str) -> None:
    """The last test of the module: another engine takes some seconds to start."""
    with opened(browser, url) as here:
        page = here.page
        expect(page.locator("#trace-state")).to_have_text("live")
        answer = here.say_on("tell me a very long story")
        expect(answer).to_contain_text("tokens/s")
        page.evaluate(NOTE_STATES)  # the next engine may be there before one looks
        for pid in children_of(ENGINES[url]):
            os.kill(pid, signal.SIGKILL)
        expect(page.locator("#gaps")).to_contain_text("the engine ended, and another one was started")
        expect(page.locator("#trace-state")).to_have_text("live")
        assert "there is no engine at the moment" in page.evaluate("window.states.map((node) => node.textContent)")
        before = answer.locator(".text").inner_text()
        expect(answer.locator(".text")).not_to_have_text(before)
        here.button("Stop").click()
        assert len(answer.locator(".text").inner_text()) > len(before)
