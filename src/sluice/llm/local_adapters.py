"""LocalAdapters: the adapters of an `LLM` by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sluice.assembly.adapter_loader import AdapterLoader
from sluice.config.lora import check_name
from sluice.engine.protocols import Adapters
from sluice.llm.requests import digests_of, one_each
from sluice.types import AdapterInfo


class LocalAdapters:
    """What prompts can choose from.

    Args:
        loader: of the engine in this process.
        read: what it has read so far.
    """

    def __init__(self, loader: Adapters, read: Sequence[AdapterInfo]) -> None:
        self._loader = loader
        self._by_name = {info.name: info for info in read}
        self._unnamed: set[str] = set()
        """Digests of adapters that were unloaded."""

    def digests(self, given: str | Sequence[str], count: int) -> list[str]:
        """Return the digest of the adapter of each of `count` prompts; empty: none.

        Raises:
            ValueError: no adapter has a name, or there are more or fewer names.
        """
        return digests_of(one_each("adapter", str, given, count), self._by_name)

    def load(self, name: str, path: str) -> None:
        """Read an adapter.

        Raises:
            ValueError: the name is taken, the files are no adapter of the model, or it takes none.
        """
        check_name(name)
        if name in self._by_name:
            raise ValueError(f"the name {name!r} is that of an adapter; unload it first, or choose another name")
        if not isinstance(self._loader, AdapterLoader):
            raise ValueError("this model has no room for adapters; load it with enable_lora=True")
        info = self._by_name[name] = self._loader.read_now(name, path)
        self._unnamed.discard(info.digest)

    def unload(self, name: str) -> None:
        """Take a name away.

        Raises:
            ValueError: none has the name.
        """
        digests_of([name], self._by_name)
        self._unnamed.add(self._by_name.pop(name).digest)

    def forget_unused(self, used: Collection[str]) -> None:
        """Forget adapters without a name.

        Args:
            used: digests of those that requests use.
        """
        named = {info.digest for info in self._by_name.values()}
        for digest in [each for each in self._unnamed if each not in used]:
            self._unnamed.discard(digest)
            if digest not in named:
                self._loader.forget(digest)
