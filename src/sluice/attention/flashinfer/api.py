"""The part of FlashInfer's interface that is used here, as types; a test has a FlashInfer of its own in plain torch.

KV is in the layout "NHD": pages [pages, page_size, kv_heads, head_dim]. Log-sum-exps are base 2 in all of it.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import torch

LAYOUT = "NHD"
PACKAGE = "flashinfer"


class FlashInferUnavailable(Exception):
    """It is not installed, or cannot be loaded."""


class Wrapper(Protocol):
    """A plan that is made once a step and run in every layer."""

    def plan(self, *lists: torch.Tensor, **options: Any) -> None:
        """See FlashInfer. Lists of lengths are best on the host, where it reads them; page ids on the device."""
        ...

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor], **options: Any) -> Any:
        """`out`, or `out` and the log-sum-exp with `return_lse`."""
        ...


class CascadeWrapper(Protocol):
    """Attention over pages that all rows share and then over each one's own."""

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
    """The package, a `FlashInfer`.

    Raises:
        FlashInferUnavailable: it is not installed, or lacks something itself.
    """
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise FlashInferUnavailable(f"the package {PACKAGE} cannot be imported: {error}") from error
