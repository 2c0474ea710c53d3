"""LocalAdapters: the adapters of an `LLM` by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sluice.assembly.adapter_loader import AdapterLoader
from sluice.config.lora import check_name
from sluice.engine.adapter_names import AdapterNames
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
        self._names = AdapterNames(read)

    def digests(self, given: str | Sequence[str], count: int) -> list[str]:
        """Return the digest of the adapter of each of `count` prompts; empty: none.

        Raises:
            ValueError: no adapter has a name, or there are more or fewer names.
        """
        return digests_of(one_each("adapter", str, given, count), self._names.by_name)

    def load(self, name: str, path: str) -> None:
        """Read an adapter.

        Raises:
            ValueError: the name is taken, the files are no adapter of the model, or it takes none.
        """
        check_name(name)
        self._names.check_free(name)
        if not isinstance(self._loader, AdapterLoader):
            raise ValueError("this model has no room for adapters; load it with enable_lora=True")
        self._names.give(name, self._loader.read_now(name, path))

    def unload(self, name: str) -> None:
        """Take a name away.

        Raises:
            ValueError: none has the name.
        """
        digests_of([name], self._names.by_name)
        self._names.take(name)

    def forget_unused(self, used: Collection[str]) -> None:
        """Forget adapters without a name.

        Args:
            used: digests of those that requests use.
        """
        for digest in self._names.take_unused(lambda digest: digest in used):
            self._loader.forget(digest)
