"""Which tokens a request's prompt holds, and how often it generated each: what its penalties go by.

Counts live on the device and grow there with every sample, because a step may be launched before the host knows the
sample of the one before. They are made again from the request's history whenever it gets a slot, so a retraction, or a
device that lost its state, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sluice.runner.inputs import Ints
from sluice.runner.upload import upload


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

    def open(self, slot: int, prompt: Sequence[int], outputs: Sequence[int]) -> None:
        """Begin anew for a slot, with what its request has so far."""
        if slot not in self._rows:
            if not self._free:
                self._grow()
            self._rows[slot] = self._free.pop()
        row = self._rows[slot]
        prompt_ids, output_ids = upload(self._outputs.device, _ids(prompt), _ids(outputs))
        self._in_prompt[row].zero_().index_fill_(0, prompt_ids, 1)
        ones = torch.ones_like(output_ids, dtype=torch.int32)
        self._outputs[row].zero_().index_add_(0, output_ids, ones)

    def close(self, slot: int) -> None:
        """The slot's request needs no counts."""
        if slot in self._rows:
            self._free.append(self._rows.pop(slot))

    def rows(self, slots: Ints) -> Ints:
        """Where the counts of slots [P] are: [P]."""
        return np.array([self._rows[slot] for slot in slots.tolist()], dtype=np.int64)

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
        have = len(self._outputs)
        add = max(4, have)
        self._free.extend(range(have + add - 1, have - 1, -1))
        self._outputs = torch.cat([self._outputs, self._outputs.new_zeros((add, self._outputs.shape[1]))])
        self._in_prompt = torch.cat([self._in_prompt, self._in_prompt.new_zeros((add, self._in_prompt.shape[1]))])


def _ids(tokens: Sequence[int]) -> Ints:
    return np.array(tokens, dtype=np.int64)
