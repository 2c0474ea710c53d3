"""What two replicas must have in common so that one may continue what the other has begun."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from sluice.process.wire import Ready
from sluice.types import Output, Submit

RESULT_OPTIONS = ("dtype", "quantization", "kv_cache_dtype")
"""Options of the model that change its answers by more than rounding."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The model of a replica, and the form of its messages."""

    model: str
    """Name of the model, for messages to people."""
    fingerprint: str
    """Digest of the weights, of the adapters, and of the options that change answers."""
    wire: str
    """Digest of the types that cross between replicas."""

    @classmethod
    def of(cls, ready: Ready) -> Identity:
        """Return the identity of a replica whose engine is ready."""
        model = ready.config.model
        options = ", ".join(f"{name} {getattr(model, name)}" for name in RESULT_OPTIONS)
        text = f"{ready.fingerprint}\0{options}\0{ready.limits.max_model_len}"
        text += "".join(f"\0{name} {digest}" for name, digest in sorted((a.name, a.digest) for a in ready.adapters))
        return cls(ready.model, hashlib.sha256(text.encode()).hexdigest()[:16], wire_digest())

    def difference(self, other: Identity) -> str | None:
        """Return why a replica of this identity cannot continue what one of the other has begun; None: it can."""
        if self.fingerprint != other.fingerprint:
            return (
                f"it has {self.model} with the fingerprint {self.fingerprint}, and not {other.model} with"
                f" {other.fingerprint}: other weights, adapters, {', '.join(RESULT_OPTIONS)} or context"
            )
        if self.wire != other.wire:
            return f"its messages have the form {self.wire}, and not {other.wire}: another version of Sluice"
        return None


@cache
def wire_digest() -> str:
    """Return a digest of the fields and types of requests and outputs, without what is said about them."""
    schemas = msgspec.json.schema_components([Submit, Output])
    return hashlib.sha256(json.dumps(_without_words(schemas), sort_keys=True).encode()).hexdigest()[:16]


def _without_words(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_words(value) for key, value in node.items() if key not in ("description", "title")}
    return [_without_words(each) for each in node] if isinstance(node, list | tuple) else node
