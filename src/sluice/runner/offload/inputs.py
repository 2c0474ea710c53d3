"""A offloaded chunk as tensors: its pages on the device are those behind its `base`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sluice.attention.base import ForwardBatch
from sluice.runner.inputs import UNREAD
from sluice.runner.last_tokens import LastTokens
from sluice.types import ChunkSlice


def offloaded_batch(part: ChunkSlice, page_size: int, last_tokens: LastTokens, device: torch.device) -> ForwardBatch:
    """The one row of a offloaded chunk. Its page table and its KV length count from `base`, its positions do not.

    Args:
        last_tokens: what each slot sampled last.
    """

    def to_device(array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    chunk = part.chunk
    positions = np.arange(chunk.start, chunk.end, dtype=np.int64)
    local = positions - part.base
    table = np.array(part.pages, dtype=np.int64)
    is_late = len(chunk.token_ids) < chunk.length
    input_ids = to_device(np.array([*chunk.token_ids, *[UNREAD] * is_late], dtype=np.int64))
    if is_late:
        input_ids[-1:] = last_tokens.read(to_device(np.array([chunk.slot], dtype=np.int64)))
    rows = [chunk.length - 1] * chunk.samples + list(range(len(chunk.targets)))
    return ForwardBatch(
        input_ids=input_ids,
        positions=to_device(positions),
        kv_slots=to_device(table[local // page_size] * page_size + local % page_size),
        page_table=to_device(table.astype(np.int32))[None],
        q_starts=to_device(np.array([0, chunk.length], dtype=np.int32)),
        kv_lens=to_device(np.array([chunk.end - part.base], dtype=np.int32)),
        logit_rows=to_device(np.array(rows, dtype=np.int64)),
        q_lens=(chunk.length,),
        kv_lens_host=(chunk.end - part.base,),
        num_decodes=int(chunk.length == 1),
    )
