"""What computes the small operations of a model: norms, rotations, gates and those on logits."""

from __future__ import annotations

import logging

import torch

from sluice.assembly.devices import CudaDevice, why_no_triton
from sluice.kernels.cpu.library import Kernels
from sluice.models.base import CausalLM, PagedLM
from sluice.models.families.eagle3 import Eagle3
from sluice.models.native_ops import NativeOps
from sluice.runner.cpu_logit_ops import CPU_LOGIT_OPS, NativeLogitOps
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps

LOGGER = logging.getLogger("sluice.engine")


def fuse_small_operations(model: PagedLM | Eagle3, device: torch.device, kernels: Kernels | None) -> LogitOps:
    """Let fused kernels do a model's small operations where there are any. Return what does those on logits."""
    if kernels is not None and isinstance(model, CausalLM | Eagle3):
        model.use(NativeOps(kernels))
    if device.type == "cpu":
        return CPU_LOGIT_OPS if kernels is None else NativeLogitOps(kernels)
    if device.type != "cuda":
        return TORCH_LOGIT_OPS
    problem = why_no_triton(CudaDevice.of(device))
    if problem is not None:
        LOGGER.warning("the model runs on torch, which is slower: %s", problem)
        return TORCH_LOGIT_OPS
    return use_triton(model)


def use_triton(model: PagedLM | Eagle3) -> LogitOps:
    """Let Triton do the small operations of one of our own models. Return what does those on its logits."""
    # Importing them needs the package, which machines without a GPU need not have.
    from sluice.models.triton_ops import TritonOps
    from sluice.runner.triton_logit_ops import TritonLogitOps

    if isinstance(model, CausalLM | Eagle3):
        model.use(TritonOps())
    return TritonLogitOps()
