"""The page at `/`, as its files are served; `tests/browser/test_page.py` looks at it in a browser."""

from __future__ import annotations

import re

import pytest

from serving import run, serving
from sluice.http.observe.web_page import GREETING, page_files

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
ELSEWHERE = re.compile(r"""["'(]\s*(?:https?:)?//[\w.-]+""")


def test_a_browser_gets_the_page_and_other_clients_the_greeting() -> None:
    """Ollama's clients ask `/` whether there is a server."""

    async def test() -> None:
        async with serving(page=True) as server:
            page = await server.http.get("/", headers=BROWSER)
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert "<title>Sluice" in page.text
            for headers in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
                greeting = await server.http.get("/", headers=headers)
                assert (greeting.status_code, greeting.text) == (200, GREETING)
                assert greeting.headers["vary"] == "accept", "a cache would give one to the clients of the other"

    run(test)


def test_without_the_page_there_is_none() -> None:
    async def test() -> None:
        async with serving() as server:
            assert (await server.http.get("/", headers=BROWSER)).text == GREETING
            assert (await server.http.get("/page/main.js")).status_code == 404

    run(test)


def test_every_part_comes_from_the_server_and_loads_nothing_else() -> None:
    """A name that was misspelt, or a font from elsewhere: the page would be blank without internet."""

    async def test() -> None:
        async with serving(page=True, api_keys={"sesame"}) as server:
            page = await server.http.get("/", headers=BROWSER)
            named = set(re.findall(r'(?:src|href)="(page/[^"]+)"', page.text))
            seen = set()
            while named - seen:
                path = (named - seen).pop()
                seen.add(path)
                part = await server.http.get(f"/{path}")
                assert part.status_code == 200, path
                kind = "text/css" if path.endswith(".css") else "text/javascript"
                assert part.headers["content-type"].startswith(kind), "a browser would not use it"
                assert ELSEWHERE.search(part.text) is None, path
                named |= {f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', part.text)}
            assert {path.removeprefix("page/") for path in named} >= {
                name for name, file in page_files().items() if file.media_type == "text/javascript"
            }, "a file that is served and never used"

    run(test)


def test_a_browser_is_told_to_run_nothing_else() -> None:
    """The page holds the API key: a script from elsewhere, or one in an answer, would read it."""

    async def test() -> None:
        async with serving(page=True) as server:
            for path in ("/", "/page/main.js", "/page/page.css"):
                answer = await server.http.get(path, headers=BROWSER)
                rules = answer.headers["content-security-policy"].split("; ")
                policy = dict(rule.partition(" ")[::2] for rule in rules)
                assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
                assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
                assert policy["img-src"] == "'self' data:", "a picture of another site tells it who looks"
                assert policy["require-trusted-types-for"] == "'script'"
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["referrer-policy"] == "no-referrer"

    run(test)


def test_a_file_that_did_not_change_is_not_sent_again() -> None:
    async def test() -> None:
        async with serving(page=True) as server:
            first = await server.http.get("/page/main.js")
            again = await server.http.get("/page/main.js", headers={"if-none-match": first.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            other = await server.http.get("/page/main.js", headers={"if-none-match": '"other"'})
            assert other.content == first.content

    run(test)


@pytest.mark.parametrize("name", ["../page.py", "..%2fpage.py", "main.js.map", "__init__.py", "x"])
def test_other_files_stay_where_they_are(name: str) -> None:
    async def test() -> None:
        async with serving(page=True) as server:
            assert (await server.http.get(f"/page/{name}")).status_code == 404

    run(test)


def test_no_script_makes_markup_of_text() -> None:
    """What a model writes is untrusted. The policy forbids it, too, but not every browser knows that rule."""
    for name, file in page_files().items():
        if file.media_type == "text/javascript":
            text = file.content.decode()
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b", text), (
                name
            )
