"""The interfaces of a format: how a checkpoint says that its weights are quantised, and how one weight is stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sluice.models.base import CausalLM
from sluice.models.checkpoint import Fields
from sluice.models.quantized import QuantizedWeight
from sluice.models.weights import StoredTensor

HEAD = "lm_head"
"""The module that computes logits."""
SCALES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes in which scales are stored."""


Rows = Callable[[str], range]


@dataclass(frozen=True, slots=True)
class StoredPart:
    """What one of the tensors must be that together store a quantised weight."""

    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Any of them is accepted."""
    is_optional: bool = False


class WeightLayout(ABC):
    """How a weight [out_features, in_features] is stored as several tensors, its parts.

    Args:
        shape: out_features and in_features.
    """

    numbers: str
    """The part that holds the quantised numbers. Where it is, the weight is."""
    skipped: frozenset[str] = frozenset()
    """Tensors beside the parts that quantise activations or KV, which are computed in the model's dtype here."""
    row_step: int = 1
    """Rows are dequantised from multiples of this number on."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.out_features, self.in_features = shape

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, StoredPart]:
        """Every part, by its name behind the last dot."""

    def check(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Check the values of parts whose shapes and dtypes are right.

        Raises:
            LayoutError: they contradict each other.
        """
        return

    def kept(self, stored: Mapping[str, torch.Tensor], quantization: str) -> QuantizedWeight | None:
        """Return the stored numbers and scales; None if they are not such as a model of this quantisation holds.

        Args:
            stored: the parts, checked, and not copied.
            quantization: of the model's spec.
        """
        return None

    @abstractmethod
    def rows(self, stored: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        """Return rows `start` to `stop` of the weight, [stop - start, in_features] of a floating-point dtype.

        Args:
            stored: the parts, checked; optional ones may be missing.
            start: a multiple of `row_step`.
            stop: a multiple of `row_step`, or `out_features`.
        """


class LayoutError(ValueError):
    """A weight cannot be stored in the way that the configuration says; the message gives the reason."""


class WeightFormat(ABC):
    """How the weights of a checkpoint are quantised, from `quantization_config` in its `config.json`."""

    name: str
    """The value of `quant_method`, which `--quantization` names, too."""

    kinds: tuple[str, ...] = ()
    """What some of the weights are made to be multiplied in, the best first: "blocks", "int8", "int4", "fp8"."""

    holds_sums: bool = False
    """Weights that a family stores less 1 are stored as they are multiplied with."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What a log line says of the weights, such as "4-bit GPTQ in groups of 128"."""

    @property
    def level(self) -> str:
        """How most matrices are stored, in a word."""
        return self.name

    @abstractmethod
    def tensors(self, folder: Path, model: CausalLM, dtype: torch.dtype, rows: Rows) -> Iterator[StoredTensor]:
        """Iterate over the tensors of a checkpoint by their plain names.

        The values of a tensor are there until the next one is asked for.

        Quantised weights come dequantised, apart from those that the model is to hold as they are stored.

        Args:
            folder: the checkpoint's.
            model: on the meta device; its `spec.quantization` says what it holds.
            dtype: of dequantised weights.
            rows: the rows that are needed of a quantised weight, by its name. Others may hold anything; if none are
                needed, the weight may be on the meta device.

        Raises:
            CheckpointError: a file is missing or broken, or a tensor is not what the configuration says.
        """


def names_in(section: Fields, field: str) -> tuple[str, ...]:
    """Return the names in a list of `quantization_config`, none if it is absent.

    Raises:
        CheckpointError: it is no list of texts.
    """
    names = section.get(field)
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise section.error(field, "a list of names")
    return tuple(names)


def is_listed(module: str, names: tuple[str, ...]) -> bool:
    """Return whether a list of names that are left alone has a module, one around it, or its last names."""
    around = f".{module}."
    return any(f".{name.strip('.')}." in around for name in names)
