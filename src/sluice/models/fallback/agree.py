"""A model proves itself before it serves: paged and in pieces it must give the logits that transformers gives.

Attention takes many forms, and a form that ours does not know can leave numbers that are merely wrong. Whatever is
wrong from the first tokens on, such as positions, masks, biases, heads, shows here as another distribution; rounding
does not.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from sluice.attention.base import ForwardBatch, LayerKV
from sluice.attention.reference import ReferenceAttention
from sluice.models.errors import CheckpointError
from sluice.models.fallback.paged import TransformersLM

TOKENS = 9
PIECES = (5, 3, 1)
"""A chunk, a chunk behind a cached beginning, a decode."""
PAGE_SIZE = 4
MOST = 0.1
"""Mean difference in standard deviations of the logits. bfloat16 alone makes about a hundredth."""


def sample_tokens(vocab_size: int, device: torch.device) -> torch.Tensor:
    """[TOKENS] ids from all over a vocabulary."""
    return torch.arange(1, TOKENS + 1, device=device) * 7919 % vocab_size


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """[TOKENS, vocab_size] by transformers alone.

    Args:
        model: whole, its attention set to "eager".
    """
    return model(input_ids=tokens[None], use_cache=False).logits[0]


@torch.inference_mode()
def check_agreement(model: TransformersLM, tokens: torch.Tensor, expected: torch.Tensor) -> None:
    """
    Args:
        expected: `plain_logits` of the same tokens.

    Raises:
        CheckpointError: the model's own logits are others.
    """
    spec, pages = model.spec, -(-TOKENS // PAGE_SIZE)
    shape = (pages, PAGE_SIZE, spec.num_kv_heads, spec.head_dim)
    pools = [
        [torch.zeros(shape, dtype=spec.dtype, device=tokens.device) for _ in range(2)] for _ in range(spec.num_layers)
    ]
    kv = [LayerKV(k, v) for k, v in pools]
    parts, start = [], 0
    for length in PIECES:
        batch = _batch(tokens, start, length, pages)
        parts.append(model.logits(model.forward(batch, kv, ReferenceAttention())))
        start += length
    ours = torch.cat(parts).float()
    difference = float((ours - expected.float()).abs().mean() / expected.float().std())
    if not difference <= MOST:
        raise CheckpointError(
            f"{spec.architecture} cannot run through transformers: with paged attention its logits differ from"
            f" transformers' own by {difference:.2f} standard deviations"
        )


def _batch(tokens: torch.Tensor, start: int, length: int, pages: int) -> ForwardBatch:
    """One request's tokens from `start`, in the pages 0, 1, ..."""
    device, end = tokens.device, start + length
    positions = torch.arange(start, end, device=device)
    return ForwardBatch(
        input_ids=tokens[start:end],
        positions=positions,
        kv_slots=positions,
        page_table=torch.arange(pages, dtype=torch.int32, device=device)[None],
        q_starts=torch.tensor([0, length], dtype=torch.int32, device=device),
        kv_lens=torch.tensor([end], dtype=torch.int32, device=device),
        logit_rows=torch.arange(length, device=device),
        q_lens=(length,),
        kv_lens_host=(end,),
        num_decodes=int(length == 1),
    )
