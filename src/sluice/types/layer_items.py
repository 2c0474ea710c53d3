"""LayerItems: how the work on a chunk that is divided by layers is divided among the stages of a pipeline."""

from __future__ import annotations

from typing import NamedTuple

PARTS_OF_STAGE = 4
"""Parts of a chunk for each stage, at most: with two stages, each of them computes in eight of nine rounds."""


class LayerItems(NamedTuple):
    """The work items of a resident chunk. With one stage each layer is an item.

    In a pipeline a chunk has several *parts*, of consecutive tokens, which follow each other through the stages:

        round     0       1       2       3
        stage 0   part 0  part 1  part 2
        stage 1           part 0  part 1  part 2

    The items of a round are the layers that each stage has, the first one of each stage, then the second. A slice has
    items of one round alone: those of the next one need the hidden states that the stages send when they have computed
    their last layers.
    """

    parts: int
    stages: int
    of_round: int
    """Items of a round: layers of the largest stage."""

    @classmethod
    def of(cls, num_layers: int, stages: int, length: int, part_tokens: int) -> LayerItems:
        """Return the items of a chunk.

        Args:
            num_layers: of the model. The stages have equally many, or the last ones one less.
            length: tokens of the chunk.
            part_tokens: fewest tokens of a part, if there are several.
        """
        parts = 1 if stages == 1 else max(1, min(PARTS_OF_STAGE * stages, length // part_tokens))
        return cls(parts, stages, -(-num_layers // stages))

    @classmethod
    def of_slice(cls, num_layers: int, stages: int, total: int) -> LayerItems:
        """Return the items of a chunk that has so many."""
        of_round = -(-num_layers // stages)
        return cls(total // of_round - stages + 1, stages, of_round)

    @property
    def total(self) -> int:
        return (self.parts + self.stages - 1) * self.of_round

    def end_of_round(self, item: int) -> int:
        """Return the first item of the round behind that of an item."""
        return (item // self.of_round + 1) * self.of_round
