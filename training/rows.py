"""Rows of the training text. A step draws its own by its number, so that training can stop and go on."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training import copying, documents, talk
from training.dialogue import TEXT_WEIGHT, Turn
from training.facts import FactSource
from training.words import Namer
from training.writing import Row, TurnWriter, tensors

TEXT_SHARE = 0.12
"""Tokens of texts and questions that count in the loss at all: nothing foretells most of them."""
SHORTEST = 60


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the rows of a step are made of; the shares are chances."""

    talk_share: float = 0.0
    """Rows that begin with small talk."""
    recital_share: float = 0.0
    """Rows of facts, and all of them again in another order."""
    dense_share: float = 0.0
    """Rows whose texts are full of facts."""
    variety: float = 1.0
    """Share of the phrasings that are drawn, the plainest first."""
    blends: float = 0.0
    """Attributes and verbs that are named by parts of two words: they can be repeated by copying alone."""
    loose: bool = False
    """Facts are told and asked for more freely (`FactSource`), strings to copy stand among any words, and more
    questions come before their text."""


class RowSource:
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

    def batch(self, step: int, rows: int, length: int, lesson: Lesson = Lesson()) -> tuple[Tensor, Tensor]:
        """Return token ids and weights, both [rows, length + 1]. Of texts that are read, a sample alone has weight."""
        rngs = [random.Random(f"{self.seed} {step} {row}") for row in range(rows)]
        tokens, weights = tensors([self.row(rng, length + 1, lesson) for rng in rngs])
        chances = torch.rand(weights.shape, generator=torch.Generator().manual_seed(self.seed * 1_000_003 + step))
        return tokens, torch.where((weights == TEXT_WEIGHT) & (chances > TEXT_SHARE), 0.0, weights)

    def row(self, rng: random.Random, length: int, lesson: Lesson) -> Row:
        """Draw one row of exactly `length` tokens. Its documents share one source, so that none contradicts another."""
        names = Namer(rng, held_out=self.held_out_names)
        source = FactSource(
            names,
            held_out_phrasings=self.held_out,
            variety=lesson.variety,
            blends=lesson.blends,
            loose=lesson.loose,
        )
        row = Row([], [])
        if rng.random() < lesson.talk_share:
            self.writer.add(row, talk.conversation(source.names, rng.randint(5, 20)))
        recites, dense = rng.random() < lesson.recital_share, rng.random() < lesson.dense_share
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
            return copying.conversation(source.names, rng.randint(1, 3), loose=source.loose)
        if chance < 0.1 + 0.1 * source.variety:
            return documents.chat(source, min(left, rng.randint(60, 400)))
        whole = rng.random() < 0.5
        return documents.conversation(source, left if whole or dense else _part(rng, left), dense=dense)


def _part(rng: random.Random, left: int) -> int:
    """Draw a length of a document where `left` tokens are left: short ones are as likely as long ones."""
    return int(SHORTEST * (left / SHORTEST) ** rng.random())
