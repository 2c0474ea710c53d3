"""Loads the model of a checkpoint folder.

A native model is built on the meta device and then filled tensor by tensor. A model without a native class is loaded
through transformers (`fallback`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from sluice.models.base import CausalLM, PagedLM
from sluice.models.checkpoint import CheckpointConfig, CheckpointError, read_config, refuse_unsupported
from sluice.models.fallback.load import load_fallback
from sluice.models.formats.base import Format
from sluice.models.formats.read import check_agrees, read_format
from sluice.models.gpt2 import GPT2
from sluice.models.linear import Packer
from sluice.models.llama import Llama
from sluice.models.llama_config import LLAMA_ARCHITECTURES
from sluice.models.quantized import GROUP, Int4Weight, Int8Weight, QuantizedLinear, QuantizedWeight
from sluice.models.shards import INPUTS, Cut, cut_of
from sluice.models.spec import INT8_AS_STORED, ON_LOAD, ModelSpec, Quantization
from sluice.models.weights import StoredTensor, first_floating_dtype, stored_tensors, weight_files
from sluice.parallel.member import ALONE, Member

ARCHITECTURES: Mapping[str, type[CausalLM]] = {
    **dict.fromkeys(LLAMA_ARCHITECTURES, Llama),
    **dict.fromkeys(("GPT2LMHeadModel", "GPT2Model"), GPT2),
}

LOGGER = logging.getLogger("sluice.models")

Report = Callable[[int, int], None]


def is_native(architecture: str) -> bool:
    """Return whether an architecture has a native class."""
    return architecture in ARCHITECTURES


def model_class(architecture: str) -> type[CausalLM]:
    """Return the native class for a name in the `architectures` of a `config.json`.

    Raises:
        CheckpointError: there is none; the message lists the supported ones.
    """
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"architecture {architecture!r} is not supported natively; known: {', '.join(ARCHITECTURES)}; others"
            " may run with --model-impl transformers"
        )
    return ARCHITECTURES[architecture]


DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_model(
    folder: Path,
    *,
    dtype: str,
    device: torch.device,
    progress: bool,
    implementation: str = "auto",
    quantization: str | None = None,
    packer: Packer | None = None,
    report: Report = lambda done, total: None,
    member: Member = ALONE,
) -> tuple[PagedLM, ModelSpec]:
    """Load the checkpoint in `folder`, or a rank's part of it, filling every parameter exactly once.

    Args:
        dtype: a key of `DTYPES`, or "auto" for the checkpoint's own.
        device: the device of the weights. A native model holds at most one further tensor while it loads.
        progress: draw a progress bar on standard error.
        implementation: "native", "transformers", or "auto": transformers if there is no native class.
        quantization: "int8" quantises a native model's linear layers, embedding and head, tensor by tensor; "int4" the
            layers to four bits, where groups divide their inputs, and the rest to int8. Else how
            the checkpoint must be quantised, by its `quant_method` or "none"; None: in any way, or not. Weights that
            it stores for products in int8 stay so in a model of bfloat16, if the packer is fast in it.
        packer: lays out native weights; None keeps torch's layout.
        report: called with the bytes of native weights that were read, and those of all.
        member: the rank. Of a native model, only its part of the weights is read.

    Returns:
        The rank's part of the model, and the sizes of all of it (`ModelSpec.of` gives those of the part).

    Raises:
        CheckpointError: the config is not supported, or the model cannot be cut so; a file is missing or broken, or a
            tensor is missing, unexpected, duplicated, of the wrong shape or not of a floating-point dtype.
    """
    checkpoint = read_config(folder)
    if implementation == "transformers" or (implementation == "auto" and not is_native(checkpoint.architecture)):
        if quantization in ON_LOAD:
            raise CheckpointError(
                f"{checkpoint.architecture} runs through transformers, whose weights are not quantised: leave out"
                f" --quantization {quantization}"
            )
        if member.place.layout.size > 1:
            raise CheckpointError(
                f"{checkpoint.architecture} runs through transformers, on one device alone: leave out --tp-size and"
                f" --pp-size; architectures that are computed by several: {', '.join(ARCHITECTURES)}"
            )
        if checkpoint.fields.section("quantization_config") is None:  # else it is refused
            check_agrees(quantization, None)
        chosen = _resolve_dtype(folder, checkpoint, dtype, device, None)
        model: PagedLM = load_fallback(folder, checkpoint, dtype=chosen, device=device, progress=progress)
    else:
        stored_as = read_format(checkpoint)
        check_agrees(quantization, stored_as)
        packer = packer or Packer()
        model = _load_native(
            folder, checkpoint, stored_as, dtype, quantization, device, packer, report, member, progress=progress
        )
    return model, model.spec


def _load_native(
    folder: Path,
    checkpoint: CheckpointConfig,
    stored_as: Format | None,
    dtype: str,
    quantization: str | None,
    device: torch.device,
    packer: Packer,
    report: Report,
    member: Member,
    *,
    progress: bool,
) -> CausalLM:
    architecture = model_class(checkpoint.architecture)
    refuse_unsupported(checkpoint.fields)
    chosen = _resolve_dtype(folder, checkpoint, dtype, device, stored_as)
    with torch.device("meta"):
        whole = architecture.from_checkpoint(checkpoint, chosen)
        model = whole if member.place.layout.size == 1 else architecture.from_checkpoint(checkpoint, chosen, member)
    whole.spec = replace(whole.spec, quantization=_held(quantization, stored_as, chosen, packer))
    if stored_as is not None:
        whole.spec = replace(whole.spec, stored_as=Quantization(stored_as.name, stored_as.description))
    model.spec = whole.spec
    filler = _Filler(whole, model, device)
    total = sum(path.stat().st_size for path in weight_files(folder))
    with tqdm(total=total, desc="loading weights", unit="B", unit_scale=True, leave=False, disable=not progress) as bar:
        _fill(filler, _tensors(folder, stored_as, whole), bar, report)
    if model.spec.stored_as is not None:
        model.spec = replace(model.spec, stored_as=replace(model.spec.stored_as, kept=filler.kept))
    filler.finish(packer)
    if packer.widened:
        LOGGER.info(
            "%d joined layers are computed in %s: their parts are quantised in different ways, or only in part",
            packer.widened,
            str(chosen).removeprefix("torch."),
        )
    # Moves the buffers that were computed from the config.
    return model.to(device)


def _fill(filler: _Filler, tensors: Iterator[StoredTensor], bar: tqdm, report: Report) -> None:
    """Fill a model. No tensor outlives this function, and none is there when the layers are packed."""
    done = 0
    for tensor in tensors:
        filler.fill(tensor)
        bar.update(tensor.nbytes)
        done += tensor.nbytes
        report(done, bar.total)


def _tensors(folder: Path, stored_as: Format | None, model: CausalLM) -> Iterator[StoredTensor]:
    """Iterate over a checkpoint's tensors as plain weights."""
    if stored_as is None:
        return stored_tensors(folder)
    if model.rules.transposed:
        raise CheckpointError(f"{model.spec.architecture} with quantised weights ({stored_as.name}) is not supported")
    # Of float32, int8 is made without another rounding: weights that were stored so get their own numbers back.
    dtype = torch.float32 if model.spec.quantization in ON_LOAD else model.spec.dtype
    return stored_as.tensors(folder, model, dtype)


