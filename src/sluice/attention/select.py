"""What attends: chosen for the device, checked against the model, and made.

native      the compiled kernels, on a CPU
triton      our kernels for GPUs from compute capability 8.0 up
flashinfer  that package, where it is asked for
reference   plain torch, anywhere
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import NamedTuple

import torch

from sluice.assembly.cpu_kernels import TORCH
from sluice.attention.base import AttentionBackend, PagedKV
from sluice.attention.flashinfer.api import PACKAGE, FlashInferUnavailable, load_flashinfer
from sluice.attention.flashinfer.layer import DTYPES as FLASHINFER_DTYPES
from sluice.attention.flashinfer.layer import HEAD_DIMS as FLASHINFER_HEAD_DIMS
from sluice.attention.native import NativeAttention
from sluice.attention.packed import PackedKV
from sluice.attention.planned import NO_PLANS, StepPlanner
from sluice.attention.reference import ReferenceAttention
from sluice.config import ConfigError
from sluice.models.spec import ModelSpec
from sluice.native.library import Kernels
from sluice.runner.device_state import DeviceShape, KVMaker

KV_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
)
"""Of `--kv-cache-dtype`, those that are not the model's."""
CAPTURABLE = ("triton", "flashinfer")
"""Those that read lengths on the device only, or plan them before a replay."""
INSTEAD = "use --attention-backend reference"


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """What `--attention-backend` came to."""

    name: str
    reason: str | None
    """Why, if nobody asked for it."""


class Attending(NamedTuple):
    """What a runner needs of a backend."""

    backend: AttentionBackend
    planner: StepPlanner
    new_kv: KVMaker | None
    """Makes pages as the backend reads them; None: as they read."""


def choose_attention(asked: str, device: torch.device, cpu_kernels: str) -> AttentionChoice:
    """
    Args:
        asked: a choice of the option.
        cpu_kernels: what that option came to.

    Raises:
        ConfigError: it cannot be had on this device or in this installation; the message says what can.
    """
    if asked == "reference":
        return AttentionChoice(asked, None)
    if asked == "native":
        if cpu_kernels == TORCH:
            raise ConfigError(f"--attention-backend native needs compiled kernels of a cpu; {INSTEAD}")
        return AttentionChoice(asked, None)
    if asked == "flashinfer":
        problem = _flashinfer_problem(device)
        if problem is not None:
            raise ConfigError(f"--attention-backend flashinfer: {problem}")
        return AttentionChoice(asked, None)
    if asked == "triton":
        problem = _triton_problem(device)
        if problem is not None:
            raise ConfigError(f"--attention-backend triton: {problem}")
        return AttentionChoice(asked, None)
    if device.type == "cpu":
        if cpu_kernels == TORCH:
            return AttentionChoice("reference", "no compiled kernels attend")
        return AttentionChoice("native", f"--cpu-kernels {cpu_kernels}")
    problem = _triton_problem(device)
    if problem is not None:
        return AttentionChoice("reference", problem)
    return AttentionChoice("triton", f"default on {device.type}")


def _triton_problem(device: torch.device) -> str | None:
    """Why our Triton kernels cannot run, or None."""
    if find_spec("triton") is None:
        return f"the package triton is not installed; {INSTEAD}"
    from sluice.attention.triton.tiles import Arch

    try:
        Arch.of(device)
    except ValueError as error:
        return str(error)
    return None


