"""compressed-tensors: int8 and FP8 weights, and packed integers, as LLM Compressor writes them.

The package of that name reads the configuration, decides which layers it means, and unpacks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.formats.base import SCALES, LayoutError, StoredPart, WeightLayout
from sluice.models.formats.dequantize import PartedFormat
from sluice.models.formats.extra import need
from sluice.models.formats.packed import WORD, unpacked
from sluice.models.quantized import ZERO_POINT, Fp8Weight, Int4Weight, Int8Weight, QuantizedWeight
from sluice.models.spec import FP8, INT4, holds
from sluice.models.unused import ACTIVATIONS

LOGGER = logging.getLogger("sluice.models")
PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
"""Formats that store each number in a type of its own."""
PACKED = "pack-quantized"
STRATEGIES = ("tensor", "channel", "group", "block")
PACKED_ROWS = 32
"""Zero points of so many rows fill whole words, whatever their bits."""


class CompressedTensors(PartedFormat):
    """A checkpoint of compressed-tensors.

    Args:
        config: the library's `QuantizationConfig`.
        layouts: for each of its groups, the format's name.
    """

    name = "compressed-tensors"

    def __init__(self, config: Any, formats: Mapping[str, str]) -> None:
        self._config = config
        self._formats = formats
        kinds = (_made_for(config.config_groups[name], stored_as) for name, stored_as in formats.items())
        self.kinds = tuple(kind for kind in kinds if kind is not None)
        self._match = need("compressed_tensors.utils.match", self.name).match_targets

    @classmethod
    def read(cls, section: Fields) -> CompressedTensors | None:
        """Read `quantization_config`. Return None if it quantises activations or the KV cache alone.

        Raises:
            CheckpointError: the package is not installed, or the configuration is not valid or not supported.
        """
        if section.section("transform_config") is not None:
            raise section.error("transform_config", "absent: transformed weights are not supported")
        sparsity = section.section("sparsity_config")
        if sparsity is not None and sparsity.text("format", "dense") != "dense":
            raise sparsity.error("format", "dense: sparse weights are not supported")
        if not section.get("config_groups"):
            _note_plain(section)
            return None
        quantization = need("compressed_tensors.quantization", f"{section.source} of compressed-tensors")
        try:
            config = quantization.QuantizationConfig.model_validate({name: section.get(name) for name in section})
        except (ValueError, NotImplementedError, KeyError) as error:
            raise CheckpointError(f"{section.source}: {_reason(error)}") from error
        formats = {
            name: _format(section, name, scheme, config.format)
            for name, scheme in config.config_groups.items()
            if scheme.weights is not None
        }
        if not formats:
            _note_plain(section)
            return None
        return cls(config, formats)

    @property
    def description(self) -> str:
        groups = (_described(self._config.config_groups[name]) for name in self._formats)
        return f"compressed-tensors: {' and '.join(dict.fromkeys(groups))}"

    def layout(self, module: str, layer: nn.Linear | nn.Embedding) -> WeightLayout | None:
        if self._match(module, layer, self._config.ignore):
            return None
        found = None
        for name, scheme in self._config.config_groups.items():
            if not self._match(module, layer, scheme.targets):
                continue
            if found is not None:
                raise LayoutError(f"config_groups {found} and {name} both have {module} as a target")
            found = name
        if found is None or found not in self._formats:
            return None
        shape = (layer.weight.shape[0], layer.weight.shape[1])
        return CompressedLayout(shape, self._config.config_groups[found], self._formats[found])


class CompressedLayout(WeightLayout):
    """A weight of compressed-tensors.

    Args:
        scheme: the library's `QuantizationScheme`.
        stored_as: name of the format.
    """

    skipped = frozenset(ACTIVATIONS)

    def __init__(self, shape: tuple[int, int], scheme: Any, stored_as: str) -> None:
        super().__init__(shape)
        compressors = need("compressed_tensors.compressors", CompressedTensors.name)
        self._decompress = compressors.BaseCompressor.get_value_from_registry(stored_as).decompress
        self._scheme = scheme
        self._args = scheme.weights
        self._is_packed = stored_as == PACKED
        self._kind, self._made_for = _kind(scheme, stored_as), _made_for(scheme, stored_as)
        self.numbers = "weight_packed" if self._is_packed else "weight"
        block = self._args.block_structure or (1, 1)
        self._scale_rows = block[0]
        self.row_step = math.lcm(PACKED_ROWS, block[0])
        group = self._args.group_size
        if self._args.strategy == "group" and self.in_features % group:
            raise LayoutError(f"groups of {group} do not divide its {self.in_features} inputs")
        self._parts = self._wanted()

    @property
    def parts(self) -> Mapping[str, StoredPart]:
        return self._parts

    def _wanted(self) -> dict[str, StoredPart]:
        scales = self._scale_shapes()
        found = {"weight_scale": StoredPart(SCALES, scales)}
        if self._is_packed:
            bits = self._args.num_bits
            words = -(-self.in_features * bits // 32)
            found["weight_packed"] = StoredPart((torch.int32,), ((self.out_features, words),))
            found["weight_shape"] = StoredPart((torch.int64, torch.int32), ((2,),))
        else:
            found["weight"] = StoredPart((self._args.pytorch_dtype(),), ((self.out_features, self.in_features),))
        if not self._args.symmetric:
            found["weight_zero_point"] = self._zero_points(scales)
        return found

    def _zero_points(self, scales: tuple[tuple[int, ...], ...]) -> StoredPart:
        if self._is_packed and self._args.strategy in ("group", "channel"):
            words = -(-self.out_features * self._args.num_bits // 32)
            return StoredPart((torch.int32,), ((words, scales[0][1]),))
        return StoredPart((torch.int8, torch.int32, torch.int64, *SCALES), scales)

    def _scale_shapes(self) -> tuple[tuple[int, ...], ...]:
        outputs, inputs = self.out_features, self.in_features
        match self._args.strategy:
            case "tensor":
                return ((1,), ())
            case "channel":
                return ((outputs, 1),)
            case "group":
                return ((outputs, inputs // self._args.group_size),)
        rows, columns = self._args.block_structure
        return ((-(-outputs // rows), -(-inputs // columns)),)

    def kept(self, stored: Mapping[str, torch.Tensor], quantization: str) -> QuantizedWeight | None:
        scales, numbers = stored["weight_scale"].float(), stored[self.numbers]
        if self._kind is None or not holds(quantization, self._kind):
            return None
        if self._kind != INT4 and (quantization == self._kind or self._made_for == self._kind):
            whole = Int8Weight if self._kind == "int8" else Fp8Weight
            return whole(numbers, scales.reshape(-1).expand(self.out_features).contiguous())
        if self._kind == INT4 and self.in_features * 4 % WORD == 0:
            zeros = torch.full_like(scales, ZERO_POINT)
            if "weight_zero_point" in stored:
                zeros = unpacked(stored["weight_zero_point"].T, 4)[:, : self.out_features].T
            return Int4Weight.with_zero_points(numbers.view(torch.uint8), scales, zeros)
        return None

    def rows(self, stored: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        state = {self.numbers: stored[self.numbers][start:stop]}
        state["weight_scale"] = self._of_rows(stored["weight_scale"], start, stop).float()
        if "weight_zero_point" in stored:
            zeros, bits = stored["weight_zero_point"], self._args.num_bits
            if self._is_packed and zeros.dtype == torch.int32 and zeros.ndim == 2:
                state["weight_zero_point"] = zeros[start * bits // 32 : -(-stop * bits // 32)]
            else:
                state["weight_zero_point"] = self._of_rows(zeros, start, stop)
        if self._is_packed:
            state["weight_shape"] = torch.tensor([stop - start, self.in_features])
        dequantized: torch.Tensor = self._decompress(state, self._scheme)["weight"]
        return dequantized

    def _of_rows(self, values: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return the scales or zero points of some rows; one for the whole weight is that of every row."""
        if self._args.strategy == "tensor":
            return values.reshape(1)
        return values[start // self._scale_rows : -(-stop // self._scale_rows)]


def _note_plain(section: Fields) -> None:
    """Say that a section quantises no weights."""
    LOGGER.warning(
        "%s has no group that quantises weights, and is not used: activations and KV are in the model's dtype,"
        " or in that of --kv-cache-dtype",
        section.source,
    )


def _format(section: Fields, group: str, scheme: Any, default: str) -> str:
    """Return the name of a group's format, if it is supported."""
    chosen = scheme.format.value if hasattr(scheme.format, "value") else scheme.format or default
    where = f"{section.source}: config_groups: {group}"
    if chosen not in (*PLAIN, PACKED):
        raise CheckpointError(
            f"{where}: format {chosen!r} is not supported; accepted are {', '.join((*PLAIN, PACKED))}"
        )
    weights = scheme.weights
    if weights.strategy not in STRATEGIES:
        raise CheckpointError(
            f"{where}: weights of strategy {weights.strategy!r} are not supported; accepted are {', '.join(STRATEGIES)}"
        )
    is_fp8 = weights.type == "float" and weights.num_bits == 8
    if weights.type == "float" and not (is_fp8 and chosen != PACKED):
        raise CheckpointError(
            f"{where}: {weights.num_bits}-bit floats as {chosen} are not supported; accepted are integers, and 8-bit"
            f" floats as float-quantized"
        )
    return str(chosen)


def _kind(scheme: Any, stored_as: str) -> str | None:
    """Return what the numbers of weights are, if products can take them as they are stored.

    They have no zero points and one scale for each channel, or one for all; or four bits in groups along the inputs.
    """
    args = scheme.weights
    if stored_as == PACKED:
        return INT4 if args.type == "int" and args.num_bits == 4 and args.strategy in ("group", "channel") else None
    if args.num_bits != 8 or not args.symmetric or args.strategy not in ("tensor", "channel"):
        return None
    return "int8" if args.type == "int" else FP8


def _made_for(scheme: Any, stored_as: str) -> str | None:
    """Return what the products are for which weights are made; None if they are to be dequantised.

    Those in eight bits are made for activations of the same type, each row with a scale that is found when it is
    multiplied.
    """
    kind, weights, inputs = _kind(scheme, stored_as), scheme.weights, scheme.input_activations
    if kind in (None, INT4):
        return kind
    if inputs is None or inputs.type != weights.type or inputs.num_bits != 8 or not inputs.symmetric:
        return None
    return kind if inputs.dynamic is True and inputs.strategy == "token" else None


def _described(scheme: Any) -> str:
    weights, inputs = scheme.weights, scheme.input_activations
    kind = "FP8" if weights.type == "float" else f"int{weights.num_bits}"
    per = f"groups of {weights.group_size}" if weights.strategy == "group" else f"one scale a {weights.strategy}"
    return f"W{weights.num_bits}A{16 if inputs is None else inputs.num_bits} {kind}, {per}"


def _reason(error: Exception) -> str:
    """Return the first error of the library's validation, in one line."""
    pydantic = need("pydantic", CompressedTensors.name)
    if isinstance(error, pydantic.ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}".replace("\n", " ")
    return str(error).replace("\n", " ")
