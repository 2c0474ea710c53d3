"""Rows of the slot model's training text. A step draws its own by its number, so that training can stop and go on."""

from __future__ import annotations

import random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.dialogue import TEXT_WEIGHT, Turn
from training.rows import Row, TurnWriter, tensors
from training.slots import copying, documents
from training.slots.facts import FactSource
from training.words import Namer

TEXT_SHARE = 0.12
"""Tokens of texts and questions that count in the loss at all: nothing foretells most of them."""
SHORTEST = 60


class SlotRows:
    """Draws the rows of a step; equal seeds and steps give equal rows.

    Args:
        held_out: names and phrasings that training never draws.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int, *, held_out: bool = False) -> None:
        self.writer = TurnWriter(tokenizer)
        self.seed = seed
        self.held_out = held_out

    def batch(self, step: int, rows: int, length: int, echo_share: float = 0.0) -> tuple[Tensor, Tensor]:
        """Token ids and weights, both [rows, length + 1]. Of the texts that are read, a sample alone has weight."""
        drawn = [self.row(random.Random(f"{self.seed} {step} {row}"), length + 1, echo_share) for row in range(rows)]
        tokens, weights = tensors(drawn)
        chances = torch.rand(weights.shape, generator=torch.Generator().manual_seed(self.seed * 1_000_003 + step))
        return tokens, torch.where((weights == TEXT_WEIGHT) & (chances > TEXT_SHARE), 0.0, weights)

    def row(self, rng: random.Random, length: int, echo_share: float) -> Row:
        """One row of exactly `length` tokens. Its documents share one source, so that none contradicts another."""
        source = FactSource(Namer(rng, held_out=self.held_out), held_out_phrasings=self.held_out)
        row = Row([], [])
        if rng.random() < echo_share:
            self.writer.add(row, copying.again(source.names, length // 20))
        while len(row.tokens) < length:
            self.writer.add(row, self._document(source, length - len(row.tokens)))
        del row.tokens[length:], row.weights[length:]
        return row

    def _document(self, source: FactSource, left: int) -> list[Turn]:
        rng = source.rng
        chance = rng.random()
        if chance < 0.1 or left < SHORTEST:
            return copying.conversation(source.names, rng.randint(1, 3))
        if chance < 0.2:
            return documents.chat(source, min(left, rng.randint(60, 400)))
        whole = rng.random() < 0.5
        return documents.conversation(source, left if whole else int(SHORTEST * (left / SHORTEST) ** rng.random()))
