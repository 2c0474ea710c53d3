"""Stamps: late ones are dropped, gaps are told."""

from __future__ import annotations

import pytest

from sluice.process.numbering import Incoming, Outgoing
from sluice.process.wire import WireError


def test_messages_of_one_engine_in_order_count() -> None:
    outgoing, incoming = Outgoing(3), Incoming(3)
    assert all(incoming.accept(outgoing.stamp()) for _ in range(5))
    assert (outgoing.count, incoming.count) == (5, 5)


def test_a_gap_and_a_repetition_are_told() -> None:
    outgoing, incoming = Outgoing(3), Incoming(3)
    first, _, third = (outgoing.stamp() for _ in range(3))
    assert incoming.accept(first)
    with pytest.raises(WireError, match="message 2 came in the place of message 1: some were lost"):
        incoming.accept(third)
    with pytest.raises(WireError, match="message 0 came in the place of message 1"):
        incoming.accept(first)


def test_another_engines_messages_do_not_count() -> None:
    """One that was given up may still have something to say."""
    incoming = Incoming(3)
    assert not incoming.accept(Outgoing(2).stamp())
    assert incoming.accept(Outgoing(3).stamp())
    assert incoming.count == 1


def test_the_first_message_says_which_engine_it_is() -> None:
    incoming = Incoming(None)
    assert incoming.accept(Outgoing(7).stamp())
    assert incoming.epoch == 7
    assert not incoming.accept(Outgoing(8).stamp())


def test_no_stamp() -> None:
    with pytest.raises(WireError, match="a message without a stamp: 5 bytes"):
        Incoming(None).accept(b"hello")
