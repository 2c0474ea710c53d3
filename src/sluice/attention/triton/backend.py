"""The Triton backend. The package triton is imported when it is used: it takes a tenth of a second, and some systems
have none."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from types import MappingProxyType

import torch

from sluice.attention.backend import AttentionBackend, dtype_names
from sluice.attention.base import Attention, PagedKV
from sluice.attention.spec import AttentionSpec, KVShape
from sluice.attention.triton.tiles import MAX_HEAD_DIM, QUERY_DTYPES, Arch
from sluice.kernels.cpu.library import Kernels


class TritonBackend(AttentionBackend):
    """Our kernels for GPUs from compute capability 8.0 up."""

    name = "triton"
    kv_dtypes = MappingProxyType({"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2})
    capturable_on = "cuda"

    def default_reason(self, device: torch.device, cpu_kernels: str) -> str | None:
        return "default on cuda" if device.type == "cuda" else None

    def missing(self, device: torch.device, cpu_kernels: str) -> str | None:
        if find_spec("triton") is None:
            return "the package triton is not installed; use --attention-backend reference"
        try:
            Arch.of(device)
        except ValueError as error:
            return str(error)
        return None

    def supports(self, spec: AttentionSpec, page_size: int, device: torch.device) -> str | None:
        if spec.dtype not in QUERY_DTYPES:
            return f"it takes {dtype_names(QUERY_DTYPES)}, the model is {dtype_names((spec.dtype,))}"
        if spec.head_dim > MAX_HEAD_DIM:
            return f"it takes heads of at most {MAX_HEAD_DIM}, the model's have {spec.head_dim}"
        return None

    def new_kv(self, shape: KVShape, kernels: Kernels | None) -> PagedKV:
        from sluice.attention.triton.kv import TritonKV

        return TritonKV.empty(shape)

    def make(self, device: torch.device, kernels: Kernels | None, tick: Callable[[], None]) -> Attention:
        from sluice.attention.triton.attention import TritonAttention

        return TritonAttention(Arch.of(device))
