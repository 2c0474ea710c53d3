"""FP8 weights as DeepSeek and Qwen publish them, with a scale for each block or for the whole weight.

The matrices of the layers are in e4m3; embedding, head and norms are not quantised.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from sluice.models.checkpoint import Fields
from sluice.models.formats.base import HEAD, SCALES, StoredPart, WeightLayout, is_listed, names_in
from sluice.models.formats.dequantize import PartedFormat
from sluice.models.quantized import Fp8Weight, QuantizedWeight
from sluice.models.spec import FP8, holds


class BlockFP8(PartedFormat):
    """A checkpoint with FP8 weights.

    Args:
        block: rows and columns that share a scale; None: the whole weight does.
        kept: modules that are not quantised.
    """

    name = "fp8"

    def __init__(self, block: tuple[int, int] | None, kept: tuple[str, ...]) -> None:
        self._block = block
        self._kept = kept
        self.kinds = (FP8,) if block is None else ()

    @classmethod
    def read(cls, section: Fields) -> BlockFP8:
        """Read `quantization_config`.

        Raises:
            CheckpointError: it is not valid.
        """
        if section.text("fmt", "e4m3") != "e4m3":
            raise section.error("fmt", "e4m3")
        block, sizes = None, section.get("weight_block_size")
        if sizes is not None:
            if not isinstance(sizes, list) or len(sizes) != 2 or not all(isinstance(n, int) and n > 0 for n in sizes):
                raise section.error("weight_block_size", "a list of two sizes")
            block = (sizes[0], sizes[1])
        return cls(block, (*names_in(section, "modules_to_not_convert"), *names_in(section, "ignored_layers")))

    @property
    def description(self) -> str:
        return "FP8, " + ("one scale a tensor" if self._block is None else "blocks of {} x {}".format(*self._block))

    def layout(self, module: str, layer: nn.Linear | nn.Embedding) -> WeightLayout | None:
        if isinstance(layer, nn.Embedding) or is_listed(module, (*self._kept, HEAD)):
            return None
        return FP8Layout((layer.weight.shape[0], layer.weight.shape[1]), self._block)


class FP8Layout(WeightLayout):
    """A weight in e4m3."""

    numbers = "weight"
    skipped = frozenset(("input_scale", "activation_scale"))

    def __init__(self, shape: tuple[int, int], block: tuple[int, int] | None) -> None:
        super().__init__(shape)
        self._block = block
        self.row_step = 1 if block is None else block[0]

    @property
    def parts(self) -> Mapping[str, StoredPart]:
        weight = StoredPart((torch.float8_e4m3fn,), ((self.out_features, self.in_features),))
        if self._block is None:
            return {"weight": weight, "weight_scale": StoredPart(SCALES, ((), (1,)))}
        blocks = (-(-self.out_features // self._block[0]), -(-self.in_features // self._block[1]))
        return {"weight": weight, "weight_scale_inv": StoredPart((*SCALES, torch.float8_e8m0fnu), (blocks,))}

    def kept(self, stored: Mapping[str, torch.Tensor], quantization: str) -> QuantizedWeight | None:
        if self._block is not None or not holds(quantization, FP8):
            return None
        return Fp8Weight(stored["weight"], stored["weight_scale"].float().reshape(1).repeat(self.out_features))

    def rows(self, stored: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        weight = stored["weight"][start:stop].float()
        if self._block is None:
            return weight * stored["weight_scale"].float()
        rows, columns = self._block
        scales = stored["weight_scale_inv"][start // rows : -(-stop // rows)].float()
        wide = scales.repeat_interleave(rows, 0)[: stop - start].repeat_interleave(columns, 1)
        return weight * wide[:, : self.in_features]
