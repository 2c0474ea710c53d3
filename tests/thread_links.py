"""Links between ranks that are threads of one process."""

from __future__ import annotations

from queue import Empty, SimpleQueue

from sluice.parallel.group import GroupError

TIMEOUT = 30.0
"""Seconds after which a rank gives the leader up."""


class ThreadLeaderLink:
    """The leader's end.

    Args:
        size: ranks, the leader included.
    """

    def __init__(self, size: int) -> None:
        self.followers = [ThreadFollowerLink(self, rank) for rank in range(1, size)]
        self.is_closed = False

    def broadcast(self, frame: bytes) -> None:
        if any(follower.has_ended for follower in self.followers):
            raise GroupError("another rank has ended")
        for follower in self.followers:
            follower.commands.put(frame)

    def receive(self, rank: int, timeout: float) -> bytes | None:
        follower = self.followers[rank - 1]
        has_ended = follower.has_ended
        try:
            return follower.replies.get(timeout=0 if has_ended else timeout)
        except Empty:
            if has_ended:
                raise GroupError(f"rank {rank} has ended") from None
            return None

    def close(self) -> None:
        self.is_closed = True
        for follower in self.followers:
            follower.commands.put(None)


class ThreadFollowerLink:
    """The end of another rank."""

    def __init__(self, leader: ThreadLeaderLink, rank: int) -> None:
        self.rank = rank
        self.commands: SimpleQueue[bytes | None] = SimpleQueue()
        self.replies: SimpleQueue[bytes] = SimpleQueue()
        self.has_ended = False
        self._leader = leader

    def receive(self) -> bytes:
        try:
            frame = self.commands.get(timeout=TIMEOUT)
        except Empty:
            raise GroupError(f"the leader has sent nothing for {TIMEOUT:g} s") from None
        if frame is None:
            raise GroupError("the leader has ended")
        return frame

    def send(self, frame: bytes) -> None:
        if self._leader.is_closed:
            raise GroupError("the leader has ended")
        self.replies.put(frame)

    def end(self) -> None:
        """End the rank, as a process that dies."""
        self.has_ended = True
