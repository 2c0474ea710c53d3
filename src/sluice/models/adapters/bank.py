"""AdapterBank: the adapters that are loaded beside a model, each in a slot of memory that is there from the start."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from sluice.models.adapters.adapter import Adapter, AdapterError, Site, sites_of
from sluice.models.adapters.read import read_adapter
from sluice.models.blocks.attention import GroupedAttention
from sluice.models.blocks.lora import LoraPair, LoraPart, LoraSlots
from sluice.models.decoder import Decoder
from sluice.models.layers import MLP
from sluice.models.shards import INPUTS, OUTPUTS, Cut
from sluice.types.adapters import AdapterInfo, AdapterLimits


class AdapterBank:
    """The adapters beside a model, or beside a rank's part of it.

    Steps read slots, and `load` and `unload` change only those that no step reads, so they may be called from any
    thread while steps run. The caller keeps requests away from adapters that are not loaded.

    Args:
        model: whose weights are packed. Its layers get the slots.
        base: the model's folder, if it is one of Hugging Face.
    """

    def __init__(self, model: Decoder, limits: AdapterLimits, base: Path | None = None) -> None:
        self.limits = limits
        self._base = base
        self._model = model
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[int, AdapterInfo]] = {}
        """Digest -> the slot, and what is in it."""
        self._layers = [(site, self._new_slots(site)) for site in sites_of(model.config) if self._has(site)]
        for site, slots in self._layers:
            self._block(site).lora[site.name] = slots
        model.has_adapters = True

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(slots.num_bytes for _, slots in self._layers)

    @property
    def loaded(self) -> Mapping[str, AdapterInfo]:
        """The adapters that are loaded, by digest."""
        with self._lock:
            return {digest: info for digest, (_, info) in self._loaded.items()}

    def slot_of(self, digest: str) -> int | None:
        """Return the slot of an adapter; None if it is not loaded."""
        found = self._loaded.get(digest)
        return None if found is None else found[0]

    def read(self, name: str, path: str, digest: str = "") -> Adapter:
        """Read an adapter from its files. This takes long, and changes nothing.

        Args:
            digest: that it must have; empty: any.

        Raises:
            AdapterError: as `read_adapter`; or it has another digest.
        """
        adapter = read_adapter(Path(path).expanduser(), name, self._model, self.limits, self._base)
        if digest not in ("", adapter.info.digest):
            raise AdapterError(f"the adapter {name} has changed since it was loaded: {path} has other content now")
        return adapter

    def load(self, adapter: Adapter) -> None:
        """Put an adapter into a free slot, unless it is loaded.

        Raises:
            AdapterError: no slot is free.
        """
        with self._lock:
            if adapter.info.digest in self._loaded:
                return
            taken = {slot for slot, _ in self._loaded.values()}
            free = next((slot for slot in range(self.limits.max_loras) if slot not in taken), None)
            if free is None:
                raise AdapterError(
                    f"there is no room for the adapter {adapter.info.name}: --max-loras {self.limits.max_loras} are"
                    " loaded; unload one"
                )
            for site, slots in self._layers:
                slots.load(free, self._own(site, adapter))
            self._loaded[adapter.info.digest] = free, adapter.info

    def unload(self, digest: str) -> None:
        """Free the slot of an adapter that no step reads, and no later one will; nothing happens if it is not
        loaded."""
        with self._lock:
            self._loaded.pop(digest, None)

    def _has(self, site: Site) -> bool:
        """Return whether a layer is in this rank's stage."""
        return str(site.layer) in self._model.layers

    def _block(self, site: Site) -> GroupedAttention | MLP:
        block = self._model.layers[str(site.layer)].get_submodule(site.block)
        assert isinstance(block, GroupedAttention | MLP)
        return block

    def _new_slots(self, site: Site) -> LoraSlots:
        inputs = {self._size(site, part, INPUTS) for part in site.parts}
        assert len(inputs) == 1, f"{site}: its parts have different inputs"
        outputs = [self._size(site, part, OUTPUTS) for part in site.parts]
        weight = next(self._model.parameters())
        return LoraSlots(self.limits, inputs.pop(), outputs, self._model.spec.dtype, weight.device)

    def _size(self, site: Site, part: LoraPart, dim: int) -> int:
        """Return the inputs or outputs of a part that this shard has."""
        cut = self._cut(site, part)
        whole = part.in_features if dim == INPUTS else part.out_features
        return whole if cut is None or cut.dim != dim else sum(map(len, cut.ranges))

    def _cut(self, site: Site, part: LoraPart) -> Cut | None:
        """Return the part of a layer that is on this shard; None: all of it is."""
        rule, place = self._block(site).cuts[part.name], self._model.member.place
        if rule is None or place.layout.tensor_size == 1:
            return None
        size = part.in_features if rule.dim == INPUTS else part.out_features
        return Cut(rule.dim, rule.ranges(size, self._model.spec, place))

    def _own(self, site: Site, adapter: Adapter) -> dict[int, LoraPair]:
        """Return the shard's part of what an adapter has for a layer, by part."""
        own = {}
        for number, part in enumerate(site.parts):
            pair, cut = adapter.pairs.get(site.path(part)), self._cut(site, part)
            if pair is None:
                continue
            if cut is not None:
                a, b = (cut.of(pair.a), pair.b) if cut.dim == INPUTS else (pair.a, cut.of(pair.b))
                pair = LoraPair(a, b, pair.scale)
            own[number] = pair
        return own
