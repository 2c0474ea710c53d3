"""GPTQ (Frantar et al., 2022): integers of 2, 4 or 8 bits in groups along the inputs, as AutoGPTQ and GPTQModel write.

Zero points are stored less one, except in the version `gptq_v2`. With `desc_act` the inputs of a group are not
neighbours: `g_idx` names the group of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import nn

from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.formats.base import HEAD, SCALES, LayoutError, StoredPart, WeightLayout, is_listed
from sluice.models.formats.dequantize import PartedFormat
from sluice.models.formats.packed import WORD, unpacked
from sluice.models.quantized import Int4Weight, QuantizedWeight
from sluice.models.spec import INT4, holds

BITS = (2, 4, 8)
VERSIONS = ("gptq", "gptq_v2")


class GPTQ(PartedFormat):
    """A checkpoint of GPTQ.

    Args:
        bits: of each number.
        group_size: inputs that share a scale; None: all do.
        is_v2: zero points are stored as they are.
        has_head: the head is quantised, too.
        inside: names of the modules that are quantised; empty: all are.
        kept: patterns of modules that are not.
    """

    name = "gptq"

    def __init__(
        self,
        bits: int,
        group_size: int | None,
        *,
        is_v2: bool,
        has_head: bool,
        inside: tuple[str, ...],
        kept: tuple[re.Pattern[str], ...],
    ) -> None:
        self._bits = bits
        self.kinds = (INT4,) if bits == 4 else ()
        self._group_size = group_size
        self._is_v2 = is_v2
        self._has_head = has_head
        self._inside = inside
        self._kept = kept

    @classmethod
    def read(cls, section: Fields) -> GPTQ:
        """Read `quantization_config`.

        Raises:
            CheckpointError: it is not valid or not supported.
        """
        bits = section.integer("bits")
        if bits not in BITS:
            raise section.error("bits", "2, 4 or 8")
        version = section.text("checkpoint_format", section.text("format", "gptq"))
        if version not in VERSIONS:
            name = "checkpoint_format" if section.get("checkpoint_format") is not None else "format"
            raise section.error(name, "gptq or gptq_v2")
        inside = section.get("modules_in_block_to_quantize") or []
        if not isinstance(inside, list):
            raise section.error("modules_in_block_to_quantize", "a list of names")
        flat = [name for entry in inside for name in (entry if isinstance(entry, list) else [entry])]
        return cls(
            bits,
            group_size(section, "group_size"),
            is_v2=version == "gptq_v2",
            has_head=section.flag("lm_head", False),
            inside=tuple(str(name) for name in flat),
            kept=_kept(section),
        )

    @property
    def description(self) -> str:
        return f"{self._bits}-bit GPTQ, {described(self._group_size)}"

    def layout(self, module: str, layer: nn.Linear | nn.Embedding) -> WeightLayout | None:
        if isinstance(layer, nn.Embedding) or any(pattern.match(module) for pattern in self._kept):
            return None
        is_head = is_listed(module, (HEAD,))
        if is_head and not self._has_head:
            return None
        if self._inside and not is_head and not is_listed(module, self._inside):
            return None
        shape = (layer.weight.shape[0], layer.weight.shape[1])
        return GPTQLayout(shape, self._bits, self._group_size or shape[1], is_v2=self._is_v2)


class GPTQLayout(WeightLayout):
    """A weight of GPTQ, stored as [in, out], with words along the inputs."""

    numbers = "qweight"

    def __init__(self, shape: tuple[int, int], bits: int, group: int, *, is_v2: bool) -> None:
        super().__init__(shape)
        self._bits = bits
        self._is_v2 = is_v2
        self._group = group
        self._groups = -(-self.in_features // group)
        self.row_step = WORD // bits
        for count, kind in ((self.in_features, "inputs"), (self.out_features, "outputs")):
            if count % self.row_step:
                raise LayoutError(f"words of {self.row_step} numbers do not divide its {count} {kind}")

    @property
    def parts(self) -> Mapping[str, StoredPart]:
        per_word = self.row_step
        return {
            "qweight": StoredPart((torch.int32,), ((self.in_features // per_word, self.out_features),)),
            "qzeros": StoredPart((torch.int32,), ((self._groups, self.out_features // per_word),)),
            "scales": StoredPart(SCALES, ((self._groups, self.out_features),)),
            "g_idx": StoredPart((torch.int32, torch.int64), ((self.in_features,),), is_optional=True),
        }

    def check(self, stored: Mapping[str, torch.Tensor]) -> None:
        if "g_idx" in stored:
            low, high = stored["g_idx"].aminmax()
            if low < 0 or high >= self._groups:
                raise LayoutError(f"g_idx must name groups from 0 to {self._groups - 1}, got {int(low)} to {int(high)}")

    def kept(self, stored: Mapping[str, torch.Tensor], quantization: str) -> QuantizedWeight | None:
        groups = torch.arange(self.in_features) // self._group
        is_shuffled = "g_idx" in stored and not torch.equal(stored["g_idx"].long(), groups)
        if not holds(quantization, INT4) or self._bits != 4 or is_shuffled or self.in_features % self._group:
            return None
        values = stored["qweight"].T.contiguous().view(torch.uint8)  # a word has the inputs in their order
        return Int4Weight.with_zero_points(values, stored["scales"].T, self._zeros(stored["qzeros"]).T)

    def _zeros(self, words: torch.Tensor) -> torch.Tensor:
        zeros = unpacked(words, self._bits)
        return zeros if self._is_v2 else (zeros + 1) & ((1 << self._bits) - 1)

    def rows(self, stored: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        columns, per_word = slice(start, stop), self.row_step
        numbers = unpacked(stored["qweight"][:, columns].T, self._bits)
        zeros = self._zeros(stored["qzeros"][:, start // per_word : stop // per_word])
        groups = stored["g_idx"].long() if "g_idx" in stored else torch.arange(self.in_features) // self._group
        scales = stored["scales"][:, columns].float()
        return (numbers - zeros.T[:, groups]) * scales.T[:, groups]


def group_size(section: Fields, name: str) -> int | None:
    """Read the number of inputs that share a scale; None: all do, which is stored as -1.

    Raises:
        CheckpointError: it is neither -1 nor a positive number.
    """
    return None if section.get(name) == -1 else section.integer(name)


def described(group: int | None) -> str:
    """Return how many inputs share a scale, in words."""
    return "one scale a channel" if group is None else f"groups of {group}"


def _kept(section: Fields) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of `dynamic` that leave modules out; those that quantise some otherwise are refused."""
    dynamic = section.section("dynamic")
    kept = []
    for rule in dynamic or ():
        if not rule.startswith("-:"):
            raise CheckpointError(
                f"{section.source}: dynamic: {rule!r} quantises some modules in another way, which is not supported;"
                f" accepted are rules that leave modules out (-:)"
            )
        try:
            kept.append(re.compile(rule.removeprefix("-:")))
        except re.error as error:
            raise CheckpointError(f"{section.source}: dynamic: {rule!r} is no regular expression: {error}") from error
    return tuple(kept)
