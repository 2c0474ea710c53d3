"""Pages of other sites in a real browser: whether one sends what `tests/http/test_cross_site.py` says."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error

from serve_process import announced, server, shadow

pytestmark = pytest.mark.slow
ALLOWED, OTHER = "https://chat.example", "https://evil.example"
CALL = """
async ([url, type]) => {
  const asked = {method: 'POST', body: '{"prompt": "ab", "max_tokens": 2}'};
  if (type) asked.headers = {'Content-Type': type, 'Authorization': 'Bearer none'};
  try {
    const answer = await fetch(url + '/v1/completions', asked);
    return [answer.status, (await answer.json()).choices !== undefined];
  } catch (error) { return ['hidden', error.name]; }
}
"""


def test_only_an_allowed_page_reads_an_answer(browser: Browser, tmp_path: Path) -> None:
    """A browser asks before it sends JSON with a key, and shows the page no more than the answer allows."""
    with server(*shadow(0, tmp_path, allowed_origins=ALLOWED)) as process:
        url = announced(process).split()[2].partition("/v1/")[0]
        found = {}
        for site in (ALLOWED, OTHER):
            page = browser.new_page()
            with contextlib.suppress(Error):  # newer browsers ask their user before a page reaches this machine
                page.context.grant_permissions(["local-network-access"])
            page.route(f"{site}/**", lambda route: route.fulfill(body="<p>hi", content_type="text/html"))
            page.goto(f"{site}/")
            found[site] = [page.evaluate(CALL, [url, kind]) for kind in ("application/json", None)]
            page.close()
        own = browser.new_page()
        own.goto(f"{url}/version")
        assert own.evaluate(CALL, [url, "application/json"]) == [200, True], "a page of the server's own"
        own.close()
    assert found[ALLOWED] == [[200, True], [415, False]]
    assert found[OTHER] == [["hidden", "TypeError"], ["hidden", "TypeError"]]
