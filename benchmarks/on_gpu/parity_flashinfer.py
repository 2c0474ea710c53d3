"""`parity` with FlashInfer: apart, since it compiles for minutes when it is first used."""

from __future__ import annotations

from typing import Any

from benchmarks.on_gpu.parity import compare
from benchmarks.on_gpu.setting import Setting


def measure(setting: Setting) -> dict[str, Any]:
    """See `parity.compare`."""
    return compare(setting, "flashinfer")
