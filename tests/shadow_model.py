"""ShadowRunner's model as tensors: its logits are a hash of every token it can see through its pages.

Any wrong page, slot, position or input id in the torch runner changes what comes out, and `sluice.testing.oracle`
says what must come out. No weights, no arithmetic to be within tolerance of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sluice.attention.base import Attention, ForwardBatch, LayerKV, PagedKV
from sluice.attention.reference import ReferenceAttention
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.features import NewGrammars
from sluice.runner.features.grammars import GrammarMasks
from sluice.runner.layers import LayerSlices, Walk
from sluice.runner.runner import TorchRunner
from sluice.testing import digests, shadow_logits


@dataclass(frozen=True)
class ShadowModel:
    """Keys hold tokens, values hold positions. Its hidden states are its logits.

    Args:
        vocab_size: tokens are from 0 to vocab_size - 1.
        poison: a row that sees this token gets NaN logits.
    """

    vocab_size: int
    poison: int | None = None

    def forward(self, batch: ForwardBatch, kv: Sequence[LayerKV], attention: Attention) -> torch.Tensor:
        (layer,) = kv
        layer.store(
            batch.kv_slots,
            batch.input_ids[:, None, None].to(layer.k.dtype),
            batch.positions[:, None, None].to(layer.k.dtype),
        )
        seen = self._seen(batch, layer)
        after = [[*digests(tokens)] for tokens in seen]
        row_of = [row for row, length in enumerate(batch.q_lens) for _ in range(length)]
        positions = batch.positions.tolist()
        logits = torch.zeros(len(batch.logit_rows), self.vocab_size, dtype=layer.k.dtype)
        for out, token_index in zip(logits, batch.logit_rows.tolist(), strict=True):
            row, position = row_of[token_index], positions[token_index]
            out[:] = torch.tensor(shadow_logits(after[row][position], self.vocab_size), dtype=out.dtype)
            if self.poison in seen[row][: position + 1]:
                out[0] = torch.nan
        return logits

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    @staticmethod
    def _seen(batch: ForwardBatch, layer: LayerKV) -> list[list[int]]:
        """The tokens each row can see, which must stand at positions 0, 1, 2, ..."""
        seen = []
        for pages, kv_len in zip(batch.page_table.long(), batch.kv_lens.tolist(), strict=True):
            positions = layer.v[pages].flatten()[:kv_len]
            assert positions.tolist() == list(range(kv_len)), f"positions {positions.tolist()} of {kv_len}"
            seen.append([int(token) for token in layer.k[pages].flatten()[:kv_len].tolist()])
        return seen


def shadow_shape(*, num_pages: int, page_size: int, num_slots: int = 4, vocab_size: int = 50) -> DeviceShape:
    return DeviceShape(
        num_layers=1,
        num_kv_heads=1,
        head_dim=1,
        vocab_size=vocab_size,
        num_slots=num_slots,
        num_pages=num_pages,
        page_size=page_size,
        row_pages=num_pages,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )


def shadow_state(shape: DeviceShape, *, watched: bool = False, new_grammars: NewGrammars = GrammarMasks) -> DeviceState:
    """Device state whose KV is NaN where nothing was written, so that reading it shows."""
    state = DeviceState(shape, watched=watched, new_grammars=new_grammars)
    for layer in state.kv:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    return state


def shadow_runner(
    shape: DeviceShape, poison: int | None = None, new_grammars: NewGrammars = GrammarMasks, num_layers: int = 0
) -> TorchRunner:
    """Return a runner.

    Args:
        num_layers: that a chunk is said to have when it is divided among steps: the model computes in the last one.
    """
    state, attention = shadow_state(shape, new_grammars=new_grammars), ReferenceAttention()
    model = ShadowModel(shape.vocab_size, poison)

    def walk(batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> Walk:
        for _ in range(num_layers):
            yield
        return model.forward(batch, kv, attention), []

    layers = LayerSlices(walk, state, attention) if num_layers else None
    return TorchRunner(model, state, attention, layers=layers)
