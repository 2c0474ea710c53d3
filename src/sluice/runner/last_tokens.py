"""The token that each slot sampled last, on the device, for steps that were planned before the host knew it.

All of it runs on the compute queue, so a step reads what the step before it wrote.
"""

from __future__ import annotations

from typing import Protocol

import torch

UNREAD = -1
"""Token of a watched slot that no step may read."""
STALE = -2
"""Token id of a row whose step read a slot that held `UNREAD`."""


class LastTokens(Protocol):
    """One token a slot."""

    def open(self, slots: torch.Tensor) -> None:
        """Note that slots [F] int64 were filled: their tokens are those of former requests."""
        ...

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Return what slots [L] int64 sampled last, [L] int64. All are valid token ids."""
        ...

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Keep what slots [S] int64 sampled, and return the tokens for the host, [S] int64.

        A failed row (below 0) is kept as 0: a later step already in flight may still look it up, and must not read
        outside the embedding.
        """
        ...

    def await_tokens(self, slots: torch.Tensor) -> None:
        """Note, in the place of `write`, that other ranks sample slots [S] int64."""
        ...


class PlainLastTokens:
    """Trusts that no step reads what was not written.

    Args:
        num_slots: slots.
        device: where steps run.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self.values = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def open(self, slots: torch.Tensor) -> None:
        """Return: nothing is watched."""

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        return self.values.index_select(0, slots)

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        self.values.index_copy_(0, slots, tokens.clamp(min=0))
        return tokens

    def await_tokens(self, slots: torch.Tensor) -> None:
        """Return: this rank reads none of them."""


class WatchedLastTokens:
    """Poisons every slot until it samples, and once it was read: only the next step reads a sample.

    A row that reads the poison gets `STALE` in place of its token.

    Args:
        num_slots: slots.
        device: where steps run.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self.values = torch.full((num_slots,), UNREAD, dtype=torch.int64, device=device)
        self._was_stale = torch.zeros(num_slots, dtype=torch.bool, device=device)

    def open(self, slots: torch.Tensor) -> None:
        self.values.index_fill_(0, slots, UNREAD)
        self._was_stale.index_fill_(0, slots, 0)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        tokens = self.values.index_select(0, slots)
        self._was_stale.index_copy_(0, slots, tokens < 0)
        self.values.index_fill_(0, slots, UNREAD)
        return tokens.clamp_(min=0)

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        self.values.index_copy_(0, slots, tokens.clamp(min=0))
        reported = tokens.masked_fill(self._was_stale.index_select(0, slots), STALE)
        self._was_stale.index_fill_(0, slots, 0)
        return reported

    def await_tokens(self, slots: torch.Tensor) -> None:
        """Return: the rank that samples notices what was not sampled."""
