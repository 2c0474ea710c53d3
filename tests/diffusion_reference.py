"""Block diffusion, slow and plain: every pass computes all tokens again, by the Qwen3 of transformers and a mask."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import transformers

from sluice.runner.noise import noise_key
from sluice.runner.sampler import RowGroup, SamplingRows, row_kind, sample
from sluice.types import SamplingParams
from tiny_models import MASK_TOKEN, exact


class Rule(NamedTuple):
    """How blocks are filled, as SDAR's own script names it."""

    block_size: int
    strategy: str = "low_confidence_dynamic"
    threshold: float = 0.9
    steps: int = 0
    """0: as many as the block has tokens."""


class Answer(NamedTuple):
    """What a request must get."""

    token_ids: list[int]
    passes: list[int]
    """Of each block."""


def load(folder: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """Load the weights of an SDAR checkpoint as a Qwen3."""
    config = transformers.Qwen3Config.from_json_file(folder / "config.json")
    with exact(dtype):
        return transformers.Qwen3ForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation="eager"
        ).eval()


def logits(reference: transformers.PreTrainedModel, tokens: Sequence[int], block_size: int) -> torch.Tensor:
    """Return the logits at every position, [tokens, vocab_size]: each sees its own block and those before."""
    blocks = torch.arange(len(tokens)) // block_size
    hidden = blocks[None, :] > blocks[:, None]
    mask = torch.zeros(hidden.shape, dtype=reference.dtype).masked_fill(hidden, torch.finfo(reference.dtype).min)
    with exact(reference.dtype), torch.inference_mode():
        return reference(torch.tensor([list(tokens)]), attention_mask=mask[None, None], use_cache=False).logits[0]


def generate(
    reference: transformers.PreTrainedModel,
    prompt: Sequence[int],
    sampling: SamplingParams,
    rule: Rule,
    sample_index: int = 0,
) -> Answer:
    """Return what a request gets: whole blocks, up to the first stop token or the last token asked for."""
    assert sampling.max_tokens is not None, sampling
    tokens, passes, size = list(prompt), [], rule.block_size
    end = len(prompt) + sampling.max_tokens
    while len(tokens) < end:
        start = len(tokens) // size * size
        open_from = len(tokens)
        tokens += [MASK_TOKEN] * (start + size - open_from)
        masked = set(range(open_from, start + size))
        count = 0
        while masked:
            drawn = _drawn(reference, tokens, sorted(masked), sampling, sample_index, size)
            for position in _chosen(drawn, rule, count):
                tokens[position] = drawn[position][0]
                masked.remove(position)
            count += 1
        passes.append(count)
        stop = next((at for at in range(open_from, len(tokens)) if tokens[at] in sampling.stop_token_ids), None)
        if stop is not None:
            end = min(end, stop + 1)
            break
    return Answer(tokens[len(prompt) : end], passes)


def _drawn(
    reference: transformers.PreTrainedModel,
    tokens: Sequence[int],
    masked: Sequence[int],
    sampling: SamplingParams,
    sample_index: int,
    block_size: int,
) -> dict[int, tuple[int, float]]:
    """Return the token drawn at each masked position, and how sure the model is of it."""
    assert sampling.seed is not None, sampling
    raw = logits(reference, tokens, block_size)[list(masked)]
    sampled_from = raw.clone()
    sampled_from[:, MASK_TOKEN] = -torch.inf
    count, vocab = raw.shape
    columns = (
        torch.full((count,), sampling.temperature, dtype=torch.float64),
        torch.full((count,), sampling.min_p, dtype=torch.float64),
        torch.full((count,), sampling.top_k if sampling.top_k > 0 else vocab),
        torch.full((count,), sampling.top_p, dtype=torch.float64),
        torch.full((count,), noise_key(sampling.seed, sample_index)),
        torch.tensor(list(masked)),
    )
    group = RowGroup(row_kind(sampling, vocab), torch.arange(count))
    found = sample(sampled_from, SamplingRows(*columns), [group])
    sure = raw.softmax(-1).gather(1, found[:, None])[:, 0]
    return dict(zip(masked, zip(found.tolist(), sure.tolist(), strict=True), strict=True))


def _chosen(drawn: dict[int, tuple[int, float]], rule: Rule, passes: int) -> list[int]:
    """Return the positions that get their token in this pass."""
    steps = rule.steps or rule.block_size
    quota = rule.block_size // steps + (passes < rule.block_size % steps)
    if rule.strategy == "sequential":
        return sorted(drawn)[:quota]
    by_confidence = sorted(drawn, key=lambda position: (-drawn[position][1], position))
    if rule.strategy == "low_confidence_dynamic":
        above = [position for position in by_confidence if drawn[position][1] > rule.threshold]
        if len(above) >= quota:
            return above
    return by_confidence[:quota]
