"""What a model in training answers: values that come out word for word, on names that training never draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training import documents
from training.dialogue import ANSWER_WEIGHT, RESTATED_WEIGHT
from training.model import Qwen3
from training.rows import Lesson, RowSource
from training.steps import mixed_precision

SEED = 7
TRAINED_ROWS, HELD_OUT_ROWS, LONG_ROWS = 12, 24, 2
SHORT, LONG = 256, 2048
"""Tokens of a row."""


@dataclass(slots=True)
class Count:
    """Counts answers, and those of them that are right."""

    right: int = 0
    all: int = 0

    def __str__(self) -> str:
        return f"{self.right}/{self.all}"


def progress(model: Qwen3, tokenizer: Tokenizer, variety: float) -> str:
    """Tell how many answers are right, in phrasings of this variety and in those that training never draws."""
    trained = RowSource(tokenizer, SEED, held_out_names=True)
    held_out = RowSource(tokenizer, SEED, held_out=True)
    shares = []
    for name, batch in (
        ("trained", trained.batch(0, TRAINED_ROWS, SHORT, Lesson(variety=variety))),
        ("held out", held_out.batch(0, HELD_OUT_ROWS, SHORT)),
        (str(LONG), held_out.batch(0, LONG_ROWS, LONG)),
    ):
        known, absent, said = answered(model, tokenizer, *batch)
        shares.append(f"{name} {known}, absent {absent}, said {said}")
    return "; ".join(shares)


@torch.no_grad()
def answered(model: Qwen3, tokenizer: Tokenizer, tokens: Tensor, weights: Tensor) -> tuple[Count, Count, Count]:
    """Count the values of the rows that a text holds, those that it does not hold, and what else is said.

    Right means that each token of the value is the likeliest after what the answer repeats.
    """
    with mixed_precision():
        best = torch.cat([model.logits(model(row[None, :-1])).argmax(-1) for row in tokens])
    known, absent, others = Count(), Count(), Count()
    for row_best, row_tokens, row_weights in zip(best, tokens[:, 1:], weights[:, 1:], strict=True):
        for begin, end in runs((row_weights == ANSWER_WEIGHT).tolist()):
            count = others
            if begin > 0 and row_weights[begin - 1] == RESTATED_WEIGHT:
                count = absent if documents.UNKNOWN in tokenizer.decode(row_tokens[begin:end].tolist()) else known
            count.right += bool((row_best[begin:end] == row_tokens[begin:end]).all())
            count.all += 1
    return known, absent, others


def runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Return beginnings and ends of where the flags are set, without one that touches the end of the row."""
    edges = [index for index, (was, now) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if was != now]
    found = list(zip(edges[::2], edges[1::2], strict=True))
    return [run for run in found if run[1] < len(flags)]
