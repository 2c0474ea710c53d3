"""Messages from other threads, for a loop that waits for a file descriptor."""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress

from sluice.engine.messages import Message


class Mailbox:
    """A queue whose file descriptor is readable while it holds something."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._lock = threading.Lock()
        """Held while a byte is written: a descriptor that is closed meanwhile may be somebody else's file by then."""
        self._is_open = True

    def fileno(self) -> int:
        return self._read

    def post(self, message: Message) -> None:
        """From any thread. After `close` nothing happens."""
        with self._lock:
            if self._is_open:
                self._messages.put(message)
                self._ring()

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
        """Twice is once."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._read)
                os.close(self._write)

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # full: it is readable already
            os.write(self._write, b"\0")
