"""The links between the leader, which is rank 0, and the other ranks: frames in order, beside `Group`s of tensors."""

from __future__ import annotations

from typing import Protocol


class LeaderLink(Protocol):
    """The leader's end."""

    def broadcast(self, frame: bytes) -> None:
        """Send a frame to every other rank. Does not wait until it arrives.

        Raises:
            GroupError: a rank has ended.
        """
        ...

    def receive(self, rank: int, timeout: float) -> bytes | None:
        """Return the next frame of a rank, or None if there is none within `timeout` seconds. What a rank sent before
        it ended is received first.

        Raises:
            GroupError: the rank has ended.
        """
        ...

    def close(self) -> None:
        """Close the links: the other ranks end. May be called again."""
        ...


class FollowerLink(Protocol):
    """The end of another rank."""

    def receive(self) -> bytes:
        """Wait for the next frame of the leader, and return it.

        Raises:
            GroupError: the leader has ended.
        """
        ...

    def send(self, frame: bytes) -> None:
        """Send a frame to the leader. Does not wait until it arrives.

        Raises:
            GroupError: the leader has ended.
        """
        ...