def _flashinfer_problem(device: torch.device) -> str | None:
    """Why FlashInfer cannot run, as far as can be told before its kernels are compiled; or None."""
    if device.type != "cuda":
        return f"it needs --device cuda, got {device.type}; {INSTEAD}"
    if find_spec(PACKAGE) is None:
        return (
            f"the package {PACKAGE} is not installed (pip install 'sluice[flashinfer]'); use --attention-backend triton"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"it needs compute capability 8.0, {torch.cuda.get_device_name(device)} has {capability}; {INSTEAD}"
    return None


def unsuited_attention(name: str, spec: ModelSpec) -> str | None:
    """Why a backend for GPUs cannot serve a model, or None if it can."""
    dtype = str(spec.dtype).removeprefix("torch.")
    if name == "triton":
        from sluice.attention.triton.call import MAX_HEAD_DIM, QUERY_DTYPES

        if spec.dtype not in QUERY_DTYPES:
            return f"it takes {_names(QUERY_DTYPES)}, the model is {dtype}"
        if spec.head_dim > MAX_HEAD_DIM:
            return f"it takes heads of at most {MAX_HEAD_DIM}, the model's have {spec.head_dim}"
    if name == "flashinfer":
        if spec.dtype not in FLASHINFER_DTYPES:
            return f"it takes {_names(FLASHINFER_DTYPES)}, the model is {dtype}"
        if spec.head_dim not in FLASHINFER_HEAD_DIMS:
            sizes = ", ".join(map(str, FLASHINFER_HEAD_DIMS))
            return f"it takes heads of {sizes}, the model's have {spec.head_dim}"
    return None


def kv_dtype(asked: str, attention: str) -> torch.dtype | None:
    """What pages hold, or None for what the model computes in.

    Args:
        asked: a choice of `--kv-cache-dtype`.
        attention: what attends.

    Raises:
        ConfigError: that cannot read them.
    """
    if asked == "auto":
        return None
    if attention != "triton":
        raise ConfigError(
            f"--kv-cache-dtype {asked} needs --attention-backend triton, got {attention}; use --kv-cache-dtype auto"
        )
    return KV_DTYPES[asked]


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def make_attending(name: str, device: torch.device, kernels: Kernels | None, busy: Callable[[], None]) -> Attending:
    """The backend of a resolved name.

    Args:
        kernels: the compiled ones, where they attend.
        busy: called for every bounded part of the work of a CPU.

    Raises:
        ConfigError: FlashInfer cannot be loaded.
    """
    if name == "native":
        assert kernels is not None, "native attention without kernels"
        return Attending(NativeAttention(kernels, busy), NO_PLANS, lambda shape: _packed_kv(shape, kernels))
    if name == "triton":
        from sluice.attention.triton.backend import TritonAttention
        from sluice.attention.triton.tiles import Arch

        return Attending(TritonAttention(Arch.of(device)), NO_PLANS, _triton_kv)
    if name == "flashinfer":
        from sluice.attention.flashinfer.backend import FlashInferAttention

        try:
            attention = FlashInferAttention(load_flashinfer(), device)
        except FlashInferUnavailable as error:
            raise ConfigError(f"--attention-backend flashinfer: {error}; use --attention-backend triton") from error
        return Attending(attention, attention, None)
    return Attending(ReferenceAttention(tick=busy), NO_PLANS, None)


def check_flashinfer(spec: ModelSpec, page_size: int, device: torch.device) -> None:
    """Compile what a model needs, once, and see that it computes: better now than at the first request.

    Raises:
        ConfigError: it does not.
    """
    from sluice.attention.flashinfer.backend import FlashInferAttention
    from sluice.attention.flashinfer.trial import try_out

    try:
        try_out(
            FlashInferAttention(load_flashinfer(), device),
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            page_size,
            spec.dtype,
            device,
        )
    except FlashInferUnavailable as error:
        raise ConfigError(f"--attention-backend flashinfer: {error}; use --attention-backend triton") from error


def _triton_kv(shape: DeviceShape) -> PagedKV:
    from sluice.attention.triton.kv import TritonKV

    pages = shape.num_pages + shape.scratch_pages
    return TritonKV.empty(pages, shape.page_size, shape.num_kv_heads, shape.head_dim, shape.page_dtype, shape.device)


def _packed_kv(shape: DeviceShape, kernels: Kernels) -> PackedKV:
    pages = shape.num_pages + shape.scratch_pages
    return PackedKV.empty(kernels, pages, shape.page_size, shape.num_kv_heads, shape.head_dim, shape.dtype)
