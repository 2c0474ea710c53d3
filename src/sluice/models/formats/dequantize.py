"""Reads a checkpoint of quantised weights as one of plain weights: each is dequantised when its turn comes.

A weight that the model can hold as it is stored is handed over so.

Beside the weights that were read there is never more than one further weight, and a slice of it in a wider dtype.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

from sluice.models.base import CausalLM
from sluice.models.checkpoint import CheckpointError
from sluice.models.formats.base import LayoutError, Rows, WeightFormat, WeightLayout
from sluice.models.linear import WideLinear
from sluice.models.weights import StoredTensor, WeightFile, opened_weights

AT_ONCE = 1 << 21
"""Elements that are dequantised at once."""


class PartedFormat(WeightFormat):
    """A format of safetensors, in which each quantised weight is stored as several tensors."""

    @abstractmethod
    def layout(self, module: str, layer: nn.Linear | nn.Embedding) -> WeightLayout | None:
        """Return how the weight of a layer is stored; None if it is not quantised.

        Args:
            module: name of the layer in the checkpoint.
            layer: it, on the meta device; its `weight` is [out_features, in_features].

        Raises:
            LayoutError: it cannot be stored so, for example because groups do not divide it.
        """

    def tensors(self, folder: Path, model: CausalLM, dtype: torch.dtype, rows: Rows) -> Iterator[StoredTensor]:
        with opened_weights(folder) as files:
            homes = {name: file for file in files for name in file.names}
            layers = _Layers(self, model, homes)
            for file in files:
                for name in file.names:
                    module, _, part = name.rpartition(".")
                    layout = layers.layout(module, name)
                    if layout is not None and part == layout.numbers:
                        needed = rows(f"{module}.weight")
                        yield _read(module, layout, homes, self.name, dtype, model.spec.quantization, needed)
                    elif not _is_part(part, layout):
                        value = _plain(file, name, layout, self.name)
                        if not layers.needs_no(name, value):
                            yield StoredTensor(name, file.name, value, value.nbytes)


class _Layers:
    """The layouts of a checkpoint's layers, by their names in it.

    Args:
        names: of its tensors.
    """

    def __init__(self, stored_as: PartedFormat, model: CausalLM, names: Container[str]) -> None:
        self._format = stored_as
        self._names = names
        self._rules = model.rules
        self._layers = {
            name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Embedding)
        }
        self._known: dict[str, WeightLayout | None] = {}

    def layout(self, module: str, tensor: str) -> WeightLayout | None:
        """Return the layout of the layer that a tensor belongs to; None if the layer is not quantised."""
        layer = self._layers.get(self._rules.inner(module))
        if layer is None:
            return None
        if module not in self._known:
            try:
                found = self._format.layout(module, layer)
            except LayoutError as error:
                if not isinstance(layer, WideLinear):
                    raise CheckpointError(f"tensor {tensor}: {error}") from error
                found = None
            # Routers are seldom quantised, and seldom excepted by name.
            is_plain = isinstance(layer, WideLinear) and found is not None and not self._has_parts(module, found)
            self._known[module] = None if is_plain else found
        return self._known[module]

    def _has_parts(self, module: str, layout: WeightLayout) -> bool:
        """Return whether the checkpoint stores a layer in parts."""
        return all(f"{module}.{part}" in self._names for part, wanted in layout.parts.items() if not wanted.is_optional)

    def needs_no(self, name: str, value: torch.Tensor) -> bool:
        """Return whether a tensor is a bias of zeros for a layer without one, which AutoGPTQ writes."""
        module, _, part = name.rpartition(".")
        layer = self._layers.get(self._rules.inner(module))
        return part == "bias" and isinstance(layer, nn.Linear) and layer.bias is None and not value.any()


def _is_part(part: str, layout: WeightLayout | None) -> bool:
    """Return whether a tensor belongs to a weight that another one stands for, or quantises activations."""
    return layout is not None and (part in layout.parts or part in layout.skipped)


def _plain(file: WeightFile, name: str, layout: WeightLayout | None, method: str) -> torch.Tensor:
    """Read a tensor that is not quantised."""
    if layout is not None and name.endswith(".weight"):
        raise CheckpointError(
            f"{file.name}: tensor {name} is not quantised, and config.json says that it is stored as"
            f" {', '.join(layout.parts)} ({method}) and does not except it"
        )
    return file.read(name)


def _read(
    module: str,
    layout: WeightLayout,
    homes: Mapping[str, WeightFile],
    method: str,
    dtype: torch.dtype,
    quantization: str,
    rows: range,
) -> StoredTensor:
    """Read the needed rows of a quantised weight: as they are stored if the model can hold that, else dequantised."""
    stored = _parts(module, layout, homes, method)
    try:
        layout.check(stored)
    except LayoutError as error:
        raise CheckpointError(f"{module}: {error}") from error
    kept = layout.kept(stored, quantization) if rows else None
    value = _dequantized(layout, stored, dtype, rows) if kept is None else kept
    file = homes[f"{module}.{layout.numbers}"].name
    nbytes = sum(part.nbytes for part in stored.values())
    return StoredTensor(f"{module}.weight", file, value, nbytes)


def _dequantized(
    layout: WeightLayout, stored: Mapping[str, torch.Tensor], dtype: torch.dtype, rows: range
) -> torch.Tensor:
    """Return a weight of which the needed rows are set, on the meta device if none are."""
    weight = torch.empty((layout.out_features, layout.in_features), dtype=dtype, device=None if rows else "meta")
    step = max(1, AT_ONCE // (layout.in_features * layout.row_step)) * layout.row_step
    for start in range(rows.start // layout.row_step * layout.row_step, rows.stop, step):
        stop = min(start + step, layout.out_features)
        weight[start:stop] = layout.rows(stored, start, stop)
    return weight


def _parts(module: str, layout: WeightLayout, homes: Mapping[str, WeightFile], method: str) -> dict[str, torch.Tensor]:
    """Read the tensors that store one weight, and check them."""
    stored = {}
    for part, wanted in layout.parts.items():
        name = f"{module}.{part}"
        if name not in homes:
            if wanted.is_optional:
                continue
            raise CheckpointError(
                f"{homes[f'{module}.{layout.numbers}'].name}: tensor {name} is missing: {method} stores a"
                f" weight as {', '.join(key for key, value in layout.parts.items() if not value.is_optional)}"
            )
        value = homes[name].read(name)
        if tuple(value.shape) not in wanted.shapes:
            accepted = " or ".join(str(shape) for shape in wanted.shapes)
            raise CheckpointError(
                f"{homes[name].name}: tensor {name} has shape {tuple(value.shape)}, {method} requires"
                f" {accepted} for a weight of {layout.out_features} x {layout.in_features}"
            )
        if value.dtype not in wanted.dtypes:
            accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in wanted.dtypes)
            raise CheckpointError(
                f"{homes[name].name}: tensor {name} has dtype {str(value.dtype).removeprefix('torch.')},"
                f" {method} requires {accepted}"
            )
        stored[part] = value
    return stored
