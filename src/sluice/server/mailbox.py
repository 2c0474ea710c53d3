"""Messages from other threads, for a loop that waits for a file descriptor."""

from __future__ import annotations

import os
import queue
from contextlib import suppress

from sluice.engine.messages import Message


class Mailbox:
    """A queue whose file descriptor is readable while it holds something."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_open = True

    def fileno(self) -> int:
        return self._read

    def post(self, message: Message) -> None:
        """From any thread. After `close` nothing happens."""
        self._messages.put(message)
        with suppress(OSError):  # full: it is readable already
            if self._is_open:
                os.write(self._write, b"\0")

    def take(self) -> list[Message]:
        """Everything there is, in order. Never blocks."""
        with suppress(BlockingIOError):
            os.read(self._read, 1 << 16)
        messages = []
        with suppress(queue.Empty):
            while True:
                messages.append(self._messages.get_nowait())
        return messages

    def close(self) -> None:
        self._is_open = False
        os.close(self._read)
        os.close(self._write)
