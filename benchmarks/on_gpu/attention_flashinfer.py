"""`attention` beside FlashInfer's: apart, since it compiles for minutes when it is first used."""

from __future__ import annotations

from typing import Any

from benchmarks.on_gpu.attention import compare
from benchmarks.on_gpu.setting import Setting


def measure(setting: Setting) -> dict[str, Any]:
    """See `attention.compare`."""
    return compare(setting, (setting.attention, "flashinfer"))
