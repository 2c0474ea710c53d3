"""Checks constraints of requests in a process that can be killed, so that none can stop the server.

To compile a hostile schema may take any time and memory, and a thread cannot be stopped. The process
(`check_process`) works on one at a time, with limits of both; what it has found is remembered, refusals too.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import msgspec

from sluice.text.child_process import ChildProcess, end_of, was_killed
from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.grammars import MAX_BYTES, Checked, place_of
from sluice.text.constraints.shapes import Shape
from sluice.types.framing import TooLong

PROCESS = "sluice.text.constraints.check_process"
SECONDS = 0.5
"""Processor time for one constraint. A schema of 10,000 enum values takes 0.04 s."""
MEMORY_MB = 512
"""Memory of the process beyond what it has at its start, in MiB."""
START_SECONDS = 30.0
"""Time of the process to start."""
TIMEOUT = 10.0
"""Seconds to wait for an answer: more than its processor time, for which other processes compete."""
LONGEST_ANSWER = 8 * MAX_BYTES
MAX_WAITING, MAX_WAITING_OF_ALL = 64, 1024
"""Constraints of one client, and of all, that wait for the process."""
REMEMBERED_BYTES = 1 << 25
"""Most bytes of grammars that are remembered."""


class CheckerBusy(Exception):
    """Too many constraints wait to be checked."""


class CheckerUnavailable(Exception):
    """There is no process to check constraints, for which the constraint is not at fault."""


class ShapeRefused(msgspec.Struct, tag=True):
    """The constraint cannot be used."""

    place: str
    reason: str


Answer = Checked | ShapeRefused


class ConstraintChecker:
    """Makes grammars of shapes. The first one starts the process, which ends with this object.

    Args:
        seconds: limit of the processor time for one constraint.
    """

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._worker = ThreadPoolExecutor(1, "check-constraint")
        """It alone uses the process and the memory."""
        self._process: ChildProcess | None = None
        self._queue = FairQueue(MAX_WAITING, MAX_WAITING_OF_ALL)
        self._answers: OrderedDict[bytes, Answer] = OrderedDict()
        self._remembered = 0

    @property
    def pid(self) -> int | None:
        """The process; None before the first constraint, and after one that ended it."""
        return None if self._process is None else self._process.pid

    async def check(self, shape: Shape, client: str = "") -> Checked:
        """Return the grammar of a shape. Clients whose shapes wait take turns.

        Raises:
            ConstraintError: the shape cannot be used, or it takes too much to find out.
            CheckerBusy: too many others wait.
            CheckerUnavailable: there is no process.
        """
        frame = encoded(shape)
        key = hashlib.blake2b(frame, digest_size=16).digest()
        answer = self._answers.get(key)
        if answer is None:
            answer = await self._asked(key, frame, shape, client)
        if isinstance(answer, ShapeRefused):
            raise ConstraintError(answer.place, answer.reason)
        return answer

    async def _asked(self, key: bytes, frame: bytes, shape: Shape, client: str) -> Answer:
        try:
            async with self._queue.turn(client):
                found = asyncio.get_running_loop().run_in_executor(self._worker, self._ask, key, frame, shape)
                return await found
        except QueueFull:
            raise CheckerBusy(f"{MAX_WAITING} constraints wait to be checked") from None

    def _ask(self, key: bytes, frame: bytes, shape: Shape) -> Answer:
        answer = self._answers.get(key)
        if answer is None:
            answer = self._exchange(self._started(), frame, shape)
            self._remember(key, answer)
        return answer

    def _remember(self, key: bytes, answer: Answer) -> None:
        self._answers[key] = answer
        self._remembered += _size(answer)
        while self._remembered > REMEMBERED_BYTES:
            _, dropped = self._answers.popitem(last=False)
            self._remembered -= _size(dropped)

    def _started(self) -> ChildProcess:
        """Return the process, a new one if there is none or it has ended."""
        if self._process is not None and self._process.is_running:
            return self._process
        self._end()
        try:
            process = ChildProcess(PROCESS)
            self._finalizer = weakref.finalize(self, process.end)
            process.exchange(msgspec.msgpack.encode(self._seconds), time.monotonic() + START_SECONDS, 0)
        except (OSError, EOFError) as error:
            raise CheckerUnavailable(f"the process that checks constraints cannot be started: {error}") from error
        self._process = process
        return process

    def _end(self) -> None:
        if self._process is not None:
            self._finalizer()
            self._process = None

    def _exchange(self, process: ChildProcess, frame: bytes, shape: Shape) -> Answer:
        """Send a shape and return the answer; end the process if there is none."""
        try:
            answer: Answer = msgspec.msgpack.decode(
                process.exchange(frame, time.monotonic() + TIMEOUT, LONGEST_ANSWER), type=Answer
            )
            return answer
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            try:
                reason = self._reason(process, error)
            finally:
                self._end()
            return ShapeRefused(place_of(shape), f"it is too complex: to compile it {reason}")

    def _reason(self, process: ChildProcess, error: Exception) -> str:
        """Return why there is no answer.

        Raises:
            CheckerUnavailable: the shape is not at fault.
        """
        if isinstance(error, TooLong):
            return "makes a grammar that is too large"
        if isinstance(error, TimeoutError):
            raise CheckerUnavailable("the process that checks constraints did not answer in time") from error
        status = process.status()
        if was_killed(status):
            raise CheckerUnavailable(f"the process that checks constraints was killed: status {status}") from error
        return end_of(status, self._seconds, MEMORY_MB)


def encoded(shape: Shape) -> bytes:
    """Return a shape as bytes.

    Raises:
        ConstraintError: it is too large.
    """
    try:
        frame = msgspec.msgpack.encode(shape)
    except (RecursionError, UnicodeEncodeError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is no valid Unicode: {error}"
        raise ConstraintError(place_of(shape), reason) from error
    if len(frame) > MAX_BYTES:
        raise ConstraintError(place_of(shape), f"it has {len(frame)} bytes; at most {MAX_BYTES} are accepted")
    return frame


def _size(answer: Answer) -> int:
    return 1024 + (len(answer.text) if isinstance(answer, Checked) else len(answer.reason))


class QueueFull(Exception):
    """Too many wait."""


class FairQueue:
    """Admits one at a time: round robin between clients, first come first served within one.

    Args:
        most: that may wait and work for one client.
        most_of_all: the same of all clients together.
    """

    def __init__(self, most: int, most_of_all: int) -> None:
        self._most, self._most_of_all = most, most_of_all
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiting calls by client, the client whose turn is next first."""
        self._counts: dict[str, int] = {}
        self._is_busy = False

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn of this client, and hold it.

        Raises:
            QueueFull: too many of this client's wait, or of all.
        """
        count = self._counts.get(client, 0)
        if count >= self._most or sum(self._counts.values()) >= self._most_of_all:
            raise QueueFull
        self._counts[client] = count + 1
        try:
            await self._admitted(client)
            try:
                yield
            finally:
                self._admit_next()
        finally:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]

    async def _admitted(self, client: str) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was admitted in the same moment
                self._admit_next()
            raise

    def _admit_next(self) -> None:
        """Admit the first of the client whose turn it is; those that were cancelled have left."""
        while self._waiting:
            client, places = self._waiting.popitem(last=False)
            place = places.popleft()
            if places:
                self._waiting[client] = places
            if not place.done():
                place.set_result(None)
                return
        self._is_busy = False
