"""Where Triton's kernels run in tests: in its interpreter, or on a CUDA device if there is one."""

from __future__ import annotations

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()
each_device = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(HAS_CUDA, reason="kernels are compiled where there is a device")),
        pytest.param(
            "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")]
        ),
    ],
)
quiet = pytest.mark.filterwarnings(
    *[f"ignore:{what}:RuntimeWarning" for what in ("overflow encountered", "invalid value", "divide by zero")]
)
"""The interpreter computes with numpy, which warns where a device goes on with infinity or NaN."""
