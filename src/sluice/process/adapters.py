"""AdapterBook: the adapters of a server by name, whichever of its engines have read them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sluice.config.lora import check_name
from sluice.engine.adapter_names import AdapterNames, NameTaken
from sluice.engine.messages import AdapterRead, FromServer, LoadAdapter, UnloadAdapter
from sluice.process.queries import Answer
from sluice.types import AdapterInfo

LOGGER = logging.getLogger("sluice.server")


class AdapterRefused(ValueError):
    """An adapter cannot be loaded; the message is one line for the user."""


class AdapterBook:
    """The adapters of a server.

    Args:
        ask: sends a message that an engine answers.
        tell: sends a message, if there is an engine.
    """

    def __init__(
        self, ask: Callable[[Callable[[int], FromServer]], Awaitable[Answer]], tell: Callable[[FromServer], None]
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._names = AdapterNames()
        self._pending: set[str] = set()
        """Names of adapters that are being read."""
        self._users: Counter[str] = Counter()
        """Open requests by digest."""

    @property
    def by_name(self) -> Mapping[str, AdapterInfo]:
        """The adapters that requests can name, in the order in which they were loaded."""
        return self._names.by_name

    def kept(self) -> tuple[AdapterInfo, ...]:
        """Return the adapters that an engine must have, each once."""
        return self._names.all()

    def name_of(self, digest: str) -> str:
        """Return a name of an adapter; "" if it has none any more."""
        return self._names.name_of(digest)

    async def load(self, name: str, path: str, others: Sequence[str] = ()) -> AdapterInfo:
        """Let the engine read an adapter, beside its steps. Afterwards requests can name it.

        Args:
            others: names that are taken.

        Raises:
            NameTaken: the name is in use.
            AdapterRefused: it cannot be used.
            EngineGone: there is no engine, or it died.
        """
        try:
            check_name(name)
        except ValueError as error:
            raise AdapterRefused(str(error)) from error
        self._names.check_free(name, others, self._pending)
        return await self._read(name, path)

    async def replace(self, name: str, path: str) -> AdapterInfo:
        """Let a name mean another adapter. Requests that use the one before continue with that.

        Raises:
            NameTaken: it is being replaced already.
            AdapterRefused, EngineGone: as `load`; the name means what it did.
        """
        if name in self._pending:
            raise NameTaken(f"another adapter is being loaded as {name!r}")
        return await self._read(name, path)

    async def _read(self, name: str, path: str) -> AdapterInfo:
        self._pending.add(name)
        try:
            answer = await self._ask(lambda query_id: LoadAdapter(query_id, name, path))
            assert isinstance(answer, AdapterRead), f"{answer} to a request to load an adapter"
            if answer.info is None:
                raise AdapterRefused(answer.error or "it cannot be read")
            self._names.give(name, answer.info)
            return answer.info
        finally:
            self._pending.discard(name)
            self._forget_unused()

    def unload(self, name: str) -> AdapterInfo:
        """Take a name away. Requests that use its adapter continue.

        Raises:
            KeyError: no adapter has the name.
        """
        info = self._names.take(name)
        self._forget_unused()
        return info

    def began(self, digest: str) -> None:
        """Note that a request is open."""
        if digest:
            self._users[digest] += 1

    def ended(self, digest: str) -> None:
        """Note that a request has ended."""
        if digest:
            self._users[digest] -= 1
            self._forget_unused()

    def start_with(self, adapters: Sequence[AdapterInfo]) -> None:
        """Take the adapters that the first engine has read."""
        self._names = AdapterNames(adapters)

    def served(self, adapters: Sequence[AdapterInfo], lost: Mapping[str, str]) -> None:
        """Take what a later engine has read.

        Args:
            lost: digests of adapters that the engine before had, and this one cannot use -> why.
        """
        kept = {info.digest for info in self.kept()}
        for info in adapters:
            if info.digest not in kept:  # it was unloaded while the engine was started
                self._tell(UnloadAdapter(info.digest))
        for digest, why in lost.items():
            for name in self._names.lose(digest):
                LOGGER.warning("the adapter %s is lost: %s", name, why)

    def _forget_unused(self) -> None:
        """Let the engine forget what has neither a name nor a user; while one is read, which may be the same, later."""
        if self._pending:
            return
        for digest in self._names.take_unused(lambda digest: self._users[digest] > 0):
            del self._users[digest]
            self._tell(UnloadAdapter(digest))
