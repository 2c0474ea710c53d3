"""The part of FlashInfer's interface that is used here, as types. Tests have a FlashInfer of their own in plain torch.

KV is in the layout "NHD": pages [pages, page_size, kv_heads, head_dim]. Log-sum-exps are base 2 in all of it.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import torch

LAYOUT = "NHD"
PACKAGE = "flashinfer"


class FlashInferUnavailable(Exception):
    """FlashInfer is not installed, cannot be loaded, or does not compute."""


class Wrapper(Protocol):
    """Attention that is planned once a step and run in every layer."""

    def plan(self, *lists: torch.Tensor, **options: Any) -> None:
        """Plan a step. Lists of lengths are best on the host, where FlashInfer reads them; page ids on the device."""
        ...

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor], **options: Any) -> Any:
        """Return `out`, or `out` and the log-sum-exp with `return_lse`."""
        ...


class CascadeWrapper(Protocol):
    """Attention over pages that all rows share and over each row's own."""

    def plan(self, *lists: list[torch.Tensor], **options: Any) -> None: ...

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor: ...


class FlashInfer(Protocol):
    """The package."""

    def BatchDecodeWithPagedKVCacheWrapper(
        self, float_workspace_buffer: torch.Tensor, kv_layout: str, **options: Any
    ) -> Wrapper: ...

    def BatchPrefillWithPagedKVCacheWrapper(
        self, float_workspace_buffer: torch.Tensor, kv_layout: str, **options: Any
    ) -> Wrapper: ...

    def MultiLevelCascadeAttentionWrapper(
        self, num_levels: int, float_workspace_buffer: torch.Tensor, kv_layout: str, **options: Any
    ) -> CascadeWrapper: ...


def load_flashinfer() -> Any:
    """Import the package, a `FlashInfer`.

    Raises:
        FlashInferUnavailable: it is not installed, or lacks something itself.
    """
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise FlashInferUnavailable(f"the package {PACKAGE} cannot be imported: {error}") from error
