"""The tokenizer is read while the engine loads the weights, and is never that of another place."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gguf_vocabularies import write_bpe
from random_checkpoint import random_checkpoint
from sluice.config import ServerConfig
from sluice.config.model import ModelConfig
from sluice.http.base import early_tokenizer
from sluice.http.base.early_tokenizer import EarlyTokenizer, cached_place, place_of
from sluice.models.default_model import default_checkpoint, default_file
from sluice.text.tokenizer import TokenizerError
from tokenizer_makers import byte_level_bpe


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The places that tokenizers are read from."""
    places: list[Path] = []
    load = early_tokenizer.load_tokenizer

    def recorded(place: Path, **options: Any) -> Any:
        places.append(place)
        return load(place, **options)

    monkeypatch.setattr(early_tokenizer, "load_tokenizer", recorded)
    return places


def test_a_file_is_read_once(tmp_path: Path, reads: list[Path]) -> None:
    """The engine's folder is made of the file that the server has read."""
    path = write_bpe(tmp_path / "a.gguf", byte_level_bpe(), "gpt-2")
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "model.gguf").symlink_to(path)

    async def run() -> list[int]:
        with closing(EarlyTokenizer(ServerConfig(), place_of(ModelConfig(model=str(path))), None)) as early:
            return (await early.of(folder)).encode("water")

    assert asyncio.run(run()) == byte_level_bpe().encode("water").ids
    assert reads == [path]


def test_it_is_read_before_the_engine_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    monkeypatch.setattr(early_tokenizer, "load_tokenizer", lambda place, **options: begun.set())

    async def run() -> None:
        EarlyTokenizer(ServerConfig(), tmp_path, None)
        assert await asyncio.to_thread(begun.wait, 30)

    asyncio.run(run())


def test_another_place_is_read_again(tmp_path: Path, reads: list[Path]) -> None:
    """What is early is a guess: another file, or one of the hub, may be what the engine has loaded."""
    early_path = write_bpe(tmp_path / "a.gguf", byte_level_bpe(), "gpt-2")
    (tmp_path / "other").mkdir()
    other = random_checkpoint(tmp_path / "other")

    async def run(place: Path | None) -> bool:
        with closing(EarlyTokenizer(ServerConfig(), place, None)) as early, closing(await early.of(other)) as tokenizer:
            return tokenizer.has_chat_template

    for place in (early_path, None):
        assert asyncio.run(run(place))
    assert sorted(reads) == sorted([early_path, other, other])


def test_an_error_is_told_when_the_tokenizer_is_asked_for(tmp_path: Path) -> None:
    """If the engine cannot start either, its reason is the one to show."""
    (tmp_path / "a.gguf").write_bytes(b"no GGUF")

    async def run() -> None:
        with closing(EarlyTokenizer(ServerConfig(), tmp_path / "a.gguf", None)) as early:
            await asyncio.sleep(0)
            await early.of(tmp_path / "a.gguf")

    with pytest.raises(TokenizerError, match=r"a\.gguf is not a GGUF file"):
        asyncio.run(run())


def test_what_is_never_asked_for_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose engine does not start must leave no process of a chat template behind."""
    closed = threading.Event()

    class Opened:
        def close(self) -> None:
            closed.set()

    monkeypatch.setattr(early_tokenizer, "load_tokenizer", lambda place, **options: Opened())

    async def run() -> None:
        EarlyTokenizer(ServerConfig(), tmp_path, None).close()
        assert await asyncio.to_thread(closed.wait, 30)

    asyncio.run(run())


def test_places(tmp_path: Path) -> None:
    """A hub id is found by the engine, which downloads it; an empty name is the default model."""
    path = write_bpe(tmp_path / "a.gguf", byte_level_bpe(), "gpt-2")
    (tmp_path / "folder").mkdir()
    folder = random_checkpoint(tmp_path / "folder")
    assert place_of(ModelConfig(model=str(path))) == path
    assert place_of(ModelConfig(model=str(folder))) == folder
    assert place_of(ModelConfig(model=str(folder), tokenizer=str(path))) == path
    assert place_of(ModelConfig(model=str(tmp_path))) == path
    (tmp_path / "b.gguf").touch()
    assert [place_of(ModelConfig(model=name)) for name in ("owner/name", str(tmp_path))] == [None] * 2
    here = default_file(None)
    assert place_of(ModelConfig()) == (None if here is None else default_checkpoint(None))


def test_a_hub_id_that_was_downloaded(tmp_path: Path, reads: list[Path]) -> None:
    """It is read early, too. If the engine finds another revision, that one counts."""
    commit, home = "0" * 40, tmp_path / "models--owner--name"
    snapshot = home / "snapshots" / commit
    snapshot.mkdir(parents=True)
    random_checkpoint(snapshot)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    model = ModelConfig(model="owner/name", download_dir=str(tmp_path))
    assert cached_place(model) == snapshot
    assert cached_place(ModelConfig(model="owner/name", download_dir=str(tmp_path), revision="1" * 40)) is None
    for name in ("owner/other", "no id at all", str(tmp_path)):
        assert cached_place(ModelConfig(model=name, download_dir=str(tmp_path))) is None
    (tmp_path / "newer").mkdir()
    newer = random_checkpoint(tmp_path / "newer")

    async def run(folder: Path) -> None:
        guess = partial(cached_place, model)
        with closing(EarlyTokenizer(ServerConfig(), None, None, guess)) as early:
            await early.failure()
            (await early.of(folder)).close()

    asyncio.run(run(snapshot))
    assert reads == [snapshot]
    asyncio.run(run(newer))
    assert reads == [snapshot, snapshot, newer]


def test_a_guess_that_fails_is_forgotten(tmp_path: Path) -> None:
    """What lies in the cache may be half of a download."""
    folder = random_checkpoint(tmp_path)
    (tmp_path / "half").mkdir()

    async def run() -> None:
        with closing(EarlyTokenizer(ServerConfig(), None, None, lambda: tmp_path / "half")) as early:
            await early.failure()
            (await early.of(folder)).close()

    asyncio.run(run())