def _held(asked: str | None, stored_as: Format | None, dtype: torch.dtype, packer: Packer) -> str:
    """Return how the model holds its weights, as `ModelSpec.quantization` says it."""
    if asked is not None and asked in ON_LOAD:
        return asked
    is_made_for_int8 = stored_as is not None and stored_as.has_w8a8
    return INT8_AS_STORED if is_made_for_int8 and packer.is_fast_in_int8 and dtype == torch.bfloat16 else "none"


def _resolve_dtype(
    folder: Path, checkpoint: CheckpointConfig, dtype: str, device: torch.device, stored_as: Format | None
) -> torch.dtype:
    """Return the dtype to compute in. Weights that must be dequantised are so to one that the CPU's kernels have."""
    name = dtype
    if dtype == "auto" and stored_as is not None:
        name = checkpoint.dtype or "bfloat16"
        if name == "float16" and device.type == "cpu":
            name = "bfloat16"
    elif dtype == "auto":
        name = checkpoint.dtype or first_floating_dtype(folder)
    if name not in DTYPES:
        source = "the checkpoint's dtype" if dtype == "auto" else "dtype"
        raise CheckpointError(f"{source} must be one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


class _Filler:
    """Copies stored tensors, or a rank's part of them, into a model on the meta device, and notes what is missing.

    Args:
        whole: all of the model, on the meta device, if `model` is a part of it.
    """

    def __init__(self, whole: CausalLM, model: CausalLM, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.is_tied = whole.tied
        self.expected = {name: weight.shape for name, weight in whole.named_parameters()}
        self.own = frozenset(name for name, _ in model.named_parameters())
        self.kinds = kinds_of(model, model.spec.quantization)
        self.filled: dict[str, torch.Tensor] = {}
        self.quantized: dict[str, QuantizedWeight] = {}
        self.sources: dict[str, tuple[str, str]] = {}
        self.kept = 0

    def fill(self, tensor: StoredTensor) -> None:
        """Copy one tensor, or skip it if it is a buffer or another rank's."""
        rules = self.model.rules
        name = tensor.name.removeprefix(rules.prefix)
        if name.endswith(rules.ignored):
            return
        weight = rules.embedding if self.is_tied and name == rules.head else name
        if weight not in self.expected:
            raise CheckpointError(
                f"{tensor.file}: unexpected tensor {tensor.name}: {self.model.spec.architecture} with this"
                f" config.json has no such weight"
            )
        # A last stage that is not the first has a tied head as a weight of its own.
        is_head = self.is_tied and weight == rules.embedding and weight not in self.own
        target = rules.head if is_head else weight
        value = self._value(tensor, weight, target) if target in self.own else None
        if weight in self.sources:
            self._check_duplicate(tensor, weight, target, value)
            return
        self.sources[weight] = tensor.name, tensor.file
        if value is None:
            return
        if not isinstance(value, torch.Tensor):
            self.quantized[target] = value
            return
        filled = torch.empty(value.shape, dtype=self.model.spec.dtype, device=self.device)
        filled.copy_(value)
        self.filled[target] = filled

    def finish(self, packer: Packer) -> None:
        """Load the tensors into the model, and pack them."""
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
        self.model.pack(packer)

    def _place_quantized(self) -> None:
        """Put layers with the quantised weights in the place of those that were made for plain ones."""
        for name, weight in self.quantized.items():
            path = name.removesuffix(".weight")
            layer = QuantizedLinear(weight, self.filled.pop(f"{path}.bias", None), self.model.spec.dtype)
            self.model.set_submodule(path, layer)
        self.quantized.clear()

    def _value(self, tensor: StoredTensor, weight: str, target: str) -> torch.Tensor | QuantizedWeight:
        """Return the rank's part of a stored value as the model is to hold it: quantised, or to be copied.

        Args:
            weight: its name in the whole model.
            target: its name in the rank's part.
        """
        stored, spec, place = tensor.value, self.model.spec, self.model.member.place
        cut = cut_of(self.model.rules.shards, target, self.expected[weight], spec, place)
        if not isinstance(stored, torch.Tensor):
            if isinstance(stored, Int8Weight) or weight != self.model.rules.embedding:
                self._check_shape(tensor, (stored.out_features, stored.in_features), weight)
                self.kept += 1
                return self._cut_quantized(tensor, stored, cut).to(self.device)
            stored = stored.dense(torch.float32)  # an embedding of four bits cannot be looked up
        value = self._oriented(tensor, stored, weight)
        if target in self.kinds:
            return self._quantized(tensor, target, value, cut)
        return value if cut is None else cut.of(value)

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
            return kind.quantize(cut.of(value).to(self.device))
        except ValueError as error:
            raise CheckpointError(f"{tensor.file}: tensor {tensor.name} cannot be quantised: {error}") from None

    def _cut_quantized(self, tensor: StoredTensor, value: QuantizedWeight, cut: Cut | None) -> QuantizedWeight:
        try:
            return value if cut is None else cut.of_quantized(value)
        except ValueError as error:
            raise CheckpointError(f"{tensor.file}: tensor {tensor.name} cannot be cut: {error}") from None

    def _check_duplicate(
        self, tensor: StoredTensor, weight: str, target: str, value: torch.Tensor | QuantizedWeight | None
    ) -> None:
        """Refuse a second tensor for a parameter, unless it is a tied head equal to its embedding."""
        (name, file), rules = self.sources[weight], self.model.rules
        names = {stored.removeprefix(rules.prefix) for stored in (name, tensor.name)}
        if names != {rules.head, rules.embedding}:
            raise CheckpointError(f"tensor {tensor.name} in {tensor.file} is also there as {name} in {file}")
        if value is None:
            return
        first = self.quantized.get(target)
        if not isinstance(value, torch.Tensor):
            same = isinstance(first, Int8Weight) and isinstance(value, Int8Weight) and first.equals(value)
        else:
            same = target in self.filled and torch.equal(
                value.to(self.device, self.model.spec.dtype), self.filled[target]
            )
        if not same:
            raise CheckpointError(
                f"config.json ties {rules.head} to {rules.embedding}, but {tensor.name} in {tensor.file} differs"
                f" from {name} in {file}"
            )


def kinds_of(model: CausalLM, quantization: str) -> Mapping[str, type[QuantizedWeight]]:
    """Return the names of the weights that are quantised while they are loaded, and what to.

    Args:
        quantization: of a model's spec; none are quantised unless it is one of `ON_LOAD`.
    """
    if quantization not in ON_LOAD:
        return {}
    kinds: dict[str, type[QuantizedWeight]] = {model.rules.embedding: Int8Weight}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            in_groups = module.in_features % GROUP == 0 and f"{path}.weight" != model.rules.head
            kinds[f"{path}.weight"] = Int4Weight if quantization == "int4" and in_groups else Int8Weight
    return kinds
