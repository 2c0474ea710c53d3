"""The adapters of a server by name: what the engine is told, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sluice.engine.adapter_names import NameTaken
from sluice.engine.messages import AdapterRead, LoadAdapter, Message, UnloadAdapter
from sluice.process.adapters import AdapterBook, AdapterRefused
from sluice.types import AdapterInfo


def info_of(name: str, digest: str) -> AdapterInfo:
    return AdapterInfo(name, f"/adapters/{digest}", digest, 4, 8.0, ("q_proj",), 100)


class Engine:
    """Reads an adapter whose path is its digest, when it is let."""

    def __init__(self) -> None:
        self.told: list[Message] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.book = AdapterBook(self.ask, self.told.append)

    async def ask(self, query: Callable[[int], Message]) -> AdapterRead:
        message = query(1)
        assert isinstance(message, LoadAdapter)
        await self.may_answer.wait()
        if message.path == "broken":
            return AdapterRead(1, error="it is broken")
        return AdapterRead(1, info_of(message.name, message.path))


async def test_an_adapter_goes_when_its_last_request_has_ended() -> None:
    engine = Engine()
    book = engine.book
    await book.load("a", "d1")
    book.began("d1")
    book.began("d1")
    book.unload("a")
    book.ended("d1")
    assert engine.told == []
    assert [info.digest for info in book.kept()] == ["d1"], "another engine must have it, for the streams"
    book.ended("d1")
    assert engine.told == [UnloadAdapter("d1")]
    assert book.kept() == ()


async def test_two_names_of_one_adapter() -> None:
    """To unload one of them must not take the adapter from the other."""
    engine = Engine()
    book = engine.book
    await book.load("a", "d1")
    await book.load("b", "d1")
    book.unload("a")
    assert engine.told == []
    assert [info.name for info in book.kept()] == ["b"]
    book.unload("b")
    assert engine.told == [UnloadAdapter("d1")]


async def test_an_adapter_that_is_read_again_while_its_last_request_ends() -> None:
    """If the engine were told to forget it after it was read again, its name would mean nothing."""
    engine = Engine()
    book = engine.book
    await book.load("a", "d1")
    book.began("d1")
    book.unload("a")
    engine.may_answer.clear()
    loading = asyncio.create_task(book.load("b", "d1"))
    await asyncio.sleep(0)
    book.ended("d1")
    engine.may_answer.set()
    await loading
    assert engine.told == []
    assert list(book.by_name) == ["b"]


async def test_names_that_are_taken() -> None:
    engine = Engine()
    book = engine.book
    engine.may_answer.clear()
    loading = asyncio.create_task(book.load("a", "d1"))
    await asyncio.sleep(0)
    for name, others in (("a", ()), ("model", ("model",))):
        with pytest.raises(NameTaken, match=repr(name)):
            await book.load(name, "d2", others)
    engine.may_answer.set()
    await loading
    with pytest.raises(NameTaken, match="'a' is that of an adapter"):
        await book.load("a", "d2")


@pytest.mark.parametrize(("name", "path", "said"), [("a", "broken", "it is broken"), ("a\n", "d", "printable")])
async def test_what_is_refused_leaves_nothing(name: str, path: str, said: str) -> None:
    book = Engine().book
    with pytest.raises(AdapterRefused, match=said):
        await book.load(name, path)
    assert book.by_name == {}
    await book.load("a", "d1")


async def test_a_name_that_gets_another_adapter_lets_streams_end_with_the_first() -> None:
    engine = Engine()
    book = engine.book
    await book.load("a", "d1")
    book.began("d1")
    await book.replace("a", "d2")
    assert book.by_name["a"].digest == "d2"
    assert {info.digest for info in book.kept()} == {"d1", "d2"}
    book.ended("d1")
    assert engine.told == [UnloadAdapter("d1")]
    with pytest.raises(AdapterRefused):
        await book.replace("a", "broken")
    assert book.by_name["a"].digest == "d2"


async def test_what_the_next_engine_has() -> None:
    """It lacks an adapter whose files have changed, and has one that was unloaded while it was started."""
    engine = Engine()
    book = engine.book
    book.start_with([info_of("a", "d1"), info_of("b", "d2"), info_of("c", "d3")])
    book.unload("c")
    engine.told.clear()
    book.served([info_of("b", "d2"), info_of("c", "d3")], {"d1": "it has changed"})
    assert list(book.by_name) == ["b"]
    assert engine.told == [UnloadAdapter("d3")]
