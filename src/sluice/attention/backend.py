"""What a backend says about itself, so that nothing else needs to know it by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar

import torch

from sluice.attention.base import Attention, LayerKV, PagedKV
from sluice.attention.spec import AttentionSpec, KVShape
from sluice.kernels.cpu.library import Kernels

NO_DTYPES: Mapping[str, torch.dtype] = MappingProxyType({})


class AttentionBackend(ABC):
    """A way to compute attention. Stateless; one object of each is listed in `select.BACKENDS`."""

    name: ClassVar[str]
    """A value of `--attention-backend`."""
    layout: ClassVar[str] = LayerKV.layout
    """`PagedKV.layout` of its pages."""
    kv_dtypes: ClassVar[Mapping[str, torch.dtype]] = NO_DTYPES
    """Values of `--kv-cache-dtype` that it can read, other than "auto", which is the model's dtype."""
    capturable_on: ClassVar[str | None] = None
    """Device type on which its calls can be captured and replayed. None: nowhere."""
    takes_windows: ClassVar[bool] = True
    """Whether layers of one step may have different page tables, those with a window another one."""
    needs_kernels: ClassVar[bool] = False
    """Whether the compiled CPU kernels compute it."""

    def default_reason(self, device: torch.device, cpu_kernels: str) -> str | None:
        """Return why this is the preferred backend on a device, or None if it is not."""
        return None

    def missing(self, device: torch.device, cpu_kernels: str) -> str | None:
        """Return what the device or this installation lacks to run it, and what to use instead; None: nothing.

        Args:
            cpu_kernels: resolved `--cpu-kernels`.
        """
        return None

    def supports(self, spec: AttentionSpec, page_size: int, device: torch.device) -> str | None:
        """Return why it cannot serve layers of such a spec, or None if it can. It may compile kernels to find out."""
        return None

    def new_kv(self, shape: KVShape, kernels: Kernels | None) -> PagedKV:
        """Return uninitialised pages of one layer in its layout."""
        return LayerKV.empty(shape)

    @abstractmethod
    def make(self, device: torch.device, kernels: Kernels | None, tick: Callable[[], None]) -> Attention:
        """Return what attends for one runner.

        Args:
            kernels: the compiled ones; None where there are none.
            tick: called for every bounded part of the work of a CPU.
        """

    def make_unplanned(self, device: torch.device, kernels: Kernels | None, tick: Callable[[], None]) -> Attention:
        """Return what attends over the same pages in calls that no `Attention.plan` announces."""
        return self.make(device, kernels, tick)


def dtype_names(dtypes: tuple[torch.dtype, ...]) -> str:
    """Return the names of dtypes, as in "bfloat16, float16"."""
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
