"""AdapterNames: what the names of adapters mean, and which adapters are still needed without one.

A name that is unloaded is gone at once, and its adapter when no request uses it any more. Requests have an adapter by
its digest (`Submit.adapter`), so what a name means later changes nothing for those that began.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from sluice.types import AdapterInfo


class NameTaken(ValueError):
    """Another adapter, or the model, has the name."""


class AdapterNames:
    """The adapters of an engine by name.

    Args:
        read: those that it has read so far.
    """

    def __init__(self, read: Sequence[AdapterInfo] = ()) -> None:
        self._by_name = {info.name: info for info in read}
        self._unnamed: dict[str, AdapterInfo] = {}
        """Adapters without a name that may be in use, by digest."""

    @property
    def by_name(self) -> Mapping[str, AdapterInfo]:
        """The adapters that requests can name, in the order in which they were loaded."""
        return self._by_name

    def all(self) -> tuple[AdapterInfo, ...]:
        """Return the adapters that are needed, each once."""
        infos = (*self._by_name.values(), *self._unnamed.values())
        return tuple({info.digest: info for info in infos}.values())

    def name_of(self, digest: str) -> str:
        """Return a name of an adapter; "" if it has none any more."""
        return next((name for name, info in self._by_name.items() if info.digest == digest), "")

    def check_free(self, name: str, models: Collection[str] = (), pending: Collection[str] = ()) -> None:
        """Check that no other adapter has a name.

        Args:
            models: names of the model.
            pending: names of adapters that are being read.

        Raises:
            NameTaken: it is in use.
        """
        if name in models or name in self._by_name or name in pending:
            what = "the model" if name in models else "an adapter"
            raise NameTaken(f"the name {name!r} is that of {what}; unload it first, or choose another name")

    def give(self, name: str, info: AdapterInfo) -> None:
        """Let a name mean an adapter, in the place of the one before."""
        if name in self._by_name:
            self.take(name)
        self._by_name[name] = info
        self._unnamed.pop(info.digest, None)

    def take(self, name: str) -> AdapterInfo:
        """Take a name away, and return what it meant.

        Raises:
            KeyError: no adapter has it.
        """
        info = self._by_name.pop(name)
        if not self.name_of(info.digest):
            self._unnamed[info.digest] = info
        return info

    def lose(self, digest: str) -> list[str]:
        """Forget an adapter, and return the names that it had."""
        self._unnamed.pop(digest, None)
        names = [name for name, info in self._by_name.items() if info.digest == digest]
        for name in names:
            del self._by_name[name]
        return names

    def take_unused(self, is_used: Callable[[str], bool]) -> list[str]:
        """Forget the adapters that have neither a name nor a user, and return their digests.

        Args:
            is_used: called with a digest: whether a request has the adapter.
        """
        unused = [digest for digest in self._unnamed if not is_used(digest)]
        for digest in unused:
            del self._unnamed[digest]
        return unused
