"""GrammarCompiler: compiles grammars on threads of its own, and keeps them.

A request reports its grammar when it arrives and learns by a message when it can start, so the loop never waits. Equal
grammars are compiled once: those of open requests are kept, and of the others as many as there is room for, the latest
used. The library bounds the work of compiling; what takes too long all the same ends the requests that wait for it, and
its thread is left to end by itself. A queue may take as long as it needs while compilations end. What no request waits
for any more is not begun.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from sluice.engine.clock import Clock, WallClock
from sluice.engine.messages import Compiled
from sluice.engine.meter import GrammarTotals
from sluice.runner.grammar.base import CompiledGrammar
from sluice.runner.grammar.guidance import GrammarError, Guidance

LOGGER = logging.getLogger("sluice.engine")
MAX_SECONDS = 10.0
"""Seconds that one compilation may take, and that a queue may wait while none ends."""
MAX_KEPT = 256
"""Grammars that are kept beside those of open requests."""
MAX_THREADS = 2
"""Grammars that are compiled at once."""
MAX_STUCK = 8
"""Threads that have taken too long, after which no grammar is compiled until one of them ends."""
NICER = 5
"""Niceness of the threads above that of the engine's other threads."""


@dataclass(slots=True, eq=False)
class GrammarEntry:
    """A grammar that requests have asked for."""

    text: str
    due: float
    """Seconds of the clock until which requests wait in any case."""
    users: set[int] = field(default_factory=set)
    """Open requests."""
    waiting: list[int] = field(default_factory=list)
    """Users that have not been notified."""
    compiled: CompiledGrammar | None = None
    error: str | None = None
    has_begun: bool = False
    is_given_up: bool = False
    """It took too long."""

    @property
    def is_done(self) -> bool:
        return self.compiled is not None or self.error is not None


