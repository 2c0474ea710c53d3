"""Engines over the shadow model, and factories for the engine's process, some of which fail."""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import threading
from dataclasses import replace
from typing import Any

from recording import RecordingRunner
from sluice.assembly.resolve import Resolution, resolve
from sluice.config import EngineConfig
from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.page_feed import PageFeed, PageListener
from sluice.engine.protocols import Link, Pending, Runner
from sluice.engine.trace import ChunkLog, RecentSteps
from sluice.kv.events import NO_EVENTS, EventLog
from sluice.kv.manager import KVManager
from sluice.process.kv_events.board import KvEventSender
from sluice.process.wire import Ready, Start
from sluice.process.zmq_link import ZmqLink
from sluice.scheduler.drafting.measured_drafter import drafter_of
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import SHADOW_EMBEDDING_SIZE, Faults, FaultyRunner, ShadowGrammars, ShadowRunner
from sluice.testing.laws import Lawful
from sluice.types import BatchPlan
from sluice.types.request_limits import Limits

VOCAB = 127
PAGE_SIZE = 4
NUM_PAGES = 64
MAX_MODEL_LEN = 200
LIMITS = Limits(
    vocab_size=VOCAB,
    max_model_len=MAX_MODEL_LEN,
    max_total_tokens=NUM_PAGES * PAGE_SIZE,
    embedding_size=SHADOW_EMBEDDING_SIZE,
)
OPTIONS: dict[str, Any] = {
    "page_size": PAGE_SIZE,
    "max_total_tokens": NUM_PAGES * PAGE_SIZE,
    "chunked_prefill_size": 32,
    "max_batch_tokens": 64,
    "max_running_requests": 8,
}


def resolution(**options: Any) -> Resolution:
    """Return the shadow engine's options with changes."""
    return resolve(EngineConfig.from_options(OPTIONS | options), "cpu")


def limits_of(config: EngineConfig) -> Limits:
    """Return the limits of a shadow engine."""
    scheduler = config.scheduler
    knows_priority, classes = scheduler.schedule_policy == "priority", scheduler.limits().classes
    return replace(LIMITS, knows_priority=knows_priority, classes=classes)


def shadow_engine(
    link: Link, faults: Faults | None = None, listener: PageListener | None = None, **options: Any
) -> Engine:
    """Build the real scheduler, checked by its laws, over the shadow model; its plans are in `engine.runner.plans`."""
    config = resolution(**options).config
    cache, depth = config.cache, config.scheduler.depth
    assert None not in (cache.page_size, cache.max_total_tokens, depth), f"not resolved: {config}"
    log = EventLog(cache.page_size)
    kv = KVManager(
        num_pages=cache.max_total_tokens // cache.page_size,
        page_size=cache.page_size,
        prefix_caching=cache.enable_prefix_caching,
        events=log if listener is not None else NO_EVENTS,
    )
    shadow = ShadowRunner(page_size=cache.page_size, vocab_size=VOCAB, late=depth > 1)
    runner = RecordingRunner(FaultyRunner(shadow, faults or Faults()))
    limits, drafting = config.scheduler.limits(), config.speculative.limits()
    drafter, clock = None, None
    if drafting is not None:
        limits = replace(limits, num_draft_tokens=config.speculative.drafts())
        drafter, clock = drafter_of(drafting, limits.num_draft_tokens), VirtualClock()  # no time passes
    scheduler = Lawful(Scheduler(limits, kv, drafter=drafter))
    grammars = ShadowGrammars(link.post)
    feed = None if listener is None else PageFeed(log, listener)
    trace = ChunkLog(RecentSteps())
    return Engine(scheduler, runner, link, depth=depth, clock=clock, trace=trace, grammars=grammars, feed=feed)


def build(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Build an engine. The model's name is the folder of the tokenizer."""
    chosen = resolution()
    ready = Ready("shadow", start.config.model.model, LIMITS, (), config=chosen.config, reasons=chosen.reasons)
    listener = KvEventSender(link.send_frame) if start.reports_kv_events else None
    return shadow_engine(link, listener=listener), ready


def counts_its_objects(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Build an engine whose first step fails with the number of objects that the garbage collector ignores."""
    engine, ready = build(start, link)
    engine.runner = _Counts()
    return engine, ready


class _Counts:
    def launch(self, plan: BatchPlan) -> Pending:
        raise RuntimeError(f"{gc.get_freeze_count()} objects are left alone")

    def close(self) -> None:
        """Return: nothing is open."""


def refuse(start: Start, link: Link) -> tuple[Engine, Ready]:
    """Refuse with an exception of two lines."""
    raise ValueError(f"the checkpoint {start.config.model.model}\nis bad")


def sends_an_invalid_message(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Send a message that the server cannot decode."""
    link.send_frame(Ready("m", "f", limits=None, eos_token_ids=()))  # type: ignore[arg-type]
    return hang(start, link)


def crash(start: Start, link: Link) -> tuple[Engine, Ready]:
    """End the process without a message."""
    os._exit(7)


def once(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Build the first engine of a server only."""
    if start.epoch:
        os._exit(7)
    return build(start, link)


def short_of_memory(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Build the first engine of a server; for the others there is no memory."""
    if start.epoch:
        raise ValueError("no memory left") from OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return build(start, link)


def hangs_once(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Build an engine, except the first one that follows another."""
    return hang(start, link) if start.epoch == 1 else build(start, link)


def computes_long(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Build an engine whose first step is one call of compiled code that takes about three seconds."""
    engine, ready = build(start, link)
    engine.runner = _ComputesLong(engine.runner)
    return engine, ready


class _ComputesLong:
    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self._has_computed = False

    def launch(self, plan: BatchPlan) -> Pending:
        if not self._has_computed:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 9_000_000)
        self._has_computed = True
        return self._inner.launch(plan)

    def close(self) -> None:
        self._inner.close()


def hang(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Never return, like a factory that loads a large model from a slow disk."""
    threading.Event().wait()
    raise AssertionError
