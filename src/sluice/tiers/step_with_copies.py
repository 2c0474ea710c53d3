"""Steps whose plans have copies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from sluice.tiers.copies import Ended
from sluice.types import BatchResult


class Launched(Protocol):
    """A step on its way."""

    def wait(self) -> BatchResult:
        """See `Pending.wait`."""
        ...


@dataclass(frozen=True, slots=True)
class CopiesOnly:
    """A step without chunks."""

    step: int

    def wait(self) -> BatchResult:
        """See `Pending.wait`."""
        return BatchResult(self.step, ())


@dataclass(frozen=True, slots=True)
class WithCopies:
    """A launched step whose plan had copies."""

    inner: Launched
    copies: Ended

    def wait(self) -> BatchResult:
        """See `Pending.wait`."""
        result = self.inner.wait()
        return replace(result, copies=self.copies.wait())


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A step that failed after its copies had begun: they end all the same, so it counts as launched."""

    error: Exception

    def wait(self) -> BatchResult:
        """Raises what it failed of."""
        raise self.error
