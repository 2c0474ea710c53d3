"""PrefillSplit: whether a prompt is computed by a prefill replica (disaggregated prefill), or where it is decoded.

A long prompt on a replica that decodes makes every stream there wait. A prefill replica has no streams, but the KV has
to travel, and prefill replicas that are busy make it late. Where all prompts are split (Zhong et al., "DistServe",
2024), replicas that decode cannot help with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.routing.dispatch import Dispatcher, RoutedRequest, UsualSpeed, usual_speed


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """Which prompts are computed by prefill replicas.

    Raises:
        ValueError: a value that cannot be.
    """

    least_tokens: int = 0
    """Least prompt tokens, without those cached where it would be decoded, for which a prefill replica is used."""
    patience: float = float("inf")
    """How many times as late as on the replicas that decode its first token may be for that; below 1, it must be sooner
    by as much. Infinite: no limit."""

    def __post_init__(self) -> None:
        if self.least_tokens < 0 or not self.patience > 0:
            raise ValueError(f"least_tokens must be at least 0 and patience above 0, got {self}")


class PrefillSplit:
    """Decides by the length of a prompt, and by what the replicas have to do.

    Args:
        prefill: sends prompts to the replicas that do nothing else.
        decode: sends requests to the replicas that decode.
    """

    def __init__(self, prefill: Dispatcher, decode: Dispatcher, limits: SplitLimits) -> None:
        self._prefill = prefill
        self._decode = decode
        self._limits = limits

    def is_apart(self, request: RoutedRequest, now: float = 0.0) -> bool:
        """Return whether a request that arrives now goes to a prefill replica first. Nothing is sent by that."""
        if not self._prefill.loads or not self._decode.loads:
            return bool(self._prefill.loads)
        if request.num_tokens < self._limits.least_tokens:
            return False  # before its pages are hashed, which takes long
        uncached = self._decode.policy.uncached_tokens(request, self._decode.loads)
        if min(uncached.values()) < self._limits.least_tokens:
            return False
        usual = usual_speed([*self._prefill.loads.values(), *self._decode.loads.values()])
        ahead = _soonest(self._prefill, self._prefill.policy.uncached_tokens(request, self._prefill.loads), now, usual)
        return ahead <= self._limits.patience * _soonest(self._decode, uncached, now, usual)


def _soonest(replicas: Dispatcher, uncached: Mapping[str, int], now: float, usual: UsualSpeed) -> float:
    """Return the seconds after which the first of some replicas would have computed a prompt."""
    found = []
    for key, load in replicas.loads.items():
        speed = load.speed(usual)
        found.append((load.backlog(now, speed) + uncached[key]) * speed)
    return min(found)
