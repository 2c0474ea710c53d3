"""Times `attention` with FlashInfer, as a part of its own: its first use compiles for minutes."""

from __future__ import annotations

from typing import Any

from benchmarks.on_gpu.attention import compare
from benchmarks.on_gpu.flashinfer_package import check_flashinfer
from benchmarks.on_gpu.setting import Setting


def measure(setting: Setting) -> dict[str, Any]:
    check_flashinfer(setting)
    return compare(setting, (setting.attention, "flashinfer"))
