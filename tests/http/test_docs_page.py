"""`/docs`: a page whose parts all come from the server."""

from __future__ import annotations

import re

import pytest

from serving import run, serving

ELSEWHERE = re.compile(r"""(?:https?:)?//[\w.-]+|data:(?!,)""")


def test_the_page_names_no_other_site() -> None:
    """A machine without internet would show an empty page; one with it would tell a CDN who looks at what."""

    async def test() -> None:
        async with serving() as server:
            page = await server.http.get("/docs")
            assert page.status_code == 200
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
            parts = [name for name in named if name != "data:,"]
            assert len(parts) == 3
            for part in parts:
                answer = await server.http.get(f"/{part}")
                assert answer.status_code == 200, part
                kind = "text/css" if part.endswith(".css") else "text/javascript"
                assert answer.headers["content-type"].startswith(kind), "a browser would not use it"
            start = (await server.http.get("/docs/start.js")).text
            assert "openapi.json" in start
            assert ELSEWHERE.search(page.text) is ELSEWHERE.search(start) is None

    run(test)


def test_a_browser_is_told_to_load_nothing_from_elsewhere() -> None:
    """The page holds the key that a person enters: a script from elsewhere would read it."""

    async def test() -> None:
        async with serving() as server:
            for path in ("/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js"):
                answer = await server.http.get(path)
                policy = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
                assert policy["default-src"] == "'none'"
                assert policy["script-src"] == policy["connect-src"] == "'self'"
                assert policy["frame-ancestors"] == "'none'", "another site could show it and steer clicks"
                assert answer.headers["x-content-type-options"] == "nosniff"

    run(test)


@pytest.mark.parametrize("name", ["../swagger.html", "..%2f..%2fplugin.py", "swagger-ui-bundle.js.map", "x", ""])
def test_other_files_stay_where_they_are(name: str) -> None:
    """A name that climbs out of the folder reads any file of the machine."""

    async def test() -> None:
        async with serving() as server:
            answer = await server.http.get(f"/docs/{name}", follow_redirects=False)
            assert answer.status_code in (404, 307), "a path with a slash at its end is led to the page"
            assert len(answer.content) < 1000

    run(test)


def test_the_page_is_for_the_hosts_own_names() -> None:
    """No key is needed to read it; another site's name is refused all the same."""

    async def test() -> None:
        async with serving(api_keys={"sesame"}, hosts={"chat.example"}) as server:
            for path in ("/docs", "/docs/start.js", "/openapi.json"):
                assert (await server.http.get(path, headers={"host": "chat.example"})).status_code == 200
                assert (await server.http.get(path, headers={"host": "evil.example"})).status_code == 403

    run(test)
