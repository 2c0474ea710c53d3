"""Group: the ranks that compute one model together, as the code of one of them sees the others.

Every rank of a group makes the same calls in the same order. A call that combines values returns the same bits on every
rank, so ranks that decide by it decide alike.
"""

from __future__ import annotations

from typing import Protocol

import torch


class GroupError(RuntimeError):
    """Another rank has ended, failed or not answered in time: the group can compute nothing more."""


class Group(Protocol):
    """Exchanges tensors between the ranks. Tensors are contiguous, and of one shape and dtype on all ranks."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of x over the ranks, which may be x itself, overwritten.

        Raises:
            GroupError: another rank cannot take part.
        """
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [...] of every rank in their order, [size, ...].

        Raises:
            GroupError: another rank cannot take part.
        """
        ...

    def send(self, x: torch.Tensor, to: int) -> None:
        """Send x to a rank, which receives it. x may be changed once the call has returned.

        Raises:
            GroupError: the other rank cannot take part.
        """
        ...

    def recv(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Fill x with what another rank sends, and return it.

        Raises:
            GroupError: the other rank cannot take part.
        """
        ...

    def close(self) -> None:
        """Leave the group. No call may follow; may be called again."""
        ...


class Alone:
    """The group of a model that one rank computes."""

    rank = 0
    size = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x[None]

    def send(self, x: torch.Tensor, to: int) -> None:
        raise GroupError(f"a group of one rank has no rank {to}")

    def recv(self, x: torch.Tensor, source: int) -> torch.Tensor:
        raise GroupError(f"a group of one rank has no rank {source}")

    def close(self) -> None:
        """Do nothing."""
