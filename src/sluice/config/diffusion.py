"""Options of models of block diffusion, which fill a block of tokens in several passes."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.config.base import option

ALGORITHMS = ("LowConfidence", "LowConfidenceStatic", "Sequential")
PREFILLS = ("chunks", "block")


@dataclass(frozen=True)
class DiffusionConfig:
    """How a model of block diffusion generates."""

    dllm_algorithm: str | None = option(
        None,
        "which tokens of a block a pass fills in: LowConfidence, LowConfidenceStatic or Sequential",
        unset="LowConfidence",
        more="LowConfidence: all whose probability is above a threshold, and at least a share of the block."
        " LowConfidenceStatic: the share of the block that is surest. Sequential: the first ones. Needs a model of"
        " block diffusion. See [diffusion.md](diffusion.md).",
        choices=ALGORITHMS,
        spellings={
            "low_confidence_dynamic": "LowConfidence",
            "low_confidence_static": "LowConfidenceStatic",
            "sequential": "Sequential",
        },
        sglang="--dllm-algorithm",
        metavar="NAME",
    )
    dllm_algorithm_config: str | None = option(
        None,
        "parameters of --dllm-algorithm: a file of YAML or JSON, or JSON itself",
        unset="threshold 0.95, the model's block",
        more="`threshold`: LowConfidence takes the tokens whose probability is above it. `denoising_steps`: most passes"
        " of a block, each of which fills in an even share of it at least. `block_size` and `mask_id`: in place of the"
        " model's. For example '{\"threshold\": 0.9}'.",
        sglang="--dllm-algorithm-config",
        metavar="FILE",
    )
    dllm_prefill: str | None = option(
        None,
        "how prompts of a model of block diffusion are cut: chunks or block",
        unset="chunks",
        more="chunks: as those of other models, in whole blocks. block: a step takes one block of a prompt, which is"
        " SGLang's rule.",
        choices=PREFILLS,
        metavar="RULE",
    )
