"""The Triton backend, which imports the package triton only once it is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from types import MappingProxyType

import torch

from sluice.attention.backend import AttentionBackend, dtype_names
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.spec import AttentionSpec, KVShape
from sluice.attention.triton.call import checked_call
from sluice.attention.triton.decode import decode
from sluice.attention.triton.extend import extend
from sluice.attention.triton.tiles import (
    MAX_HEAD_DIM,
    QUERY_DTYPES,
    Arch,
    DecodeTiles,
    ExtendTiles,
    decode_tiles,
    extend_tiles,
)
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
        from sluice.attention.triton.backend import TritonAttention

        return TritonAttention(Arch.of(device))


class TritonAttention(Attention):
    """Attention over `TritonKV` or `LayerKV`, of bfloat16, float16 and float32 queries with heads of up to 256.

    A call reads no value back from the device and keeps nothing: it may be captured in a CUDA graph and replayed over
    other `page_table`, `q_starts` and `kv_lens`. Rows of length 0, which pad a graph, read no page and give zeros.

    Args:
        arch: chooses block sizes.
        extend_with, decode_with: block sizes instead of the table's.
    """

    def __init__(
        self, arch: Arch, *, extend_with: ExtendTiles | None = None, decode_with: DecodeTiles | None = None
    ) -> None:
        self._arch = arch
        self._extend_with = extend_with
        self._decode_with = decode_with

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        call = checked_call(q, kv, batch, spec, need_lse=need_lse, has_fp8=self._arch.has_fp8)
        sizes = (self._arch, call.head_pad, q.element_size())
        decode(call, self._decode_with or decode_tiles(*sizes), self._arch)
        extend(call, self._extend_with or extend_tiles(*sizes))
        return call.out, call.lse if need_lse else None
