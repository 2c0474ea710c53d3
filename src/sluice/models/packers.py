"""Who lays the weights of a model out, on which device."""

from __future__ import annotations

import torch

from sluice.models.linear import Packer, PlainPacker
from sluice.models.native_linear import NativePacker
from sluice.models.onednn import OneDNNPacker, has_onednn_bfloat16
from sluice.native.library import Kernels


def packer_for(device: torch.device, kernels: Kernels | None) -> Packer:
    """The fastest that there is for a device: where our kernels run, they are ahead of oneDNN for every number of rows
    (`docs/cpu.md`).

    Args:
        kernels: the compiled ones; None leaves a CPU to torch.
    """
    plain = PlainPacker()
    if kernels is not None:
        return NativePacker(kernels, plain)
    return OneDNNPacker(plain) if device.type == "cpu" and has_onednn_bfloat16() else plain
