"""Sampled tokens on the first stage of a pipeline, for steps that are planned before the leader knows them.

    last stage     writes what it sampled, and sends it to the first stage
    first stage    receives the tokens of the steps before, in their order, up to the last that a step reads

Nothing passes through the leader, so with a lookahead a stream's next token follows as soon as the last stage has
sampled the one before.
"""

from __future__ import annotations

from collections import deque

import torch

from sluice.parallel.member import Member
from sluice.runner.device_state import DeviceState
from sluice.runner.last_tokens import LastTokens


class SentTokens:
    """Those of the last stage.

    Args:
        inner: keeps them here.
        member: the rank.
    """

    def __init__(self, inner: LastTokens, member: Member) -> None:
        self._inner = inner
        self._group = member.pipeline_group

    def open(self, slots: torch.Tensor) -> None:
        self._inner.open(slots)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        return self._inner.read(slots)

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if len(slots):
            self._group.send(tokens, 0)
        return self._inner.write(slots, tokens)

    def await_tokens(self, slots: torch.Tensor) -> None:
        raise AssertionError("the last stage samples")


class ReceivedTokens:
    """Those of the first stage.

    Args:
        inner: keeps them once they were received.
        member: the rank.
    """

    def __init__(self, inner: LastTokens, member: Member) -> None:
        self._inner = inner
        self._group = member.pipeline_group
        self._due: deque[torch.Tensor] = deque()
        """Slots of the steps whose tokens were not received, in the order of the steps."""

    def open(self, slots: torch.Tensor) -> None:
        self._inner.open(slots)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Return what slots sampled last, once the last stage has sampled it. Later steps need not have ended: the
        stages would not compute at the same time."""
        wanted = set(slots.tolist())
        while any(not wanted.isdisjoint(due.tolist()) for due in self._due):
            self._receive()
        return self._inner.read(slots)

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the last stage samples")

    def await_tokens(self, slots: torch.Tensor) -> None:
        """Note that the last stage samples slots [S] int64. Tokens of steps that have left the pipeline are received:
        what is sent should not pile up."""
        if len(slots):
            self._due.append(slots)
        while len(self._due) > self._group.size:
            self._receive()

    def _receive(self) -> None:
        slots = self._due.popleft()
        self._inner.write(slots, self._group.recv(torch.empty_like(slots), self._group.size - 1))


def exchange_last_tokens(state: DeviceState, member: Member) -> None:
    """Let the first stage of a pipeline have the tokens that the last one samples. Called on every rank, before the
    first step, if requests have a lookahead."""
    place = member.place
    if place.is_first and not place.is_last:
        state.last_tokens = ReceivedTokens(state.last_tokens, member)
    elif place.is_last and not place.is_first:
        state.last_tokens = SentTokens(state.last_tokens, member)
