"""Member: one of the ranks that compute a model together, as its code sees itself and the others."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.parallel.group import Alone, Group
from sluice.parallel.layout import Place


@dataclass(frozen=True, slots=True)
class Member:
    """A rank's place, and the groups in which it exchanges tensors. By default it is alone.

    Raises:
        ValueError: a group is not that of its place.
    """

    place: Place = field(default_factory=Place)
    tensor_group: Group = field(default_factory=Alone)
    """The shards of its stage, by their numbers."""
    pipeline_group: Group = field(default_factory=Alone)
    """The stages of its shard, by their numbers."""

    def __post_init__(self) -> None:
        place, layout = self.place, self.place.layout
        _check("tensor", self.tensor_group, place.shard, layout.tensor_size)
        _check("pipeline", self.pipeline_group, place.stage, layout.pipeline_size)

    def close(self) -> None:
        """Leave both groups. May be called again."""
        self.tensor_group.close()
        self.pipeline_group.close()


def _check(name: str, group: Group, rank: int, size: int) -> None:
    if (group.rank, group.size) != (rank, size):
        raise ValueError(
            f"{name}_group must be that of rank {rank} of {size}, got that of rank {group.rank} of {group.size}"
        )


ALONE = Member()
"""The rank of a model that one rank computes."""
