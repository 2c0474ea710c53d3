"""Fills a model, or a rank's part of one, with the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from sluice.models.base import CausalLM, Report, no_report
from sluice.models.block_quantizers import EightBits, FourBits, q4_0_blocks
from sluice.models.checkpoint import CheckpointError
from sluice.models.linear import Packer, WideLinear
from sluice.models.quantized import (
    GROUP,
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    QuantizedLinear,
    QuantizedWeight,
    Quantizer,
)
from sluice.models.shards import INPUTS, OUTPUTS, Cut, cut_of
from sluice.models.spec import BLOCKS, DTYPES, FP8, INT4, ON_LOAD
from sluice.models.stored_blocks import StoredBlocks
from sluice.models.unused import Unused
from sluice.models.weights import StoredTensor

Kind = Quantizer | type[EightBits] | type[FourBits]
"""What quantises a weight."""


class Filler:
    """Copies stored tensors, or a rank's part of them, into a model on the meta device, and notes what is missing.

    All ranks check the names and the shapes of all tensors, so that each refuses what any refuses.

    Args:
        whole: all of the model, on the meta device. It is `model` itself unless that is a part.
        device: of the weights.
        packer: what `finish` packs them with; weights are quantised to what it multiplies.
        unused: tells which tensors may be skipped that are not the model's.
        adds_one: weights that a family stores less 1, or as logarithms, are stored so; a GGUF file has what is computed
            with.
    """

    def __init__(
        self,
        whole: CausalLM,
        model: CausalLM,
        device: torch.device,
        packer: Packer,
        unused: Unused,
        *,
        adds_one: bool = True,
    ) -> None:
        self.model = model
        self.device = device
        self.unused = unused
        self.is_tied = whole.tied
        self._whole = whole
        self._adds_one = adds_one
        self.expected = {name: weight.shape for name, weight in whole.named_parameters()}
        self.dtypes = {name: weight.dtype for name, weight in whole.named_parameters()}
        self.own = frozenset(name for name, _ in model.named_parameters())
        self.takes_blocks = packer.why_not(BLOCKS, model.spec.dtype) is None
        self.kinds = kinds_of(model, model.spec.quantization, takes_blocks=self.takes_blocks)
        self._packer = packer
        self.filled: dict[str, torch.Tensor] = {}
        self.quantized: dict[str, QuantizedWeight] = {}
        self.sources: dict[str, tuple[str, str]] = {}
        self.kept = self.kept_bytes = self.kept_numbers = 0

    def fill(self, tensor: StoredTensor) -> None:
        """Copy one tensor, or skip it if it is a buffer, unused, another rank's or a tied head beside its embedding."""
        rules = self.model.rules
        if tensor.name.endswith(rules.ignored):
            return
        weight, target = self._names(tensor.name)
        if weight not in self.expected:
            if self._whole.ignores(weight) or self.unused.skips(tensor.name):
                return
            raise CheckpointError(
                f"{tensor.file}: unexpected tensor {tensor.name}: {self.model.spec.architecture} with this"
                f" config.json has no such weight"
            )
        if weight in self.sources:
            self._check_duplicate(tensor, weight)
            return
        value = self._value(tensor, weight, target)
        self.sources[weight] = tensor.name, tensor.file
        if value is None:
            return
        if not isinstance(value, torch.Tensor):
            self.quantized[target] = value
            return
        filled = torch.empty(value.shape, dtype=self.dtypes[weight], device=self.device)
        filled.copy_(value)
        if self._adds_one and f".{weight}".endswith(rules.plus_one):
            filled += 1
        if self._adds_one and weight.endswith(rules.negative_exp):
            filled.exp_().neg_()
        self.filled[target] = filled

    def rows(self, name: str) -> range:
        """Return the rows of a weight that `fill` reads; it only looks at the shape of the others.

        Args:
            name: in the checkpoint; the weight is one of the model's.
        """
        weight, target = self._names(name)
        if target not in self.own:
            return range(0)
        cut = self._cut(weight, target)
        return range(self.expected[weight][0]) if cut is None or cut.dim != OUTPUTS else cut.ranges[0]

    def finish(self, report: Report = no_report) -> None:
        """Load the tensors into the model, and pack them.

        Args:
            report: as for `CausalLM.pack`.
        """
        self.unused.log()
        missing = [name for name in self.expected if name not in self.sources]
        if missing == [self.model.rules.head]:
            self.model.drop_head()
        elif missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise CheckpointError(f"the checkpoint lacks the tensor {missing[0]}{more}")
        self._place_quantized()
        self.model.load_state_dict(self.filled, assign=True)
        self.model.requires_grad_(False)
        self.filled.clear()  # otherwise every weight would exist twice until all are packed
        self.model.pack(self._packer, report)

    def _names(self, name: str) -> tuple[str, str]:
        """Return the parameter of the whole model that a tensor is for, and that of the rank's part."""
        rules = self.model.rules
        name = rules.inner(name)
        weight = rules.embedding if self.is_tied and name == rules.head else name
        # A last stage that is not the first has a tied head as a weight of its own.
        is_head = self.is_tied and weight == rules.embedding and weight not in self.own
        return weight, rules.head if is_head else weight

    def _cut(self, weight: str, target: str) -> Cut | None:
        """Return the part of a weight that is the rank's `target`; None: all of it is."""
        return cut_of(self._whole, target, self.expected[weight], self.model.spec, self.model.member.place)

    def _place_quantized(self) -> None:
        """Put layers with the quantised weights in the place of those that were made for plain ones."""
        for name, weight in self.quantized.items():
            path = name.removesuffix(".weight")
            layer = QuantizedLinear(weight, self.filled.pop(f"{path}.bias", None), self.model.spec.dtype)
            self.model.set_submodule(path, layer)
        self.quantized.clear()

    def _value(self, tensor: StoredTensor, weight: str, target: str) -> torch.Tensor | QuantizedWeight | None:
        """Return the rank's part of a stored value as the model is to hold it: quantised, or to be copied; None if it
        has none.

        Args:
            weight: its name in the whole model.
            target: its name in the rank's part.
        """
        stored, cut = tensor.value, self._cut(weight, target)
        if not isinstance(stored, torch.Tensor):
            if self._is_kept(stored, weight, cut):
                self._check_shape(tensor, (stored.out_features, stored.in_features), weight)
                self.kept += 1
                self.kept_bytes += tensor.nbytes
                self.kept_numbers += stored.out_features * stored.in_features
                own = self._cut_quantized(tensor, stored, cut).to(self.device)
                blocks = q4_0_blocks(own) if self.takes_blocks and isinstance(own, Int4Weight) else None
                return own if blocks is None else blocks
            stored = stored.dense(torch.float32)
        value = self._oriented(tensor, stored, weight)
        if target not in self.own:
            return None
        if target in self.kinds:
            return self._quantized(tensor, target, value, cut)
        return value if cut is None else cut.of(value)

    def _is_kept(self, stored: QuantizedWeight, weight: str, cut: Cut | None) -> bool:
        """Return whether a quantised weight, or the rank's part of it, is held as it is stored."""
        if isinstance(stored, StoredBlocks):
            return cut is None or cut.dim == OUTPUTS or stored.can_be_cut(cut.ranges)
        # An embedding of four bits cannot be looked up.
        return isinstance(stored, Int8Weight) or weight != self.model.rules.embedding

    def _check_shape(
        self, tensor: StoredTensor, shape: tuple[int, ...], weight: str, *, transposed: bool = False
    ) -> None:
        wanted = tuple(self.expected[weight])
        if shape != wanted:
            found, required = (shape[::-1], wanted[::-1]) if transposed else (shape, wanted)
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name} has shape {found}, config.json requires {required}"
            )

    def _oriented(self, tensor: StoredTensor, value: torch.Tensor, weight: str) -> torch.Tensor:
        """Return the stored value in the model's shape."""
        if weight.endswith(self.model.rules.convolutions) and value.ndim == 3 and value.shape[1] == 1:
            value = value[:, 0]
        transposed = weight.endswith(self.model.rules.transposed)
        shape = tuple(value.shape)
        self._check_shape(tensor, shape[::-1] if transposed else shape, weight, transposed=transposed)
        if str(value.dtype).removeprefix("torch.") not in DTYPES:
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name} has dtype {value.dtype}; accepted are {', '.join(DTYPES)}"
            )
        return value.t() if transposed else value

    def _quantized(self, tensor: StoredTensor, target: str, value: torch.Tensor, cut: Cut | None) -> QuantizedWeight:
        """Quantise a part of a value, to the numbers that the whole one would have there."""
        kind = self.kinds[target]
        try:
            if cut is None:
                return kind.quantize(value.to(self.device))
            if cut.dim == INPUTS and kind is Int8Weight:  # the scale of an output is that of all its inputs
                (inputs,) = cut.ranges
                return Int8Weight.quantize(value.to(self.device), slice(inputs.start, inputs.stop))
            if kind is Fp8Weight:
                return cut.of_quantized(Fp8Weight.quantize(value.to(self.device))).to(self.device)
            return kind.quantize(cut.of(value).to(self.device))
        except ValueError as error:
            raise CheckpointError(f"{tensor.file}: tensor {tensor.name} cannot be quantised: {error}") from None

    def _cut_quantized(self, tensor: StoredTensor, value: QuantizedWeight, cut: Cut | None) -> QuantizedWeight:
        try:
            return value if cut is None else cut.of_quantized(value)
        except ValueError as error:
            raise CheckpointError(f"{tensor.file}: tensor {tensor.name} cannot be cut: {error}") from None

    def _check_duplicate(self, tensor: StoredTensor, weight: str) -> None:
        """Refuse a second tensor for a parameter, unless it is a tied head. That is equal: see `has_own_head`."""
        (name, file), rules = self.sources[weight], self.model.rules
        names = {rules.inner(stored) for stored in (name, tensor.name)}
        if names != {rules.head, rules.embedding}:
            raise CheckpointError(f"tensor {tensor.name} in {tensor.file} is also there as {name} in {file}")


def kinds_of(model: CausalLM, quantization: str, *, takes_blocks: bool) -> Mapping[str, Kind]:
    """Return the names of the weights that are quantised while they are loaded, and what to.

    Args:
        quantization: of a model's spec; none are quantised unless it is one of `ON_LOAD`.
        takes_blocks: weights whose inputs blocks divide become blocks, which cost less accuracy.
    """
    if quantization not in ON_LOAD:
        return {}
    layers = {
        f"{path}.weight": layer
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and not isinstance(layer, WideLinear)
    }
    if quantization == FP8:
        return {name: Fp8Weight for name in layers if name != model.rules.head}
    inputs = {name: layer.in_features for name, layer in layers.items()}
    inputs[model.rules.embedding] = model.spec.hidden_size
    tables = (model.rules.embedding, model.rules.head)

    def kind(name: str, size: int) -> Kind:
        if size % GROUP:
            return Int8Weight
        if quantization == INT4 and name not in tables:
            return FourBits if takes_blocks else Int4Weight
        return EightBits if takes_blocks else Int8Weight

    return {name: kind(name, size) for name, size in inputs.items()}
