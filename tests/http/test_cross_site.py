"""Pages of other sites: a browser sends some of their requests before it asks, and hides only the answers from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from serving import run, serving
from sluice.config import ConfigError, ServerConfig
from sluice.http.base.options import check_server
from sluice.http.base.origins import Origins, allowed_origins
from sluice.http.edge.hosts import answered_names

LOOPBACK = "127.0.0.1"
PAGE = "https://chat.example"
JSON = {"content-type": "application/json"}
BODY = {"prompt": "ab", "max_tokens": 1}
OWN_PAGES = [
    "http://localhost",
    "https://localhost:3000",
    "http://a.localhost",
    "http://127.0.0.1:5000",
    "http://[::1]",
]
OTHER_PAGES = [
    *("null", "", "http://", "https://evil.example", "http://evil.example:8000", "http://localhost.evil.example"),
    *("http://203.0.113.7", "http://[2001:db8::7]", "localhost", "http://localhost@evil.example", "file://"),
]


def names(address: str = LOOPBACK, **options: str) -> frozenset[str] | None:
    return answered_names(ServerConfig(**options), address)


def origins(given: str) -> Origins:
    return allowed_origins(ServerConfig(allowed_origins=given))


def answers(
    *requests: Mapping[str, str], method: str = "POST", path: str = "/flush_cache", **options: Any
) -> list[httpx.Response]:
    """The answers to requests with these headers."""
    found: list[httpx.Response] = []

    async def test() -> None:
        async with serving(**options) as one:
            for headers in requests:
                content = b'{"prompt": "ab", "max_tokens": 1}' if method == "POST" else None
                found.append(await one.http.request(method, path, headers={**headers}, content=content))

    run(test)
    return found


def test_a_page_that_is_allowed_may_delete() -> None:
    """Browsers ask before they send a DELETE, which has no content type."""
    allowed, other = {"origin": PAGE}, {"origin": "https://evil.example"}
    asked = {**allowed, "access-control-request-method": "DELETE"}
    path = "/v1/responses/resp_1"
    found = answers(allowed, other, method="DELETE", path=path, origins=origins(PAGE))
    assert [answer.status_code for answer in found] == [404, 403]
    (preflight,) = answers(asked, method="OPTIONS", path=path, origins=origins(PAGE))
    assert preflight.status_code == 200


def posted(hosts: frozenset[str] | None, *pages: str, host: str = "127.0.0.1:8000", **others: str) -> set[int]:
    """The statuses of calls that pages can make without asking: of plain text."""
    requests = [{"host": host, "origin": page, "content-type": "text/plain", **others} for page in pages]
    return {answer.status_code for answer in answers(*requests, hosts=hosts)}


def test_pages_of_other_sites_cannot_post() -> None:
    """Whether or not the Host header is checked."""
    for hosts in (names(), None):
        assert posted(hosts, *OTHER_PAGES) == {403}
        assert posted(hosts, *OWN_PAGES) == {200}


def test_a_refusal_says_why() -> None:
    for page, answer in zip(OTHER_PAGES, answers(*({"origin": page} for page in OTHER_PAGES)), strict=True):
        error = answer.json()["error"]
        assert error["code"] == "origin_not_allowed"
        assert "--allowed-origins" in error["message"]
        assert repr(page) in error["message"]


def test_a_get_changes_nothing_and_is_answered() -> None:
    """A link on another site leads to the server; without CORS headers its scripts cannot read what they fetch."""
    requests = [{"origin": PAGE}, {"sec-fetch-site": "cross-site"}]
    for answer in answers(*requests, method="GET", path="/version"):
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


def test_clients_that_are_no_browsers() -> None:
    """`curl -d` sends the content type of a form."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    for path in ("/v1/completions", "/flush_cache"):
        assert {answer.status_code for answer in answers(form, {}, JSON, path=path)} == {200}


