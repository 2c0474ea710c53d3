"""Which tokens a request's prompt holds, and how often it generated each: what its penalties go by.

Counts live on the device and grow there with every sample, because a step may be launched before the host knows the
sample of the one before. They are made again from the request's history whenever it gets a slot, so a retraction, or a
device that lost its state, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from sluice.device.upload import upload
from sluice.runner.inputs import Ints


class Opening(NamedTuple):
    """A row of counts that begins anew."""

    row: int
    prompt: tuple[int, ...]
    outputs: tuple[int, ...]
    """What was generated so far."""


class TokenCounts:
    """Rows of counts for the slots that need them, made as they are needed and used again.

    Args:
        vocab_size: columns.
        device: where the logits are.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._outputs = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._promised = 0
        """Rows there are, or will be when the device has done what it was given."""

    def row_for(self, slot: int) -> int:
        """The row of a slot that needs counts; it holds nothing of use until it is opened."""
        if slot not in self._rows:
            if not self._free:
                add = max(4, self._promised)
                self._free.extend(range(self._promised + add - 1, self._promised - 1, -1))
                self._promised += add
            self._rows[slot] = self._free.pop()
        return self._rows[slot]

    def open(self, opening: Opening) -> None:
        """Begin a row anew, with what its request has so far."""
        while len(self._outputs) <= opening.row:
            self._grow()
        prompt_ids, output_ids = upload(self._outputs.device, _ids(opening.prompt), _ids(opening.outputs))
        self._in_prompt[opening.row].zero_().index_fill_(0, prompt_ids, 1)
        ones = torch.ones_like(output_ids, dtype=torch.int32)
        self._outputs[opening.row].zero_().index_add_(0, output_ids, ones)

    def close(self, slot: int) -> None:
        """The slot's request needs no counts."""
        if slot in self._rows:
            self._free.append(self._rows.pop(slot))

    def rows(self, slots: Ints) -> Ints:
        """Where the counts of slots [P] are: [P]."""
        return np.array([self._rows[slot] for slot in slots.tolist()], dtype=np.int64)

    @property
    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """`in_prompt` and `outputs` of all rows, as they are kept."""
        return self._in_prompt, self._outputs

    def outputs(self, rows: torch.Tensor) -> torch.Tensor:
        """[P, vocab] int32: how often each token was generated."""
        return self._outputs.index_select(0, rows)

    def in_prompt(self, rows: torch.Tensor) -> torch.Tensor:
        """[P, vocab] bool."""
        return self._in_prompt.index_select(0, rows)

    def count(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """One more of tokens [P] in rows [P]. A row that failed (below 0) counts a token 0, which nobody will see."""
        ones = torch.ones_like(tokens, dtype=torch.int32)
        self._outputs.index_put_((rows, tokens.clamp(min=0)), ones, accumulate=True)

    def _grow(self) -> None:
        """Twice as many rows."""
        add = max(4, len(self._outputs))
        self._outputs = torch.cat([self._outputs, self._outputs.new_zeros((add, self._outputs.shape[1]))])
        self._in_prompt = torch.cat([self._in_prompt, self._in_prompt.new_zeros((add, self._in_prompt.shape[1]))])


def _ids(tokens: Sequence[int]) -> Ints:
    return np.array(tokens, dtype=np.int64)
