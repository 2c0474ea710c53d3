"""Adapters: small weights that are added to those of a model for the rows of some requests (LoRA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NO_ADAPTERS = "this engine has no room for adapters (--enable-lora)"
"""Why a request with an adapter is refused where there are none."""


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """What an engine has memory for."""

    max_loras: int
    """Adapters that are loaded at the same time, and so in one step."""
    max_lora_rank: int
    """Largest rank of an adapter."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter that was read."""

    name: str
    """What requests call it."""
    path: str
    """Its folder, or its GGUF file."""
    digest: str
    """SHA-256 of its content, in hex: it is the same under another name or path, and another after any change. Requests
    name an adapter by it (`Submit.adapter`)."""
    rank: int
    """Largest rank of its matrices."""
    alpha: float
    """Of the config: what a layer adds is scaled by it, divided by the rank or its root."""
    targets: tuple[str, ...]
    """Names of the layers that it changes, such as `q_proj`, sorted."""
    num_bytes: int
    """Bytes of its matrices in the file."""


class AdapterSwap(NamedTuple):
    """An adapter is to be loaded beside the model, in the place of another one if there is no free one."""

    adapter: str
    """Digest of the adapter."""
    instead_of: str = ""
    """Digest of the adapter that gives up its place, which no request uses; empty: a place is free."""


class AdapterUse(NamedTuple):
    """How many requests use an adapter."""

    adapter: str
    """Digest of the adapter."""
    users: int
    """Requests that wait for their turn, run or drain, for which it is loaded."""
    held: int
    """Requests that wait until it is loaded."""
