"""Writes documents as token ids and loss weights, laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.dialogue import RESTATED_WEIGHT, Turn
from training.specials import TURN_END, TURN_START


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids, and the weight of each as a target."""

    tokens: list[int]
    weights: list[float]

    def extend(self, tokens: Sequence[int], weight: float) -> None:
        self.tokens.extend(tokens)
        self.weights.extend([weight] * len(tokens))


class TurnWriter:
    """Writes documents into rows, with the marks of the chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.turn_start, self.turn_end = map(tokenizer.token_to_id, (TURN_START, TURN_END))

    def add(self, row: Row, turns: Sequence[Turn]) -> None:
        """Append a document: turns in the form of the chat template."""
        for turn in turns:
            row.extend([self.turn_start, *self._encode(f"{turn.role}\n")], 0.0)
            row.extend(self._encode(turn.text[: turn.restated]), RESTATED_WEIGHT)
            row.extend(self._encode(turn.text[turn.restated :]), turn.weight)
            row.extend([self.turn_end], turn.weight)
            row.extend(self._encode("\n"), 0.0)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids


def tensors(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Return token ids and weights of rows of one length, both [rows, length]."""
    return torch.tensor([row.tokens for row in rows]), torch.tensor([row.weights for row in rows])
