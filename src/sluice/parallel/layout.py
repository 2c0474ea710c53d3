"""Layout: which part of a model each rank computes.

Ranks are numbered stage by stage: rank `stage * tensor_size + shard`. The shards of a stage hold parts of the same
layers (tensor parallel: Shoeybi et al., "Megatron-LM", 2019), and the stages hold the layers one after the other
(pipeline parallel: Huang et al., "GPipe", 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

WORD = 32
"""Tokens of a word of a mask, and of a block of packed weights: vocabularies are cut between words."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How many parts a model is cut into."""

    tensor_size: int = 1
    """Ranks that share each layer."""
    pipeline_size: int = 1
    """Stages, one after the other."""

    @property
    def size(self) -> int:
        """All ranks."""
        return self.tensor_size * self.pipeline_size

    def place(self, rank: int) -> Place:
        return Place(self, *divmod(rank, self.tensor_size))

    def stages(self, num_layers: int) -> tuple[range, ...]:
        """Return the layers of each stage."""
        return tuple(Place(self, stage).layers(num_layers) for stage in range(self.pipeline_size))


@dataclass(frozen=True, slots=True)
class Place:
    """The part of one rank."""

    layout: Layout = Layout()
    stage: int = 0
    """Number of its stage; the first embeds."""
    shard: int = 0
    """Number of its part of each layer."""

    @property
    def rank(self) -> int:
        return self.stage * self.layout.tensor_size + self.shard

    @property
    def is_first(self) -> bool:
        """Whether its stage embeds."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether its stage has the head, and samples."""
        return self.stage == self.layout.pipeline_size - 1

    def layers(self, num_layers: int) -> range:
        """Return the layers of its stage. If stages cannot have equally many, the first ones have one more."""
        each, more = divmod(num_layers, self.layout.pipeline_size)
        begin = self.stage * each + min(self.stage, more)
        return range(begin, begin + each + (self.stage < more))

    def vocabulary(self, vocab_size: int) -> range:
        """Return the tokens whose logits its shard computes: as many words of them as the other shards have, or one
        word more or fewer. It is none if there are fewer words than shards."""
        words, size = -(-vocab_size // WORD), self.layout.tensor_size
        begin, end = (WORD * (words * shard // size) for shard in (self.shard, self.shard + 1))
        return range(begin, min(end, vocab_size))

    def part(self, count: int) -> range:
        """Return its shard's part of things that the shards share evenly, such as heads.

        Args:
            count: a multiple of the number of shards, or a divisor of it: then several shards have the same thing.
        """
        begin = self.shard * count // self.layout.tensor_size
        return range(begin, begin + max(1, count // self.layout.tensor_size))
