"""Where Triton's kernels run in this process: interpreted on the CPU, or compiled for the CUDA device there is.

Which of the two is decided when kernels are imported, for the whole process (`TRITON_INTERPRET`, see conftest.py), so
the other one's tests are skipped.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
import torch
import triton
from triton.language.core import is_builtin
from triton.runtime import interpreter

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


@functools.cache
def builtins_of(package: Any) -> list[str]:
    """Return the names of the functions of Triton's language in a module or a class."""
    return [name for name, member in inspect.getmembers(package) if is_builtin(member)]


def patch_builtins(package: Any, *rest: Any) -> None:
    """As the interpreter's own, which looks for their names anew at every call of a kernel and of its functions: more
    than a quarter of the time of the interpreted tests."""
    for name in builtins_of(package):
        member = getattr(package, name)
        if is_builtin(member):
            interpreter._patch_attr(package, name, member, *rest)


if IS_INTERPRETED and hasattr(interpreter, "_patch_builtin"):
    interpreter._patch_builtin = patch_builtins
