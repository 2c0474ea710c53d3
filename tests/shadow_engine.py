"""Engines over the shadow model, and factories by which the engine's process builds them (or fails to)."""

from __future__ import annotations

import os
import threading

from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.protocols import Link
from sluice.kv.manager import KVManager
from sluice.limits import Limits
from sluice.scheduler.laws import Lawful
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import Faults, FaultyRunner, ShadowRunner
from sluice.types import SchedulerLimits
from sluice.wire import Ready

VOCAB = 127
PAGE_SIZE = 4
NUM_PAGES = 64
MAX_MODEL_LEN = 200
LIMITS = Limits(vocab_size=VOCAB, max_model_len=MAX_MODEL_LEN, max_total_tokens=NUM_PAGES * PAGE_SIZE)


def shadow_engine(link: Link, faults: Faults | None = None, num_pages: int = NUM_PAGES) -> Engine:
    """The real scheduler, held to its laws, over the shadow model."""
    limits = SchedulerLimits("mixed", chunked_prefill_size=32, max_batch_tokens=64, max_running_requests=8)
    scheduler = Lawful(Scheduler(limits, KVManager(num_pages=num_pages, page_size=PAGE_SIZE)))
    runner = FaultyRunner(ShadowRunner(page_size=PAGE_SIZE, vocab_size=VOCAB), faults or Faults())
    return Engine(scheduler, runner, link)


def build(config: EngineConfig, link: Link) -> tuple[Engine, Ready]:
    """A factory that works; the model's name is the folder of the tokenizer."""
    return shadow_engine(link), Ready("shadow", config.model.model, LIMITS, ())


def refuse(config: EngineConfig, link: Link) -> tuple[Engine, Ready]:
    """A factory that refuses, in two lines as exceptions like to."""
    raise ValueError(f"the checkpoint {config.model.model}\nis bad")


def crash(config: EngineConfig, link: Link) -> tuple[Engine, Ready]:
    """A factory whose process goes without a word."""
    os._exit(7)


def hang(config: EngineConfig, link: Link) -> tuple[Engine, Ready]:
    """A factory that never finishes, as one that loads a large model from a slow disk."""
    threading.Event().wait()
    raise AssertionError
