"""Steps for features, without a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.runner.inputs import HostBatch, Ints


def sampling_rows(slots: Sequence[int], positions: Ints) -> HostBatch:
    """Return a step of one token in each of some slots, all of which sample."""
    count = len(slots)
    numbers, none = np.array(slots, dtype=np.int64), np.empty(0, dtype=np.int64)
    return HostBatch(
        input_ids=np.zeros(count, dtype=np.int64),
        positions=positions - 1,
        kv_slots=np.zeros(count, dtype=np.int64),
        late_tokens=none,
        late_slots=none,
        row_slots=numbers,
        q_starts=np.arange(count + 1, dtype=np.int32),
        kv_lens=positions.astype(np.int32),
        sample_rows=np.arange(count),
        sample_slots=numbers,
        logit_rows=np.arange(count),
        sample_positions=positions,
        embed_rows=none,
        target_ids=none,
        target_rows=(),
        num_pages=1,
        num_decodes=count,
    )
