"""KeptMass: the share of the true attention that sparse policies keep, of every decoded token and in every layer.

It attends to everything, so that queries are those of exact attention, and asks the policies which pages they would
have selected. Shares are of the weights on the tier: what is on the device is always attended to, so of all weights a
policy keeps more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from sluice import LLM
from sluice.runner.offload.sparse import SparsePolicy

POLICY = f"import:{__name__}:KeptMass"


class Share(NamedTuple):
    """The share of the attention that is kept, from 0 to 1: means over decoded tokens."""

    mean: float
    """Over heads too."""
    heads: tuple[float, ...]
    """Of each head."""


class KeptMass(SparsePolicy):
    """Selects all pages, and compares what other policies would have selected.

    Args:
        page_size: tokens of a page; not used.
    """

    foresees: ClassVar[bool] = False
    wants_keys: ClassVar[bool] = True

    def __init__(self, page_size: int) -> None:
        self.policies: Mapping[str, SparsePolicy] = {}
        """The policies that are compared, by name. Set before the first request."""
        self._keys: dict[tuple[int, int], dict[int, torch.Tensor]] = defaultdict(dict)
        """Slot and layer -> page -> [page_size, kv_heads, head_dim]."""
        self._kept: dict[tuple[str, int], list[torch.Tensor]] = defaultdict(list)

    def pages_left(self, slot: int, layer: int, pages: Sequence[int], k: torch.Tensor) -> None:
        self._keys[slot, layer].update(zip(pages, k.float(), strict=True))
        for policy in self.policies.values():
            if policy.wants_keys:
                policy.pages_left(slot, layer, pages, k)

    def forget(self, slot: int) -> None:
        for place in [place for place in self._keys if place[0] == slot]:
            del self._keys[place]
        for policy in self.policies.values():
            policy.forget(slot)

    @torch.inference_mode()
    def select(self, slot: int, layer: int, num_pages: int, q: torch.Tensor | None) -> Sequence[int]:
        assert q is not None, "it compares by queries"
        keys = self._keys[slot, layer]
        (of_pages,) = page_weights(q, torch.stack([keys[page] for page in range(num_pages)]))
        for name, policy in self.policies.items():
            wide = layer < policy.wide_layers
            chosen = range(num_pages) if wide else policy.select(slot, layer, num_pages, q)
            self._kept[name, layer].append(of_pages[..., list(chosen)].sum(-1))
        return range(num_pages)

    def shares(self) -> dict[str, dict[int, Share]]:
        """Return the share that each policy keeps in each layer."""
        found: dict[str, dict[int, Share]] = {name: {} for name in self.policies}
        for (name, layer), each in sorted(self._kept.items()):
            kept = torch.stack(each).mean(0)
            found[name][layer] = Share(float(kept.mean()), tuple(kept.tolist()))
        return found


def page_weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the attention weight of each page, [tokens, heads, pages] float32; over all pages their sum is 1.

    Args:
        q: [tokens, heads, head_dim].
        k: [pages, page_size, kv_heads, head_dim] float32.
    """
    pages, size, kv_heads, head_dim = k.shape
    grouped = q.float().view(len(q), kv_heads, -1, head_dim)
    scores = torch.einsum("tghd,kgd->tghk", grouped, k.flatten(0, 1)) * head_dim**-0.5
    return torch.softmax(scores, -1).view(len(q), -1, pages, size).sum(-1)


def watch(llm: LLM, policies: Mapping[str, SparsePolicy]) -> KeptMass:
    """Return the policy of an engine with `--sparse-policy POLICY`, which compares these from now on."""
    engine: Any = llm._open_engine()
    policy = engine.runner._inner._offload._policy
    assert isinstance(policy, KeptMass), f"the policy is {policy}"
    policy.policies = policies
    return policy
