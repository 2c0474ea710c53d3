"""The options that keep clients apart reach the routes of a server that was started with them."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from serve_process import announced, server, shadow
from shadow_engine import PAGE_SIZE
from sluice.config import ConfigError, ServerConfig
from sluice.http.base.chat_template_file import MAX_BYTES, read_chat_template

SPECIAL = "<|end|>"


def settings(folder: Path) -> Path:
    """Give the shadow model a chat template, and return a file with the keys of two tenants."""
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    keys = folder / "keys"
    keys.write_text("alice\nbob\n")
    return keys


def test_a_server_with_tenants(tmp_path: Path) -> None:
    options = {"api_key_file": str(settings(tmp_path)), "cache_isolation": "key", "allowed_hosts": "chat.example"}
    with server(*shadow(0, tmp_path, **options)) as process:
        url = announced(process).split()[2].partition("/v1/")[0]
        found = []
        for key in ("alice", "bob", "alice"):
            body = {"prompt": "a" * 3 * PAGE_SIZE + "b", "max_tokens": 1}
            answer = httpx.post(f"{url}/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
            found.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert found == [0, 0, 3 * PAGE_SIZE]
        statuses = {}
        for host in ("evil.example", "chat.example", "localhost"):
            headers = {"host": host, "authorization": "Bearer bob"}
            statuses[host] = httpx.get(f"{url}/version", headers=headers).status_code
        assert statuses == {"evil.example": 403, "chat.example": 200, "localhost": 200}
        assert special_tokens(url) == len(SPECIAL)


def test_a_server_that_trusts_its_clients(tmp_path: Path) -> None:
    keys = settings(tmp_path)
    with server(*shadow(0, tmp_path, api_key_file=str(keys), allow_special_tokens=True, page=False)) as process:
        url = announced(process).split()[2].partition("/v1/")[0]
        assert special_tokens(url) == 1
        assert httpx.get(f"{url}/", headers={"accept": "text/html"}).status_code == 401, "there is no page"


def test_a_server_with_a_template_and_fields_of_its_own(tmp_path: Path) -> None:
    keys, template = settings(tmp_path), tmp_path / "chat.jinja"
    template.write_text("xx{{ messages[0].content }}")
    options = {"allow_special_tokens": True, "chat_template": str(template), "strict_fields": True}
    with server(*shadow(0, tmp_path, api_key_file=str(keys), **options)) as process:
        url = announced(process).split()[2].partition("/v1/")[0]
        assert special_tokens(url) == 2 + 1
        assert "<title>Sluice" in httpx.get(f"{url}/", headers={"accept": "text/html"}).text, "a page needs no key"
        answer = httpx.post(f"{url}/tokenize", json={"prompt": "a", "owl": 1}, headers={"authorization": "Bearer bob"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "owl")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is empty"),
        (b"\xff", "is not UTF-8 text"),
        (b"x" * (MAX_BYTES + 1), "has more than 1048576 bytes"),
        (b"{% for %}", "template cannot be read: "),
    ],
)
def test_a_template_that_is_none(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "chat.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as error:
        read_chat_template(ServerConfig(chat_template=str(path)))
    assert f"--chat-template {path}" in str(error.value)


def special_tokens(url: str) -> int:
    """The tokens of a message that holds the text of a special token."""
    body = {"messages": [{"role": "user", "content": SPECIAL}]}
    count = httpx.post(f"{url}/tokenize", json=body, headers={"authorization": "Bearer bob"}).json()["count"]
    assert isinstance(count, int)
    return count
