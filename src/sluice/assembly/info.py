"""What is known of an engine once its model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from sluice.config import EngineConfig
from sluice.types import AdapterInfo, SamplingDefaults, Tier
from sluice.types.footprint import Footprint, KVSizes, OffloadSizes, bounds_bytes, device_footprint, stored_bytes
from sluice.types.request_limits import Limits
from sluice.types.stored_weights import StoredWeights


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """A resolved engine, as servers and users see it."""

    model: str
    """Name: the hub id, or the folder's own name."""
    folder: Path
    """Folder of the checkpoint."""
    tokenizer_folder: Path
    """Folder of the tokenizer and the chat template."""
    is_default: bool
    """Whether it is the default model, as none was named."""
    architecture: str
    stored: StoredWeights
    """The weights in the checkpoint's files."""
    eos_token_ids: frozenset[int]
    """End-of-sequence ids of the model; the tokenizer may know more."""
    dtype: torch.dtype
    device: torch.device
    limits: Limits
    config: EngineConfig
    """Resolved, with the model's name, its type, its device and the size of the pool."""
    reasons: Mapping[str, str]
    """Option -> why it has its value, for derived values."""
    sampling_defaults: SamplingDefaults
    """The model's own settings for what requests leave open."""
    kv_sizes: KVSizes
    """Of all layers, or of those without a window."""
    pool_tokens: int
    """Tokens that the pool's pages hold, with the scratch page where steps are padded."""
    window_bytes: int
    """Bytes of the pages of layers with a window; 0: all layers have the same pages."""
    window_token_bytes: int
    """Bytes of a token's keys and values in these layers, which `kv_sizes` leaves out."""
    memory: Footprint
    """Memory of the weights and, of a built engine, of everything else that was allocated."""
    offload_sizes: OffloadSizes | None = None
    """Buffers of contexts longer than the device."""
    offload_tier: Tier | None = None
    """The tier that holds such contexts."""
    disabled_tiers: Mapping[Tier, str] = field(default_factory=dict)
    """Tiers that an engine before had, and that could not be opened again -> why."""
    adapters: tuple[AdapterInfo, ...] = ()
    """Adapters that a built engine has read, by name."""
    lost_adapters: Mapping[str, str] = field(default_factory=dict)
    """Digests of adapters that an engine before had, and this one cannot use -> why."""

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return self.kv_sizes.token_bytes + self.window_token_bytes

    def predicted_memory(self, length: int) -> Footprint:
        """Return the bytes that a request of `length` tokens takes, prompt and output together.

        Raises:
            LimitError: no request may be so long.
        """
        self.limits.check_length(length)
        sizes = self.offload_sizes
        predicted = replace(
            device_footprint(
                self.kv_sizes,
                self.pool_tokens,
                sizes,
                weights_bytes=self.memory.weights_bytes,
                window_bytes=self.window_bytes,
            ),
            draft_bytes=self.memory.draft_bytes,
            adapter_bytes=self.memory.adapter_bytes,
            state_bytes=self.memory.state_bytes,
            record_bytes=self.memory.record_bytes,
        )
        above = self.config.offload.offload_above
        if sizes is None or above is None or length <= above:
            return predicted
        stored = stored_bytes(self.kv_sizes, length, sizes.page_tokens)
        on_host = self.offload_tier is Tier.HOST
        bounds = bounds_bytes(length, sizes)
        return replace(predicted, bounds_bytes=bounds, host_bytes=stored * on_host, disk_bytes=stored * (not on_host))
