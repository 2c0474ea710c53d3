"""Messages from other threads wake a loop that waits."""

from __future__ import annotations

import select
import threading

from sluice.engine.messages import Copied
from sluice.process.zmq_link import Mailbox, SocketFolder, ZmqLink
from sluice.types import CopyDone


def copied(ticket: int) -> Copied:
    return Copied((CopyDone(ticket),))


def test_it_is_readable_while_it_holds_something() -> None:
    """With a byte too many in the pipe the loop would spin, with one too few it would sleep beside a message."""
    box = Mailbox()
    for ticket in (1, 2):
        box.post(copied(ticket))
    assert select.select([box], [], [], 0)[0] == [box]
    assert box.take() == [copied(1), copied(2)]
    assert select.select([box], [], [], 0)[0] == []
    assert box.take() == []
    box.close()
    box.post(copied(3))


def test_a_loop_that_waits_for_messages_wakes_for_a_copy() -> None:
    """With nothing to compute, only a posted message shows the loop that a page was read from the disk."""
    folder = SocketFolder.fresh()
    link = ZmqLink(folder)
    try:
        assert link.receive(block=True, timeout=0.01) == []
        thread = threading.Thread(target=link.post, args=(copied(7),))
        thread.start()
        assert link.receive(block=True) == [copied(7)]
        thread.join()
    finally:
        link.close()
        folder.remove()


def test_a_mailbox_is_not_closed_during_a_write() -> None:
    """Between the check that it is open and the write, another file could get its descriptor."""

    class Watched(Mailbox):
        closes_meanwhile = False

        def _notify(self) -> None:
            closing = threading.Thread(target=self.close)
            closing.start()
            closing.join(0.05)
            self.closes_meanwhile = not closing.is_alive()
            super()._notify()

    box = Watched()
    box.post(copied(1))
    assert not box.closes_meanwhile
    box.post(copied(2))  # dropped if it is closed by now
    box.close()
    box.close()
