"""Tenants: a request must not learn from its speed or its usage what others have sent."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from serving import MODEL, Server, run, serving
from shadow_engine import PAGE_SIZE
from sluice.config import CacheConfig, ConfigError, EngineConfig, ServerConfig, SpeculativeConfig
from sluice.http.base.isolation import SECRET, CacheIsolation, read_isolation, secret_path
from sluice.http.base.options import check_server
from sluice.process.secret_file import SIZE, read_or_make_secret

KEYS = ("alice", "bob")
TEXT = "a" * 3 * PAGE_SIZE + "b"
BY_KEY = CacheIsolation("key", b"s" * SIZE)
BODIES = {
    "/v1/completions": {"prompt": TEXT, "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1},
    "/generate": {"text": TEXT, "sampling_params": {"max_new_tokens": 1}},
    "/v1/messages": {"model": MODEL, "messages": [{"role": "user", "content": TEXT}], "max_tokens": 1},
    "/v1/responses": {"input": TEXT, "max_output_tokens": 1},
}
SALT = {"/generate": "extra_key"}
"""The field of the salt, where it is not `cache_salt`."""


async def cached(one: Server, path: str, key: str = "", salt: str | None = None) -> int:
    """The tokens that a request finds cached."""
    body = BODIES[path] | ({} if salt is None else {SALT.get(path, "cache_salt"): salt})
    answer = await one.http.post(path, json=body, headers={"authorization": f"Bearer {key}"} if key else None)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    if path == "/generate":
        return int(content["meta_info"]["cached_tokens"])
    usage = content["usage"]
    if path == "/v1/messages":
        return int(usage["cache_read_input_tokens"])
    return int(usage["input_tokens_details" if path == "/v1/responses" else "prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("path", BODIES)
def test_keys_do_not_share(path: str) -> None:
    async def test() -> None:
        async with serving(api_keys=KEYS, isolation=BY_KEY) as one:
            assert await cached(one, path, "alice") == 0
            assert await cached(one, path, "bob") == 0
            assert await cached(one, path, "alice") > 0, "a key finds its own"
            assert await cached(one, path, "alice", "x") == 0
            assert await cached(one, path, "bob", "x") == 0
            assert await cached(one, path, "alice", "x") > 0
            salts = {message.extra_key for message in one.sent if hasattr(message, "extra_key")}
            assert len(salts) == 4
            for salt in salts:
                assert await cached(one, path, "bob", salt) == 0, "a salt that a page file shows opens nothing"

    run(test)


@pytest.mark.parametrize("path", BODIES)
def test_without_isolation_all_share(path: str) -> None:
    async def test() -> None:
        async with serving(api_keys=KEYS) as one:
            assert await cached(one, path, "alice") == 0
            assert await cached(one, path, "bob") > 0
            assert await cached(one, path, "bob", "x") == 0

    run(test)


@pytest.mark.parametrize("path", BODIES)
def test_a_required_salt(path: str) -> None:
    async def test() -> None:
        async with serving(isolation=CacheIsolation("salt-required")) as one:
            field = SALT.get(path, "cache_salt")
            for empty in ({}, {field: None}):
                answer = await one.post(path, **BODIES[path], **empty)
                assert answer.status_code == 400
                assert answer.json()["error"].get("param", field) == field
                assert f"{field} is required" in answer.json()["error"]["message"]
            assert one.sent == []
            assert [await cached(one, path, salt=salt) for salt in ("x", "y")] == [0, 0]
            assert await cached(one, path, salt="x") > 0
            assert (await one.post("/tokenize", prompt="a")).status_code == 200, "it caches nothing"

    run(test)


def test_simultaneous_requests_of_two_keys_share_no_computation() -> None:
    """A prefix that is being computed is shared with those that wait for it, too."""

    async def test() -> None:
        async with serving(api_keys=KEYS, isolation=BY_KEY) as one:
            found = await asyncio.gather(*(cached(one, "/v1/completions", key) for key in KEYS))
            assert found == [0, 0]

    run(test)


def test_options_that_isolate_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="--cache-isolation key needs API keys"):
        check_server(ServerConfig(cache_isolation="key"))
    check_server(ServerConfig(cache_isolation="key", api_key_file="keys"))
    with pytest.raises(ConfigError, match="one of none, key, salt-required, got 'user'"):
        check_server(ServerConfig(cache_isolation="user"))
    by_key, uncached = ServerConfig(cache_isolation="key"), EngineConfig(cache=CacheConfig(enable_prefix_caching=False))
    with pytest.raises(ConfigError, match="without prefix caching"):
        read_isolation(by_key, uncached)
    forgetful = SpeculativeConfig(speculative_algorithm="ngram", speculative_ngram_capacity=0)
    with pytest.raises(ConfigError, match="without prefix caching"):
        read_isolation(by_key, replace(uncached, speculative=forgetful))


def test_answers_that_are_guessed_from_are_isolated_without_a_cache() -> None:
    speculative = SpeculativeConfig(speculative_algorithm="ngram")
    engine = EngineConfig(cache=CacheConfig(enable_prefix_caching=False), speculative=speculative)
    assert read_isolation(ServerConfig(cache_isolation="key"), engine).mode == "key"


def isolation(page_file: Path | None) -> CacheIsolation:
    disk = None if page_file is None else str(page_file)
    return read_isolation(ServerConfig(cache_isolation="key"), EngineConfig(cache=CacheConfig(kv_disk=disk)))


def test_the_secret_outlives_the_server_only_with_a_page_file(tmp_path: Path) -> None:
    """Salts reach the page file. With another secret, a restart would find none of its prefixes."""
    assert isolation(tmp_path / "pages") == isolation(tmp_path / "pages")
    assert isolation(tmp_path / "pages") != isolation(tmp_path / "other")
    assert isolation(None) != isolation(None)
    assert {file.name for file in tmp_path.iterdir()} == {"pages.secret", "other.secret"}
    status = (tmp_path / "pages.secret").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_size) == (0o600, SIZE)


def test_servers_that_start_together_agree(tmp_path: Path) -> None:
    async def test() -> Sequence[bytes]:
        return await asyncio.gather(
            *(asyncio.to_thread(read_or_make_secret, tmp_path / "secret", SECRET) for _ in range(20))
        )

    assert len(set(asyncio.run(test()))) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["secret"], "drafts are removed"


def test_a_umask_does_not_change_the_mode(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        read_or_make_secret(tmp_path / "secret", SECRET)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o700])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret_path(tmp_path / "pages")
    read_or_make_secret(path, SECRET)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}; run: chmod 600 "):
        isolation(tmp_path / "pages")
    path.chmod(0o600)
    isolation(tmp_path / "pages")


def test_a_secret_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    read_or_make_secret(path, SECRET)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to user {owner}, not to user {owner + 1}"):
        read_or_make_secret(path, SECRET)


@pytest.mark.parametrize("kind", ["short", "long", "folder", "fifo", "link", "dangling"])
def test_what_is_no_secret_is_refused(tmp_path: Path, kind: str) -> None:
    """A FIFO would keep the server from starting for ever, a link may lead to another user's file."""
    path = tmp_path / "secret"
    if kind in ("short", "long"):
        path.write_bytes(b"a" * (SIZE - 1 if kind == "short" else SIZE + 1))
        path.chmod(0o600)
    elif kind == "folder":
        path.mkdir(0o700)
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.symlink_to(tmp_path / "target")
        if kind == "link":
            read_or_make_secret(tmp_path / "target", SECRET)
    before = sorted(tmp_path.iterdir())
    said = "is a symbolic link" if path.is_symlink() else f"the secret of --cache-isolation, {path}, "
    with pytest.raises(ConfigError, match=said):
        read_or_make_secret(path, SECRET)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read or made: No such file or directory"):
        isolation(tmp_path / "nowhere" / "pages")
