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
        held_out_names: names that training never draws.
    """

    def __init__(
        self, tokenizer: Tokenizer, seed: int, *, held_out: bool = False, held_out_names: bool = False
    ) -> None:
        self.writer = TurnWriter(tokenizer)
        self.seed = seed
        self.held_out = held_out
        self.held_out_names = held_out or held_out_names

    def batch(
        self,
        step: int,
        rows: int,
        length: int,
        *,
        echo_share: float = 0.0,
        recital_share: float = 0.0,
        dense_share: float = 0.0,
        variety: float = 1.0,
        blends: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Token ids and weights, both [rows, length + 1]. Of the texts that are read, a sample alone has weight."""
        rngs = [random.Random(f"{self.seed} {step} {row}") for row in range(rows)]
        drawn = [self.row(rng, length + 1, echo_share, recital_share, dense_share, variety, blends) for rng in rngs]
        tokens, weights = tensors(drawn)
        chances = torch.rand(weights.shape, generator=torch.Generator().manual_seed(self.seed * 1_000_003 + step))
        return tokens, torch.where((weights == TEXT_WEIGHT) & (chances > TEXT_SHARE), 0.0, weights)

    def row(
        self,
        rng: random.Random,
        length: int,
        echo_share: float,
        recital_share: float,
        dense_share: float,
        variety: float,
        blends: float,
    ) -> Row:
        """One row of exactly `length` tokens. Its documents share one source, so that none contradicts another."""
        names = Namer(rng, held_out=self.held_out_names)
        source = FactSource(names, held_out_phrasings=self.held_out, variety=variety, blends=blends)
        row = Row([], [])
        if rng.random() < echo_share:
            self.writer.add(row, copying.again(source.names, length // 20))
        recites, dense = rng.random() < recital_share, rng.random() < dense_share
        while len(row.tokens) < length:
            left = length - len(row.tokens)
            document = documents.recital(source, _part(rng, left)) if recites else self._document(source, left, dense)
            self.writer.add(row, document)
        del row.tokens[length:], row.weights[length:]
        return row

    def _document(self, source: FactSource, left: int, dense: bool) -> list[Turn]:
        rng = source.rng
        chance = rng.random()
        if chance < 0.1 or left < SHORTEST:
            return copying.conversation(source.names, rng.randint(1, 3))
        if chance < 0.1 + 0.1 * source.variety:
            return documents.chat(source, min(left, rng.randint(60, 400)))
        whole = rng.random() < 0.5
        return documents.conversation(source, left if whole or dense else _part(rng, left), dense=dense)


def _part(rng: random.Random, left: int) -> int:
    """A length of a document where `left` tokens are left: short ones are as likely as long ones."""
    return int(SHORTEST * (left / SHORTEST) ** rng.random())
