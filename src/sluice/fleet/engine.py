"""The factory of a replica's engine: that of `sluice serve`, and the fingerprint of its weights."""

from __future__ import annotations

from dataclasses import replace

from sluice.engine.engine import Engine
from sluice.process.wire import Ready, Start
from sluice.process.zmq_link import ZmqLink


def build(start: Start, link: ZmqLink) -> tuple[Engine, Ready]:
    """Build the engine of a checkpoint. Runs in the engine's process, which has loaded torch."""
    from sluice.assembly.load import find_checkpoint
    from sluice.assembly.rank_facts import sampled_fingerprint
    from sluice.process.engine_process import build

    engine, ready = build(start, link)
    return engine, replace(ready, fingerprint=sampled_fingerprint(find_checkpoint(start.config.model).folder))
