"""One log line for every chunk of a prompt that is cut, so that a long prompt can be watched on its way.

    INFO sluice.engine: request 7: chunk 2 of its prompt in step 31: extend_len 512, from 1024, cached prefix 512

Everything is read off the plans: a new slot begins a prompt, the chunk that samples ends it.
"""

from __future__ import annotations

import logging

from sluice.engine.protocols import TraceSink
from sluice.engine.trace import StepRecord, StepTimes
from sluice.types import BatchPlan, BatchResult, Chunk

LOGGER = logging.getLogger("sluice.engine")


class ChunkLog:
    """A trace sink in front of another one."""

    def __init__(self, inner: TraceSink) -> None:
        self._inner = inner
        self._cut: dict[int, tuple[int, int]] = {}
        """Slot -> number of chunks so far and cached prefix of the prompt that is being read there."""

    @property
    def latest(self) -> StepRecord | None:
        return self._inner.latest

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        for new in plan.new_slots:
            self._cut.pop(new.slot, None)
        for chunk in plan.chunks[plan.num_decodes :]:
            self._note(plan, chunk)
        self._inner.ended(plan, result, times)

    def close(self) -> None:
        self._inner.close()

    def _note(self, plan: BatchPlan, chunk: Chunk) -> None:
        number, cached = self._cut.pop(chunk.slot, (0, chunk.start))
        if not chunk.samples:
            self._cut[chunk.slot] = (number + 1, cached)
        elif number == 0:
            return  # whole in one chunk
        LOGGER.info(
            "request %d: chunk %d of its prompt in step %d: extend_len %d, from %d, cached prefix %d%s",
            chunk.request_id,
            number + 1,
            plan.step,
            chunk.length,
            chunk.start,
            cached,
            ", the last" if chunk.samples else "",
        )
