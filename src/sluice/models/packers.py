"""Who lays the weights of a model out, on which device."""

from __future__ import annotations

import torch

from sluice.models.linear import Packer, PlainPacker
from sluice.models.onednn import OneDNNPacker, has_onednn_bfloat16


def packer_for(device: torch.device) -> Packer:
    """The fastest that there is for a device."""
    plain = PlainPacker()
    return OneDNNPacker(plain) if device.type == "cpu" and has_onednn_bfloat16() else plain