def test_pages_of_the_servers_own_names_can_post() -> None:
    named = names(allowed_hosts="chat.example, *.lan, 192.0.2.7", host="box.home")
    own = ["http://192.0.2.7", "https://Chat.Example", "http://a.lan:8080", "http://box.home:8000"]
    assert posted(named, *own) == {200}
    assert posted(named, "http://a.chat.example", "http://box.homes") == {403}
    assert posted(names(), "http://192.168.0.7:8000", "http://192.168.0.7", host="192.168.0.7:8000") == {200}
    assert posted(names(), "http://192.168.0.8:8000", host="192.168.0.7:8000") == {403}
    assert posted(None, "https://box.example", host="box.example") == {200}
    assert posted(None, "https://box.example", host="other.example") == {403}


def test_what_browsers_say_about_the_site() -> None:
    """Behind a proxy that renames the host, only the browser knows that a page is the server's own."""
    assert posted(None, "https://box.example", **{"sec-fetch-site": "same-origin"}) == {200}
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        (answer,) = answers({"sec-fetch-site": site})
        assert answer.status_code == status, site


def test_an_allowed_page_must_send_json() -> None:
    """A browser asks the server before it sends JSON, and not before it sends a form."""
    page, other = {"origin": PAGE}, {"origin": "https://evil.example"}
    requests = [
        *(page | JSON, page | {"content-type": "Application/JSON; charset=utf-8"}),
        *(page, page | {"content-type": "text/plain"}, page | {"content-type": "application/json-but-not"}),
        *(other | JSON, other | page | JSON | {"origin": "https://chat.example.evil.example"}),
    ]
    found = answers(*requests, path="/v1/completions", origins=origins(PAGE))
    assert [answer.status_code for answer in found] == [200, 200, 415, 415, 415, 403, 403]
    assert "application/json" in found[2].json()["error"]["message"]
    for answer in found[:5]:
        assert answer.headers["access-control-allow-origin"] == PAGE, "the page reads errors, too"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in found[5].headers


def test_a_browser_asks_first() -> None:
    """The preflight carries no key, and names the headers that the page wants to send."""
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    requests = [asks | {"origin": page} for page in (PAGE, "https://evil.example")]
    options: dict[str, Any] = {"method": "OPTIONS", "path": "/v1/completions", "api_keys": {"key"}}
    allowed, refused = answers(*requests, **options, origins=origins(PAGE))
    assert (allowed.status_code, refused.status_code) == (200, 400)
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in refused.headers
    (closed,) = answers(requests[0], **options)
    assert (closed.status_code, "access-control-allow-origin" in closed.headers) == (401, False)


def test_an_allowed_page_still_needs_the_key_and_the_host() -> None:
    page = {"origin": PAGE, **JSON}
    key = {"authorization": "Bearer key"}
    options: dict[str, Any] = {"origins": origins(PAGE), "path": "/v1/completions"}
    without, with_key = answers(page, page | key, api_keys={"key"}, **options)
    assert (without.status_code, with_key.status_code) == (401, 200)
    assert without.headers["access-control-allow-origin"] == PAGE
    (rebound,) = answers(page | {"host": "evil.example"}, hosts=names(), **options)
    assert rebound.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    ("given", "allowed", "refused"),
    [
        ("https://a.example", ["https://a.example", "HTTPS://A.example"], ["http://a.example", "https://a.example:8"]),
        ("https://a.example", [], ["https://b.example", "https://aaexample", "null"]),
        ("http://localhost:*, app://*", ["http://localhost:3000", "app://obsidian.md"], ["http://localhost", "app://a/b"]),
        ("https://*.example", ["https://a.example", "https://a.b.example"], ["https://example", "https://a.example.evil"]),
        ("*", ["https://a.example", "null", "http://localhost:3"], []),
        ('["https://a.example", "https://b.example"]', ["https://b.example"], ["https://c.example"]),
        ("[]", [], ["https://a.example"]),
    ],
)  # fmt: skip
def test_origins(given: str, allowed: list[str], refused: list[str]) -> None:
    known = origins(given)
    assert all(map(known.allow, allowed))
    assert not any(map(known.allow, refused))


@pytest.mark.parametrize(
    "given", ["", "a.example", "https://a.example/", "https://", "https://a b", "[1]", "[", "a,,b"]
)
def test_origins_that_cannot_be(given: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-origins"):
        check_server(ServerConfig(allowed_origins=given))
