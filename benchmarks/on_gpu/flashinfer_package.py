"""Checks that FlashInfer can be used, before a part waits for its compilation."""

from __future__ import annotations

from benchmarks.on_gpu.setting import Setting
from sluice.attention.select import backend_named


def check_flashinfer(setting: Setting) -> None:
    """
    Raises:
        RuntimeError: FlashInfer or what it compiles with is missing; the message says what to install.
    """
    problem = backend_named("flashinfer").missing(setting.device, "none")
    if problem is not None:
        raise RuntimeError(f"FlashInfer: {problem}")
