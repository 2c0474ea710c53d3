"""Which class computes which architecture."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.models.base import CausalLM
from sluice.models.errors import CheckpointError
from sluice.models.gpt2 import GPT2
from sluice.models.llama import Llama
from sluice.models.llama_config import LLAMA_ARCHITECTURES

ARCHITECTURES: Mapping[str, type[CausalLM]] = {
    **dict.fromkeys(LLAMA_ARCHITECTURES, Llama),
    "GPT2LMHeadModel": GPT2,
}


def is_native(architecture: str) -> bool:
    """Whether there is a class for it here."""
    return architecture in ARCHITECTURES


def model_class(architecture: str) -> type[CausalLM]:
    """The class for a name in the `architectures` of a `config.json`.

    Raises:
        CheckpointError: there is none; the message lists the known ones.
    """
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"architecture {architecture!r} is not supported natively; known: {', '.join(ARCHITECTURES)}; others"
            " may run with --model-impl transformers"
        )
    return ARCHITECTURES[architecture]
