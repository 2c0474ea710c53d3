"""Rows of token ids and loss weights for training: documents laid end to end and cut to one length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training import dialogue
from training.dialogue import Turn
from training.tokenizer import END, TURN_END, TURN_START
from training.words import Namer

SHORT_SHARE = 0.2
"""Rows of small talk and stories instead of one long text with questions."""
CHARACTERS_PER_TOKEN = 3.1


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
        self.end, self.turn_start, self.turn_end = map(tokenizer.token_to_id, (END, TURN_START, TURN_END))

    def add(self, row: Row, turns: Sequence[Turn]) -> None:
        """Append a document: turns in the form of the chat template, or bare text."""
        for turn in turns:
            if turn.role == "text":
                row.extend(self._encode(turn.text), dialogue.TEXT_WEIGHT)
                row.extend([self.end], dialogue.ANSWER_WEIGHT)
                continue
            row.extend([self.turn_start, *self._encode(f"{turn.role}\n")], 0.0)
            row.extend(self._encode(turn.text[: turn.restated]), dialogue.RESTATED_WEIGHT)
            row.extend(self._encode(turn.text[turn.restated :]), turn.weight)
            row.extend([self.turn_end], turn.weight)
            row.extend(self._encode("\n"), 0.0)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids


class RowSource:
    """Draws rows; equal seeds give equal rows."""

    def __init__(self, tokenizer: Tokenizer, seed: int, *, held_out: bool = False) -> None:
        self.writer = TurnWriter(tokenizer)
        self.short_share = SHORT_SHARE
        self.echo_share = 0.0
        self.rng = random.Random(seed)
        self.names = Namer(self.rng, held_out=held_out)

    def batch(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Token ids and weights, both [rows, length + 1]."""
        return tensors([self.row(length + 1) for _ in range(rows)])

    def row(self, length: int) -> Row:
        """One row of exactly `length` tokens."""
        row = Row([], [])
        if self.rng.random() >= self.short_share:
            kind = dialogue.echo if self.rng.random() < self.echo_share else dialogue.recall
            self.writer.add(row, kind(self.rng, self.names, length, count_tokens))
        while len(row.tokens) < length:
            self.writer.add(row, self._short())
        del row.tokens[length:], row.weights[length:]
        return row

    def _short(self) -> list[Turn]:
        if self.rng.random() < 0.15:
            return dialogue.tale(self.rng)
        return dialogue.acquaintance(self.rng, self.names)


def tensors(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Token ids and weights of rows of one length, both [rows, length]."""
    return torch.tensor([row.tokens for row in rows]), torch.tensor([row.weights for row in rows])


def count_tokens(text: str) -> int:
    """About how many tokens a text has."""
    return int(len(text) / CHARACTERS_PER_TOKEN) + 1
