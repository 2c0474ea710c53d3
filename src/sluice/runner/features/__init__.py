"""What a request may ask of its rows, a file each. To add a feature, write its file and name it here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sluice.runner.features.base import Feature
from sluice.runner.features.denoising import Denoise, MaskTokens
from sluice.runner.features.embeddings import Embeddings
from sluice.runner.features.grammars import GrammarMasks
from sluice.runner.features.logprobs import Logprobs
from sluice.runner.features.penalties import Penalties
from sluice.runner.features.sampling import Sampling
from sluice.runner.open_blocks import OpenBlocks

NewGrammars = Callable[[int, int, torch.device], Feature]
"""Makes the feature that masks rows with a grammar, given the slots, the size of the vocabulary and the device."""


def make_features(
    num_slots: int,
    vocab_size: int,
    device: torch.device,
    new_grammars: NewGrammars = GrammarMasks,
    vocabulary: range | None = None,
    blocks: OpenBlocks | None = None,
) -> Sequence[Feature]:
    """Return the features in the order in which they are applied: those that change logits come before `Sampling`, and
    the grammar's mask last of these, since nothing may allow what it forbids.

    Args:
        new_grammars: makes the feature of grammars.
        vocabulary: the tokens whose logits this rank computes; None: all.
        blocks: the open blocks of a model of block diffusion.
    """
    sizes = num_slots, vocab_size, device
    before: Sequence[Feature] = () if blocks is None else (MaskTokens(blocks),)
    after: Sequence[Feature] = () if blocks is None else (Denoise(blocks),)
    return (
        Penalties(*sizes, vocabulary),
        *before,
        new_grammars(*sizes),
        Sampling(*sizes),
        Logprobs(*sizes),
        Embeddings(*sizes),
        *after,
    )
