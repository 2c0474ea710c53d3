"""What a request may ask of its rows, a file each. To add a feature, write its file and name it here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sluice.runner.features.base import Feature
from sluice.runner.features.embeddings import Embeddings
from sluice.runner.features.logprobs import Logprobs
from sluice.runner.features.penalties import Penalties
from sluice.runner.features.sampling import Sampling

FEATURES: Sequence[Callable[[int, int, torch.device], Feature]] = (Penalties, Sampling, Logprobs, Embeddings)
"""Called with a number of slots, a vocabulary size and a device, and applied in this order: features that change logits
come before `Sampling`."""
