"""AWQ (Lin et al., 2023): four-bit integers in groups along the inputs, in the version "gemm" of AutoAWQ."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from sluice.models.checkpoint import Fields
from sluice.models.formats.base import HEAD, SCALES, LayoutError, StoredPart, WeightLayout, is_listed, names_in
from sluice.models.formats.dequantize import PartedFormat
from sluice.models.formats.gptq import described, group_size
from sluice.models.formats.packed import pairs, unpacked
from sluice.models.quantized import Int4Weight, QuantizedWeight
from sluice.models.spec import INT4, holds

PER_WORD = 8
WORDS = 32
"""Words of each input that are unpacked at once."""
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the eight outputs of a word are in it: those with even numbers come first."""
SYMMETRIC_ZERO = 8


class AWQ(PartedFormat):
    """A checkpoint of AWQ.

    Args:
        group_size: inputs that share a scale; None: all do.
        has_zeros: there are zero points; otherwise the middle is zero.
        kept: modules that are not quantised, beside the head.
    """

    name = "awq"
    kinds = (INT4,)

    def __init__(self, group_size: int | None, *, has_zeros: bool, kept: tuple[str, ...]) -> None:
        self._group_size = group_size
        self._has_zeros = has_zeros
        self._kept = kept

    @classmethod
    def read(cls, section: Fields) -> AWQ:
        """Read `quantization_config`.

        Raises:
            CheckpointError: it is not valid or not supported.
        """
        bits = "w_bit" if section.get("w_bit") is not None else "bits"
        if section.integer(bits) != 4:
            raise section.error(bits, "4")
        if section.text("version", "gemm").lower() != "gemm":
            raise section.error("version", "gemm")
        group = "q_group_size" if section.get("q_group_size") is not None else "group_size"
        kept = names_in(section, "modules_to_not_convert")
        return cls(group_size(section, group), has_zeros=section.flag("zero_point", True), kept=kept)

    @property
    def description(self) -> str:
        return f"4-bit AWQ, {described(self._group_size)}"

    def layout(self, module: str, layer: nn.Linear | nn.Embedding) -> WeightLayout | None:
        if isinstance(layer, nn.Embedding) or is_listed(module, (*self._kept, HEAD)):
            return None
        shape = (layer.weight.shape[0], layer.weight.shape[1])
        return AWQLayout(shape, self._group_size or shape[1], has_zeros=self._has_zeros)


class AWQLayout(WeightLayout):
    """A weight of AWQ, stored as [in, out], with words along the outputs."""

    numbers = "qweight"
    row_step = PER_WORD

    def __init__(self, shape: tuple[int, int], group: int, *, has_zeros: bool) -> None:
        super().__init__(shape)
        self._group = group
        self._has_zeros = has_zeros
        if self.in_features % group:
            raise LayoutError(f"groups of {group} do not divide its {self.in_features} inputs")
        if self.out_features % PER_WORD:
            raise LayoutError(f"words of {PER_WORD} numbers do not divide its {self.out_features} outputs")

    @property
    def parts(self) -> Mapping[str, StoredPart]:
        groups, words = self.in_features // self._group, self.out_features // PER_WORD
        return {
            "qweight": StoredPart((torch.int32,), ((self.in_features, words),)),
            "scales": StoredPart(SCALES, ((groups, self.out_features),)),
            "qzeros": StoredPart((torch.int32,), ((groups, words),), is_optional=not self._has_zeros),
        }

    def kept(self, stored: Mapping[str, torch.Tensor], quantization: str) -> QuantizedWeight | None:
        if not holds(quantization, INT4) or self.in_features % 2:
            return None
        values = torch.empty((self.out_features, self.in_features // 2), dtype=torch.uint8)
        for words, to in zip(stored["qweight"].split(WORDS, 1), values.split(WORDS * PER_WORD), strict=True):
            to.copy_(pairs(_ordered(words).T.to(torch.uint8)))
        scales = stored["scales"].T
        zeros = _ordered(stored["qzeros"]).T if self._has_zeros else torch.full_like(scales, SYMMETRIC_ZERO)
        return Int4Weight.with_zero_points(values, scales, zeros)

    def rows(self, stored: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        words = slice(start // PER_WORD, stop // PER_WORD)
        numbers = _ordered(stored["qweight"][:, words]).unflatten(0, (-1, self._group))
        zeros = _ordered(stored["qzeros"][:, words])[:, None] if self._has_zeros else SYMMETRIC_ZERO
        return ((numbers - zeros) * stored["scales"][:, None, start:stop].float()).flatten(0, 1).T


def _ordered(words: torch.Tensor) -> torch.Tensor:
    """Return the numbers [N, 8 * words] of words [N, words], by their outputs."""
    return unpacked(words, 4).unflatten(1, (-1, PER_WORD))[..., ORDER].flatten(1)
