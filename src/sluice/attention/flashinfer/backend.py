"""The FlashInfer backend, and a first use of the package to have its kernels compiled."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch

from sluice.attention.backend import AttentionBackend, dtype_names
from sluice.attention.base import Attention, ForwardBatch, LayerKV
from sluice.attention.flashinfer.api import PACKAGE, FlashInferUnavailable, load_flashinfer
from sluice.attention.flashinfer.attention import FlashInferAttention
from sluice.attention.flashinfer.layer import DTYPES, HEAD_DIMS
from sluice.attention.spec import AttentionSpec
from sluice.attention.triton.backend import TritonBackend
from sluice.kernels.cpu.library import Kernels

OLDEST = (8, 0)


class FlashInferBackend(AttentionBackend):
    """The package FlashInfer, where it is named."""

    name = "flashinfer"
    takes_windows = False
    capturable_on = "cuda"

    def missing(self, device: torch.device, cpu_kernels: str) -> str | None:
        if device.type != "cuda":
            return f"it needs --device cuda, got {device.type}; use --attention-backend reference"
        if find_spec(PACKAGE) is None:
            return (
                f"the package {PACKAGE} is not installed (pip install 'sluice-llm[flashinfer]');"
                f" use --attention-backend triton"
            )
        capability = torch.cuda.get_device_capability(device)
        if capability < OLDEST:
            return (
                f"it needs compute capability 8.0, {torch.cuda.get_device_name(device)} has {capability};"
                f" use --attention-backend reference"
            )
        return None

    def supports(self, spec: AttentionSpec, page_size: int, device: torch.device) -> str | None:
        """Check sizes, then compile what the model needs and see that it computes: better now than in a request."""
        if spec.block_size is not None:
            return f"it attends causally by the token, and the model by blocks of {spec.block_size}"
        if spec.dtype not in DTYPES:
            return f"it takes {dtype_names(DTYPES)}, the model is {dtype_names((spec.dtype,))}"
        if spec.head_dim not in HEAD_DIMS:
            return f"it takes heads of {', '.join(map(str, HEAD_DIMS))}, the model's have {spec.head_dim}"
        return _first_use(spec, page_size, device)

    def make(self, device: torch.device, kernels: Kernels | None, tick: Callable[[], None]) -> Attention:
        return FlashInferAttention(load_flashinfer(), device)

    def make_unplanned(self, device: torch.device, kernels: Kernels | None, tick: Callable[[], None]) -> Attention:
        return TritonBackend().make(device, kernels, tick)


def _first_use(spec: AttentionSpec, page_size: int, device: torch.device) -> str | None:
    """Return why FlashInfer does not compute on this device, or None if it does."""
    try:
        try_out(FlashInferAttention(load_flashinfer(), device), spec, page_size, device)
    except FlashInferUnavailable as error:
        return f"{error}; use --attention-backend triton"
    return None


def try_out(attention: FlashInferAttention, spec: AttentionSpec, page_size: int, device: torch.device) -> None:
    """Attend with one query and with two over a page of ones, whose answer is known.

    Raises:
        FlashInferUnavailable: its kernels cannot be compiled or run here, or give a wrong answer.
    """
    page = torch.ones((1, page_size, spec.num_kv_heads, spec.head_dim), dtype=spec.dtype, device=device)
    for q_len in (1, 2):
        q = torch.ones((q_len, spec.num_heads, spec.head_dim), dtype=spec.dtype, device=device)
        batch = _one_row(q_len, device)
        try:
            attention.plan(batch)
            out, _ = attention.attend(q, LayerKV(page, page), batch, spec)
            is_right = bool(torch.allclose(out.float(), torch.ones_like(out, dtype=torch.float32), atol=0.05))
        except Exception as error:  # a compiler or a driver may raise anything
            reason = str(error).strip().partition("\n")[0]
            raise FlashInferUnavailable(f"it does not run on {device}: {type(error).__name__}: {reason}") from error
        if not is_right:
            raise FlashInferUnavailable(f"it computes wrong results on {device}")


def _one_row(q_len: int, device: torch.device) -> ForwardBatch:
    """Return a batch of two tokens in page 0, of which the last `q_len` are queries."""
    none = torch.empty(0, dtype=torch.int64, device=device)
    return ForwardBatch(
        input_ids=none,
        positions=none,
        kv_slots=none,
        page_table=torch.zeros((1, 1), dtype=torch.int32, device=device),
        q_starts=torch.tensor([0, q_len], dtype=torch.int32, device=device),
        kv_lens=torch.tensor([2], dtype=torch.int32, device=device),
        logit_rows=none,
        q_lens=(q_len,),
        kv_lens_host=(2,),
        num_decodes=1 if q_len == 1 else 0,
    )
