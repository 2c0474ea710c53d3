"""Tokens on their way from the last stage of a pipeline to the first one."""

from __future__ import annotations

from collections import deque

import torch

from sluice.parallel.group import Alone
from sluice.parallel.layout import Layout
from sluice.parallel.member import Member
from sluice.runner.last_tokens import PlainLastTokens
from sluice.runner.parallel.tokens import ReceivedTokens
from thread_groups import ThreadGroup

STAGES, SLOTS = 3, 4


class Inbox(Alone):
    """The first stage's end, and what the last stage has sent."""

    size = STAGES

    def __init__(self) -> None:
        self.unread: deque[torch.Tensor] = deque()

    def recv(self, x: torch.Tensor, source: int) -> torch.Tensor:
        assert source == STAGES - 1
        return x.copy_(self.unread.popleft())


def test_tokens_that_no_step_reads_do_not_pile_up() -> None:
    """An hour of prompts, of which no step reads a token: as much is on its way as the pipeline has stages."""
    inbox = Inbox()
    tokens = ReceivedTokens(
        PlainLastTokens(SLOTS, torch.device("cpu")), Member(Layout(1, STAGES).place(0), pipeline_group=inbox)
    )
    for step in range(20):
        tokens.await_tokens(torch.tensor([step % SLOTS]))
        inbox.unread.append(torch.tensor([100 + step]))
        assert len(inbox.unread) == min(step + 1, STAGES)
    assert tokens.read(torch.arange(SLOTS)).tolist() == [116, 117, 118, 119]
    assert not inbox.unread


def test_a_step_waits_for_the_tokens_that_it_reads_alone() -> None:
    """Streams in turns: the one of the step before is still on the last stage when the other's next step begins."""
    first, last = ThreadGroup.make(2, timeout=0.1)
    tokens = ReceivedTokens(
        PlainLastTokens(SLOTS, torch.device("cpu")), Member(Layout(1, 2).place(0), pipeline_group=first)
    )
    tokens.await_tokens(torch.tensor([0]))
    tokens.await_tokens(torch.tensor([1]))
    last.send(torch.tensor([100]), 0)
    assert tokens.read(torch.tensor([0])).tolist() == [100]
    last.send(torch.tensor([101]), 0)
    assert tokens.read(torch.tensor([1])).tolist() == [101]
