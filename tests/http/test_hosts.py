"""The Host header: a page on another site must not reach a server of this machine through a name of its own."""

from __future__ import annotations

import httpx
import pytest

from serving import run, serving
from sluice.config import ConfigError, ServerConfig
from sluice.http.base.options import check_server
from sluice.http.edge.hosts import answered_names

LOOPBACK = "127.0.0.1"
OWN = ["localhost", "LOCALHOST:80", "localhost.", "a.localhost:8000", "127.0.0.1:8000", "192.168.0.7", "[::1]:8000"]
FOREIGN = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", ""]
FORGED = ["a b", "[::1", "::1", "localhost@evil.example", "localhost:80:80", "evil.example\x1b[2K\r\x00", "[evil]"]


def names(address: str = LOOPBACK, **options: str) -> frozenset[str] | None:
    return answered_names(ServerConfig(**options), address)


def answers(accepted: frozenset[str] | None, *headers: str | None, path: str = "/version") -> list[httpx.Response]:
    """The answer to a GET with each of these Hosts."""
    found: list[httpx.Response] = []

    async def test() -> None:
        async with serving(hosts=accepted) as one:
            for header in headers:
                request = one.http.build_request("GET", path)
                own = [] if header is None else [(b"host", header.encode("latin-1"))]
                request.headers = httpx.Headers([*own, (b"accept", b"*/*")])
                found.append(await one.http.send(request))

    run(test)
    return found


def statuses(accepted: frozenset[str] | None, *headers: str | None, path: str = "/version") -> set[int]:
    return {answer.status_code for answer in answers(accepted, *headers, path=path)}


def test_own_names() -> None:
    assert statuses(names(), *OWN) == {200}


def test_other_names_are_refused() -> None:
    for header, answer in zip(FOREIGN + FORGED, answers(names(), *FOREIGN, *FORGED), strict=True):
        assert answer.status_code == 403
        message = answer.json()["error"]["message"]
        assert "--allowed-hosts" in message
        assert repr(header) in message
        assert message.isprintable(), "control characters of a client"


def test_probes_answer_to_any() -> None:
    for path in ("/health", "/live", "/ready"):
        assert statuses(names(), "pod-7.cluster.internal", None, path=path) == {200}


def test_a_request_with_two_hosts_or_none_is_refused() -> None:
    """A proxy in front may have checked the other one."""
    assert statuses(names(), None) == {403}

    async def test() -> None:
        async with serving(hosts=names()) as one:
            both = [(b"host", b"localhost"), (b"host", b"evil.example")]
            answer = await one.http.get("/version", headers=both)
            assert answer.status_code == 403
            assert answer.json()["error"]["code"] == "host_not_allowed"

    run(test)


def test_a_refused_host_reaches_neither_the_key_nor_the_engine() -> None:
    async def test() -> None:
        async with serving(hosts=names(), api_keys={"key"}) as one:
            headers = {"host": "evil.example", "authorization": "Bearer key"}
            answer = await one.http.post("/v1/completions", json={"prompt": "a"}, headers=headers)
            assert answer.status_code == 403
            assert one.sent == []

    run(test)


def test_the_options_name_more() -> None:
    named = names(allowed_hosts="Chat.Example, *.lan", host="box.home")
    assert statuses(named, "chat.example:443", "a.lan", "a.b.lan", "localhost", LOOPBACK, "Box.Home") == {200}
    assert statuses(named, "lan", "a.chat.example", "alan", "a.box.home") == {403}


def test_when_hosts_are_checked() -> None:
    assert names("0.0.0.0") is None, "behind a name of its own a server answers to that name"
    assert names("::1") is not None
    assert names("192.0.2.7", allowed_hosts="chat.example") is not None
    assert names(allowed_hosts="*") is None


@pytest.mark.parametrize("given", ["", "a,,b", "http://a", "a:80", "a b", "*.", "a.*", "-a"])
def test_names_that_cannot_be(given: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-hosts must be names without port"):
        check_server(ServerConfig(allowed_hosts=given))
