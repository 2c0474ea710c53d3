"""The token that each slot sampled last, on the device: what a step reads that was planned before the host knew it.

All of it runs on the compute stream, so a step reads what the step before it wrote.
"""

from __future__ import annotations

from typing import Protocol

import torch

UNREAD = -1
"""What a watched slot holds that nobody may read."""
STALE = -2
"""Instead of a token id where a step read a slot that held `UNREAD`."""


class LastTokens(Protocol):
    """One token a slot."""

    def open(self, slots: torch.Tensor) -> None:
        """Slots [F] int64 were filled: what they hold is of requests that are gone."""
        ...

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """What slots [L] int64 sampled last, [L] int64: token ids, whatever was written."""
        ...

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Keep what slots [S] int64 sampled, and return what the host is to be told, [S] int64.

        A failed row (below 0) is kept as 0: a later step already in flight may still look it up, and must not read
        outside the embedding.
        """
        ...


class PlainLastTokens:
    """Trusts that nobody reads what was not written.

    Args:
        num_slots: slots.
        device: where steps run.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self.values = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def open(self, slots: torch.Tensor) -> None:
        """See `LastTokens.open`."""

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """See `LastTokens.read`."""
        return self.values.index_select(0, slots)

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """See `LastTokens.write`."""
        self.values.index_copy_(0, slots, tokens.clamp(min=0))
        return tokens


class WatchedLastTokens:
    """Poisons every slot until it samples and once it was read: a sample is read by one step, the next.

    Whoever reads the poison gets `STALE` in the place of the token that comes of it.

    Args:
        num_slots: slots.
        device: where steps run.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self.values = torch.full((num_slots,), UNREAD, dtype=torch.int64, device=device)
        self._was_stale = torch.zeros(num_slots, dtype=torch.bool, device=device)

    def open(self, slots: torch.Tensor) -> None:
        """See `LastTokens.open`."""
        self.values.index_fill_(0, slots, UNREAD)
        self._was_stale.index_fill_(0, slots, 0)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """See `LastTokens.read`."""
        tokens = self.values.index_select(0, slots)
        self._was_stale.index_copy_(0, slots, tokens < 0)
        self.values.index_fill_(0, slots, UNREAD)
        return tokens.clamp_(min=0)

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """See `LastTokens.write`."""
        self.values.index_copy_(0, slots, tokens.clamp(min=0))
        told = tokens.masked_fill(self._was_stale.index_select(0, slots), STALE)
        self._was_stale.index_fill_(0, slots, 0)
        return told
