"""The checkpoint that is to be quantised: its tensors, and which of them are weights of linear layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from sluice.models.base import CausalLM
from sluice.models.checkpoint import CheckpointConfig, CheckpointError, Fields, read_config, refuse_unsupported
from sluice.models.filler import Kind, kinds_of
from sluice.models.formats.gguf_config import METHOD, PLAIN
from sluice.models.model_class import model_class
from sluice.models.registry import ARCHITECTURES, is_native
from sluice.models.spec import DTYPES
from sluice.models.weights import StoredTensor, first_floating_dtype, stored_tensors


class Weight(NamedTuple):
    """A weight that can be quantised."""

    name: str
    """Name in the checkpoint."""
    inner_name: str
    """Name in the model."""
    value: torch.Tensor
    """[out_features, in_features], memory-mapped."""


class PlainCheckpoint:
    """A checkpoint of plain weights, of a native architecture.

    Raises:
        CheckpointError: it is not that.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        checkpoint = read_config(folder)
        _refuse_quantized(checkpoint)
        if not is_native(checkpoint.architecture):
            raise CheckpointError(
                f"{checkpoint.architecture} cannot be quantised: which tensors are weights of linear layers is known of"
                f" {', '.join(ARCHITECTURES)}"
            )
        self.dtype = checkpoint.dtype or first_floating_dtype(folder)
        """Name of the dtype that `--dtype auto` gives it."""
        architecture = model_class(checkpoint.architecture)
        refuse_unsupported(checkpoint.fields, architecture.reads)
        with torch.device("meta"):
            self.model: CausalLM = architecture.from_checkpoint(checkpoint, torch.bfloat16)
        self._shapes: Mapping[str, torch.Size] = {name: weight.shape for name, weight in self.model.named_parameters()}
        self.linear = frozenset(
            f"{path}.weight" for path, layer in self.model.named_modules() if isinstance(layer, nn.Linear)
        ) - {self.model.rules.head}
        """Names of the linear layers' weights in the model, without the head."""

    def inner(self, name: str) -> str:
        """Return the model's name of a tensor."""
        return self.model.rules.inner(name)

    def kinds(self, quantization: str) -> Mapping[str, Kind]:
        """Return what `--quantization` makes of weights with the compiled kernels, by their names in the model."""
        return kinds_of(self.model, quantization, takes_blocks=True)

    def weights(self) -> Iterator[Weight]:
        """Iterate over the weights that `--quantization` would quantise, in the order of the files.

        Raises:
            CheckpointError: a file or a weight is broken.
        """
        quantizable = self.kinds("int8")
        for tensor in stored_tensors(self.folder):
            name = self.inner(tensor.name)
            if name in quantizable:
                yield Weight(tensor.name, name, self.oriented(tensor))

    def oriented(self, tensor: StoredTensor) -> torch.Tensor:
        """Return the value of a weight [out_features, in_features].

        Raises:
            CheckpointError: it has another shape, or no floating-point dtype.
        """
        stored, name = tensor.value, self.inner(tensor.name)
        assert isinstance(stored, torch.Tensor), f"{tensor.name} is quantised"
        value = stored.t() if name.endswith(self.model.rules.transposed) else stored
        if value.shape != self._shapes[name]:
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name} has shape {tuple(stored.shape)}, which is not that of a"
                f" weight of {' x '.join(map(str, self._shapes[name]))}, as config.json requires"
            )
        if value.dtype not in DTYPES.values():
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name} has dtype {value.dtype}; accepted are {', '.join(DTYPES)}"
            )
        return value


def _refuse_quantized(checkpoint: CheckpointConfig) -> None:
    section = checkpoint.fields.section("quantization_config")
    if section is None:
        return
    types = section.section("types")
    if section.text("quant_method") == METHOD and types is not None:
        raise CheckpointError(_why_no_gguf(types))
    raise CheckpointError(
        f"the checkpoint is quantised already ({section.text('quant_method')}): name the one that it was made of"
    )


def _why_no_gguf(types: Fields) -> str:
    """Return why a GGUF file is not quantised, and what to do instead."""
    kinds = ", ".join(types)
    if all(kind in PLAIN for kind in types):
        return (
            f"this command reads safetensors, and a GGUF file of plain weights ({kinds}) is quantised when it is"
            " served: sluice serve FILE --quantization int8 (or int4)"
        )
    return (
        f"the GGUF file is quantised already ({kinds}), and is served as it is: sluice serve FILE. To quantise its"
        " weights a second time, which costs quality: sluice serve FILE --quantization int8 (or int4). This command"
        " reads checkpoints in safetensors, such as the one that the file was made of"
    )
