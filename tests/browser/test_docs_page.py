"""`/docs` in a browser: it shows the API, and asks nobody but the server for anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from serving import PATIENCE
from sluice.http.app import create_app
from sluice.http.base.backend import Backend
from sluice.http.edge.http_server import HttpServer
from sluice.http.edge.listening import listen

pytestmark = pytest.mark.slow
START_MS = 120_000.0
"""Swagger UI is a megabyte and a half of JavaScript, and the machine may be busy."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that needs a key, and whose model is loading for ever."""
    http = HttpServer.of(create_app(Backend(), api_keys={"sesame"}, hosts=set()))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(http.serve(sockets=[listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            http.should_exit = True
            thread.join(PATIENCE)


def test_the_page_shows_the_api_with_the_servers_own_files(browser: Browser, url: str) -> None:
    """A blank page: because the machine has no internet, or the policy forbids what the page needs."""
    page = browser.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(f"{url}/docs")
    operation = page.locator("#operations-default-post_v1_completions")
    expect(operation).to_contain_text("Continue prompts (OpenAI)", timeout=START_MS)
    operation.locator("button").first.click()
    expect(operation.locator(".opblock-body")).to_contain_text("max_tokens", timeout=START_MS)
    page.get_by_role("button", name="Authorize").first.wait_for(timeout=START_MS)
    assert complaints == []
    assert {each.partition("/docs")[0] for each in asked if not each.startswith("data:")} <= {
        url,
        f"{url}/openapi.json",
    }
    page.close()
