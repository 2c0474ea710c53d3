"""Quest: decoded tokens attend to the pages whose keys may score highest (Tang et al., "Quest: Query-Aware Sparsity for
Efficient Long-Context LLM Inference", 2024).

Of each page and layer the policy keeps the smallest and the largest value of every component of its keys. The largest
product that a query can have with such a key bounds the scores of the page. Here all heads of a layer share their
pages, which are loaded once: a page counts by the head for which it may matter most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from sluice.device.memory import tensor_bytes
from sluice.runner.offload.sparse import SparsePolicy
from sluice.types.footprint import KVSizes

LEAST_CAPACITY = 64
"""Pages that bounds are first kept for."""
MORE = 8
"""Room for so many pages makes room for one more: bounds are copied at each growth, and take an eighth too much."""

SCORED_AT_ONCE = 1 << 19
"""Elements of bounds that a CPU scores at once: they have to stay in a core's cache."""


def torch_upper_bounds(q: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Return the largest products that queries can have with the keys of each page, [kv_heads, queries, pages] float32.

    Args:
        q: [kv_heads, queries, 2, head_dim] float32, the negative components and the positive ones.
        bounds: [pages, 2, kv_heads, head_dim], their least components and their greatest.
    """
    pages, _, kv_heads, head_dim = bounds.shape
    both = q.flatten(2)
    at_once = pages if q.device.type != "cpu" else max(1, SCORED_AT_ONCE // (2 * kv_heads * head_dim))
    # One piece of memory for all rows: to get and to give back as much for each takes longer than the product.
    rows = torch.empty((kv_heads, min(at_once, pages), 2, head_dim), device=q.device)
    upper = torch.empty((kv_heads, both.shape[1], pages), device=q.device)
    for first, some in zip(range(0, pages, at_once), bounds.split(at_once), strict=True):
        own = rows[:, : len(some)].copy_(some.permute(2, 0, 1, 3)).flatten(2)
        upper[..., first : first + len(some)] = (own @ both.transpose(1, 2)).transpose(1, 2)
    return upper


UpperBounds = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Computes what `torch_upper_bounds` does."""


class Quest(SparsePolicy):
    """Selects the first pages, the latest ones, and of the others those whose bounds are highest.

    Args:
        num_pages: pages that it selects in all.
        sinks: pages at the beginning.
        recent: pages at the end.
        wide_layers: first layers, which attend to all pages.
        upper_bounds: computes bounds of scores.

    Raises:
        ValueError: the pages are no more than those at the beginning and the end.
    """

    foresees: ClassVar[bool] = False
    wants_keys: ClassVar[bool] = True

    def __init__(
        self,
        num_pages: int,
        sinks: int,
        recent: int,
        wide_layers: int,
        upper_bounds: UpperBounds = torch_upper_bounds,
    ) -> None:
        if num_pages <= sinks + recent:
            raise ValueError(f"{num_pages} pages are no more than {sinks} at the beginning and {recent} at the end")
        self._num_pages = num_pages
        self._sinks = sinks
        self._recent = recent
        self._wide_layers = wide_layers
        self._upper_bounds = upper_bounds
        self._bounds: dict[int, dict[int, torch.Tensor]] = {}
        """Slot -> layer -> [pages, 2, kv_heads, head_dim], least and greatest components."""

    @property
    def wide_layers(self) -> int:
        return self._wide_layers

    @property
    def most_pages(self) -> int:
        return self._num_pages

    @property
    def kept_bytes(self) -> int:
        return tensor_bytes(bounds for layers in self._bounds.values() for bounds in layers.values())

    def page_bytes(self, kv: KVSizes) -> int:
        element_bytes = 4 if kv.scale_bytes else kv.element_bytes  # values with a scale are widened to float32
        return (kv.num_layers - self._wide_layers) * 2 * kv.num_kv_heads * kv.head_dim * element_bytes

    @torch.inference_mode()
    def pages_left(self, slot: int, layer: int, pages: Sequence[int], k: torch.Tensor) -> None:
        if layer < self._wide_layers or not pages:
            return
        layers = self._bounds.setdefault(slot, {})
        bounds = layers[layer] = _with_room(layers.get(layer), max(pages) + 1, k)
        bounds[torch.tensor(pages, device=k.device)] = torch.stack((k.amin(1), k.amax(1)), dim=1)

    def forget(self, slot: int) -> None:
        self._bounds.pop(slot, None)

    @torch.inference_mode()
    def select(self, slot: int, layer: int, num_pages: int, q: torch.Tensor | None) -> Sequence[int]:
        if layer < self._wide_layers or num_pages <= self._num_pages:
            return range(num_pages)
        assert q is not None, "Quest selects by queries"
        end = num_pages - self._recent
        scores = page_scores(q, self._bounds[slot][layer][self._sinks : end], self._upper_bounds)
        best = scores.topk(self._num_pages - self._sinks - self._recent).indices.sort().values + self._sinks
        return (*range(self._sinks), *best.tolist(), *range(end, num_pages))


def page_scores(q: torch.Tensor, bounds: torch.Tensor, upper_bounds: UpperBounds = torch_upper_bounds) -> torch.Tensor:
    """Return a score of each page, [pages] float32: the largest logarithm, over queries and their heads, of the share
    of a head's weights that would be the page's if every page had one key, as good as its bounds allow.

    Args:
        q: [tokens, heads, head_dim].
        bounds: [pages, 2, kv_heads, head_dim].
        upper_bounds: `torch_upper_bounds` or what does the same.
    """
    tokens, heads, head_dim = q.shape
    kv_heads = bounds.shape[2]
    scaled = q.float() * head_dim**-0.5
    grouped = scaled.view(tokens, kv_heads, heads // kv_heads, head_dim).permute(1, 0, 2, 3).flatten(1, 2)
    both = torch.stack((grouped.clamp(max=0), grouped.clamp(min=0)), dim=2)  # for least and greatest components
    return torch.log_softmax(upper_bounds(both, bounds), dim=-1).flatten(0, 1).amax(0)


def _with_room(bounds: torch.Tensor | None, pages: int, k: torch.Tensor) -> torch.Tensor:
    """Return bounds with room for `pages` pages, those that were kept among them."""
    if bounds is not None and bounds.shape[0] >= pages:
        return bounds
    capacity = max(LEAST_CAPACITY, pages + pages // MORE)
    larger = torch.zeros((capacity, 2, *k.shape[2:]), dtype=k.dtype, device=k.device)
    if bounds is not None:
        larger[: bounds.shape[0]] = bounds
    return larger