class GrammarCompiler:
    """Compiles grammars (see `engine.protocols.Grammars`) and finds them (`base.CompiledGrammars`).

    Args:
        compile_one: does the work.
        post: receives what becomes of grammars, from any thread.
        max_seconds: that one compilation may take, and that a queue may wait while none ends.
        max_kept: grammars that are kept beside those of open requests.
        max_threads: grammars that are compiled at once.
        clock: measures the time of waiting and compiling.
    """

    def __init__(
        self,
        compile_one: Guidance,
        post: Callable[[Compiled], None],
        *,
        max_seconds: float = MAX_SECONDS,
        max_kept: int = MAX_KEPT,
        max_threads: int = MAX_THREADS,
        clock: Clock | None = None,
    ) -> None:
        self._compile_one = compile_one
        self._post = post
        self._max_seconds = max_seconds
        self._max_kept = max_kept
        self._max_threads = max_threads
        self._clock = clock or WallClock()
        self._lock = threading.Lock()
        self._entries: dict[str, GrammarEntry] = {}
        """Entries by text."""
        self._free: OrderedDict[str, GrammarEntry] = OrderedDict()
        """Entries that no open request uses, the one used last at the end."""
        self._of: dict[int, GrammarEntry] = {}
        self._progress = float("-inf")
        """When a compilation last ended in time."""
        self._queue: deque[GrammarEntry] = deque()
        self._running = self._stuck = 0
        self._hits = self._misses = self._failed = self._evicted = 0
        self._seconds = 0.0
        self._is_open = True
        self._on_end: list[Callable[[int], None]] = []

    def prepare(self) -> None:
        """Do now what is done once. If that fails it is logged, and requests with a grammar will end with an error."""
        try:
            self._compile_one.prepare()
        except ValueError as error:
            LOGGER.info("requests cannot have grammars: %s", error)

    def compile(self, request_id: int, grammar: str) -> Compiled | None:
        with self._lock:
            entry = self._entries.get(grammar)
            if entry is None:
                self._misses += 1
                entry = self._entries[grammar] = GrammarEntry(grammar, self._clock.now() + self._max_seconds)
                self._queue.append(entry)
            else:
                self._hits += 1
            self._free.pop(grammar, None)
            entry.users.add(request_id)
            self._of[request_id] = entry
            if entry.is_done:
                return Compiled(request_id, entry.error)
            entry.waiting.append(request_id)
            self._start_threads()
            return None

    def find(self, request_id: int) -> CompiledGrammar:
        """Return the grammar of a request that was reported as compiled and has not ended.

        Raises:
            GrammarError: there is none.
        """
        entry = self._of.get(request_id)
        if entry is None or entry.compiled is None:
            raise GrammarError(f"the grammar of request {request_id} is not compiled")
        return entry.compiled

    def watch(self, on_end: Callable[[int], None]) -> None:
        self._on_end.append(on_end)

    def forget(self, request_ids: Iterable[int]) -> None:
        with self._lock:
            ended = [(request_id, entry) for request_id in request_ids if (entry := self._of.pop(request_id, None))]
            for request_id, entry in ended:
                entry.users.discard(request_id)
                self._release(entry)
        for request_id, _ in ended:
            for on_end in self._on_end:
                on_end(request_id)

    def totals(self) -> GrammarTotals:
        with self._lock:
            return GrammarTotals(self._hits, self._misses, self._failed, self._evicted, self._seconds)

    def close(self) -> None:
        """Begin no other; threads that compile end by themselves."""
        with self._lock:
            self._is_open = False
            self._queue.clear()

    def _release(self, entry: GrammarEntry) -> None:
        """Where a grammar has no open request any more, drop it if it was not begun, and else keep it for a while."""
        if entry.users or self._entries.get(entry.text) is not entry:
            return
        if entry.is_done:
            self._free[entry.text] = entry
            self._free.move_to_end(entry.text)
            if len(self._free) > self._max_kept:
                oldest, _ = self._free.popitem(last=False)
                del self._entries[oldest]
                self._evicted += 1
        elif not entry.has_begun:
            del self._entries[entry.text]

    def _start_threads(self) -> None:
        """Start threads for what is queued. Called with the lock.

        What is queued needs no timer: each thread is free after `max_seconds` at the latest.
        """
        while self._queue and self._is_open and self._running < self._max_threads:
            entry = self._queue.popleft()
            if not entry.users:
                continue
            error = None
            if self._stuck >= MAX_STUCK:
                error = f"{self._stuck} grammars that take too long are being compiled"
            elif max(entry.due, self._progress + self._max_seconds) <= self._clock.now():
                error = self._too_late()
            if error is not None:
                del self._entries[entry.text]
                self._settle(entry, None, error)
                continue
            entry.has_begun = True
            self._running += 1
            threading.Thread(target=self._run, args=(entry,), name="compile-grammar", daemon=True).start()

    def _too_late(self) -> str:
        return f"the grammar was not compiled within {self._max_seconds:g} seconds"

    def _run(self, entry: GrammarEntry) -> None:
        be_nicer()
        timer = threading.Timer(self._max_seconds, self._give_up, (entry,))
        timer.daemon = True
        timer.start()
        began = self._clock.now()
        compiled: CompiledGrammar | None = None
        error: str | None = None
        try:
            compiled = self._compile_one(entry.text)
        except GrammarError as problem:
            error = str(problem)
        except Exception as problem:
            LOGGER.exception("a grammar could not be compiled")
            error = f"the grammar could not be compiled: {type(problem).__name__}: {problem}"
        timer.cancel()
        with self._lock:
            self._seconds += self._clock.now() - began
            if entry.is_given_up:
                self._stuck -= 1
            else:
                self._running -= 1
                self._progress = self._clock.now()
            self._settle(entry, compiled, error)
            self._start_threads()

    def _give_up(self, entry: GrammarEntry) -> None:
        """End the wait for a grammar, and let another thread take the place of the one that compiles it."""
        with self._lock:
            if entry.is_done:
                return
            entry.is_given_up = True
            self._running -= 1
            self._stuck += 1
            self._settle(entry, None, self._too_late())
            self._start_threads()

    def _settle(self, entry: GrammarEntry, compiled: CompiledGrammar | None, error: str | None) -> None:
        """Note what came of a grammar, and report it. One that was given up may still be of use later."""
        self._failed += error is not None and not entry.is_done
        entry.compiled, entry.error = compiled, error
        waiting, entry.waiting = entry.waiting, []
        for request_id in waiting:
            if request_id in entry.users:
                self._post(Compiled(request_id, error))
        self._release(entry)


def be_nicer() -> None:
    """Let the calling thread go behind others of its process. On Linux, niceness is a thread's."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            niceness = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(niceness + NICER, 19))
