"""Host arrays to device tensors, without waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def upload(device: torch.device, *arrays: npt.NDArray[Any]) -> tuple[torch.Tensor, ...]:
    """The arrays, each of one dimension, as tensors of the same dtypes.

    On cuda one pinned buffer and one copy for each dtype: a step has many small arrays, and a copy costs more than
    its bytes. Torch's pinned allocator keeps a buffer until the copy out of it is done. On cpu memory is shared.
    """
    if device.type == "cpu":
        return tuple(torch.from_numpy(array) for array in arrays)
    done: dict[int, torch.Tensor] = {}
    for dtype in {array.dtype for array in arrays}:
        members = [i for i, array in enumerate(arrays) if array.dtype == dtype]
        joined = torch.from_numpy(np.concatenate([arrays[i] for i in members])).pin_memory()
        parts = joined.to(device, non_blocking=True).split([len(arrays[i]) for i in members])
        done.update(zip(members, parts, strict=True))
    return tuple(done[i] for i in range(len(arrays)))
