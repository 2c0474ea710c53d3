"""AdapterLoader: reads adapters and loads them beside the model, in a thread of its own, while steps run.

An adapter that was read is kept on the host until it is forgotten. So one that had to give up its place beside the
model is loaded again without a look at its files.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from sluice.config import ConfigError, EngineConfig
from sluice.engine.messages import AdapterLoaded, AdapterRead, LoadAdapter, Message
from sluice.models.adapters.adapter import Adapter
from sluice.models.adapters.bank import AdapterBank
from sluice.models.base import PagedLM
from sluice.models.decoder import Decoder
from sluice.runner.grammar.compiler import be_nicer
from sluice.types import AdapterInfo, AdapterSwap

LOGGER = logging.getLogger("sluice.engine")


CLOSE_SECONDS = 10.0
"""Longest time for which the end of an engine waits for an adapter that is being read."""


class Ranks(Protocol):
    """What tells other ranks (`runner.runner.TorchRunner` has none). Called on the engine's thread."""

    def load_adapter(self, info: AdapterInfo) -> None:
        """
        Raises:
            ValueError: one of them cannot load it.
        """
        ...

    def unload_adapter(self, digest: str) -> None: ...


class NoRanks:
    """For an engine without other ranks."""

    def load_adapter(self, info: AdapterInfo) -> None:
        """Return: there is no other rank."""

    def unload_adapter(self, digest: str) -> None:
        """Return: there is no other rank."""


NO_RANKS = NoRanks()


class AdapterLoader:
    """Reads adapters, and loads them (see `engine.protocols.Adapters`).

    Args:
        bank: where they are loaded to.
        post: receives what became of a read or a load, from any thread.
        answer: tells the server what became of a `LoadAdapter`; None: there is no server.
        ranks: are told of every load.
    """

    def __init__(
        self,
        bank: AdapterBank,
        post: Callable[[Message], None],
        answer: Callable[[AdapterRead], None] | None = None,
        ranks: Ranks = NO_RANKS,
    ) -> None:
        self._bank = bank
        self._post = post
        self._answer = answer
        self._ranks = ranks
        self._kept: dict[str, Adapter] = {}
        self.lost: dict[str, str] = {}
        """Digests of adapters that an engine before had, and this one cannot use -> why."""
        self._work: queue.SimpleQueue[Callable[[], Message] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def problem(self, adapter: str) -> str | None:
        if adapter in self._kept or self._bank.slot_of(adapter) is not None:
            return None
        return self.lost.get(adapter) or f"the adapter {adapter} is not loaded"

    def name_of(self, adapter: str) -> str:
        kept = self._kept.get(adapter)
        return adapter if kept is None else kept.info.name

    def restore(self, adapters: Sequence[AdapterInfo]) -> tuple[AdapterInfo, ...]:
        """Read the adapters that an engine before had, and return those that can be used. The others are `lost`."""
        found = []
        for info in adapters:
            try:
                found.append(self.read_now(info.name, info.path, info.digest))
            except (ValueError, OSError) as error:
                self.lost[info.digest] = in_one_line(error)
        return tuple(found)

    def read_now(self, name: str, path: str, digest: str = "") -> AdapterInfo:
        """Read an adapter and keep it. Blocks until it is read.

        Raises:
            ValueError: it cannot be used, or has another digest.
        """
        adapter = self._bank.read(name, path, digest)
        self._kept[adapter.info.digest] = adapter
        return adapter.info

    def read(self, asked: LoadAdapter) -> None:
        def work() -> Message:
            try:
                return AdapterRead(asked.query_id, self.read_now(asked.name, asked.path, asked.digest))
            except Exception as error:  # noqa: BLE001 - the server waits for an answer
                return AdapterRead(asked.query_id, error=in_one_line(error))

        self._begin(work)

    def answer(self, read: AdapterRead) -> None:
        if self._answer is not None:
            self._answer(read)

    def forget(self, adapter: str) -> None:
        self._kept.pop(adapter, None)

    def swap(self, swap: AdapterSwap) -> None:
        if swap.instead_of:
            self._ranks.unload_adapter(swap.instead_of)
        adapter = self._kept.get(swap.adapter)

        def work() -> Message:
            try:
                self._bank.unload(swap.instead_of)
                if self._bank.slot_of(swap.adapter) is None:
                    if adapter is None:
                        raise ValueError(f"the adapter {swap.adapter} was unloaded")
                    self._bank.load(adapter)
            except Exception as error:  # noqa: BLE001 - requests wait for it
                return AdapterLoaded(swap.adapter, in_one_line(error))
            return AdapterLoaded(swap.adapter)

        self._begin(work)

    def loaded(self, adapter: str) -> None:
        kept = self._kept.get(adapter)
        if kept is not None:
            self._ranks.load_adapter(kept.info)

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            # A thread that frees tensors while the interpreter ends would abort the process.
            self._thread.join(CLOSE_SECONDS)
            self._thread = None

    def _begin(self, work: Callable[[], Message]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="adapters", daemon=True)
            self._thread.start()
        self._work.put(work)

    def _run(self) -> None:
        be_nicer()
        while (work := self._work.get()) is not None:
            self._post(work())
            del work  # it holds an adapter, which may be forgotten before the next work comes


def in_one_line(error: Exception) -> str:
    """Return an error's message for a user; with its type, and logged, if it was not made for users."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError) and text:
        return text
    LOGGER.error("an adapter could not be loaded", exc_info=error)
    return f"{type(error).__name__}: {text}"


def bank_of(config: EngineConfig, model: PagedLM, folder: Path) -> AdapterBank | None:
    """Return the adapters beside a model, for which all memory is allocated now; None: the options ask for none.

    Args:
        folder: of the model, or its GGUF file.

    Raises:
        ConfigError: the model takes none.
    """
    limits = config.lora.limits()
    if limits is None:
        return None
    if not isinstance(model, Decoder):
        raise ConfigError(
            f"--enable-lora: {model.spec.architecture} runs through transformers, beside whose weights there are no"
            " adapters; leave it out"
        )
    if model.spec.diffusion is not None:
        raise ConfigError(
            f"--enable-lora: adapters of {model.spec.architecture}, a model of block diffusion, are not"
            " supported; leave it out"
        )
    return AdapterBank(model, limits, folder if folder.is_dir() else None)
