"""Where Triton's kernels run in this process: interpreted on the CPU, or compiled for the CUDA device there is.

Which of the two is decided when kernels are imported, for the whole process (`TRITON_INTERPRET`, see conftest.py), so
the other one's tests are skipped.
"""

from __future__ import annotations

import pytest
import torch
import triton

IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
HERE = torch.device("cpu" if IS_INTERPRETED or not torch.cuda.is_available() else "cuda")
"""For what does not depend on it."""

each_device = pytest.mark.parametrize(
    "device",
    [
        pytest.param(
            torch.device("cpu"),
            id="interpreted",
            marks=pytest.mark.skipif(not IS_INTERPRETED, reason="Triton compiles here"),
        ),
        pytest.param(
            torch.device("cuda"),
            id="cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(IS_INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device"),
            ],
        ),
    ],
)
quiet = pytest.mark.filterwarnings(
    *[f"ignore:{what}:RuntimeWarning" for what in ("overflow encountered", "invalid value", "divide by zero")]
)
"""The interpreter computes with numpy, which warns where a device goes on with infinity or NaN."""
