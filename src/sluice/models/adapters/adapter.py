"""An adapter in memory, and the layers of a model that adapters may change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sluice.models.blocks.attention import attention_parts
from sluice.models.blocks.lora import LoraPair, LoraPart
from sluice.models.layers import mlp_parts
from sluice.models.plan import DecoderConfig
from sluice.types.adapters import AdapterInfo


class AdapterError(ValueError):
    """An adapter cannot be used: its files are missing or broken, it is of another model, or it requires something that
    is not supported. The message is one line. It names the file, field or tensor, and what would be accepted."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that was read and checked."""

    info: AdapterInfo
    pairs: Mapping[str, LoraPair]
    """Its matrices by the layer's name in the model, such as `layers.0.self_attn.q_proj`: whole, in the model's dtype,
    and with rows in the model's order."""


class Site(NamedTuple):
    """A packed layer that adapters may change."""

    layer: int
    block: str
    """`self_attn` or `mlp`."""
    name: str
    """Of the packed layer in the block."""
    parts: tuple[LoraPart, ...]

    def path(self, part: LoraPart) -> str:
        """Return the name of a part in the model before its weights are packed."""
        return f"layers.{self.layer}.{self.block}.{part.name}"


def sites_of(config: DecoderConfig) -> Iterator[Site]:
    """Iterate over the packed layers of a whole decoder that adapters may change."""
    for number, plan in enumerate(config.layers):
        attention = attention_parts(config, plan) if plan.has_kv else {}
        blocks = {"self_attn": attention, "mlp": mlp_parts(config, plan)}
        for block, packed in blocks.items():
            for name, parts in packed.items():
                yield Site(number, block, name, parts)


def parts_by_path(config: DecoderConfig) -> dict[str, LoraPart]:
    """Return the layers of a whole decoder that adapters may change, by their names before they are packed."""
    return {site.path(part): part for site in sites_of(config) for part in site.parts}


def own_names(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the names that layers have in their blocks, such as `q_proj`, each once, sorted."""
    return tuple(sorted({path.rpartition(".")[2] for path in paths}))
