"""The native model families: which of them computes an architecture, and where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """A native implementation."""

    architecture: str
    """The name in `config.json`."""
    where: str
    """Module in `models/families`, and class."""
    gguf: str | None = None
    """`general.architecture` of its GGUF files."""
    gguf_others: tuple[str, ...] = ()
    """Other names that its files may have."""
    model_type: str | None = None
    """Name of its config inside another one."""
    has_experts: bool = False
    """Whether its models may have mixtures of experts."""
    inside: tuple[str, ...] = ()
    """Architectures that have further parts, for images or sound, and whose text model it may be."""


IMAGES = "Mistral3ForConditionalGeneration"
FAMILIES: tuple[Family, ...] = (
    Family("LlamaForCausalLM", "llama:Llama", gguf="llama"),
    Family("MistralForCausalLM", "llama:Mistral", model_type="mistral", inside=(IMAGES,)),
    Family(
        "Ministral3ForCausalLM",
        "ministral3:Ministral3",
        gguf="mistral3",
        model_type="ministral3",
        inside=(IMAGES,),
    ),
    Family("Qwen2ForCausalLM", "llama:Qwen2", gguf="qwen2"),
    Family("Qwen3ForCausalLM", "llama:Qwen3", gguf="qwen3"),
    Family(
        "Qwen3VLTextForCausalLM",
        "qwen3_vl:Qwen3VL",
        gguf="qwen3vl",
        model_type="qwen3_vl_text",
        inside=("Qwen3VLForConditionalGeneration",),
    ),
    Family("Qwen3MoeForCausalLM", "qwen3_moe:Qwen3MoE", gguf="qwen3moe", has_experts=True),
    Family("MixtralForCausalLM", "mixtral:Mixtral", gguf="llama", has_experts=True),
    Family("SDARForCausalLM", "llama:SDAR"),
    Family("GPT2LMHeadModel", "gpt2:GPT2"),
    Family("Gemma2ForCausalLM", "gemma:Gemma2", gguf="gemma2"),
    Family(
        "Gemma3ForCausalLM",
        "gemma:Gemma3",
        gguf="gemma3",
        model_type="gemma3_text",
        inside=("Gemma3ForConditionalGeneration",),
    ),
    Family(
        "Gemma4ForCausalLM",
        "gemma4:Gemma4",
        gguf="gemma4",
        model_type="gemma4_text",
        has_experts=True,
        inside=("Gemma4ForConditionalGeneration",),
    ),
    Family("SmolLM3ForCausalLM", "smollm3:SmolLM3", gguf="smollm3"),
    Family("GraniteForCausalLM", "granite:Granite", gguf="granite"),
    Family("GptOssForCausalLM", "gpt_oss:GptOss", gguf="gpt-oss", has_experts=True),
    Family("GraniteMoeForCausalLM", "granite_moe:GraniteMoE", gguf="granitemoe", has_experts=True),
    Family("GraniteMoeSharedForCausalLM", "granite_moe:GraniteMoE", gguf="granitemoe", has_experts=True),
    Family("Olmo2ForCausalLM", "olmo:Olmo2", gguf="olmo2"),
    Family("Olmo3ForCausalLM", "olmo:Olmo3", gguf="olmo2"),
    Family("Phi3ForCausalLM", "phi3:Phi3", gguf="phi3"),
    Family("Lfm2ForCausalLM", "lfm2:LFM2", gguf="lfm2"),
    Family(
        "Qwen3_5ForCausalLM",
        "qwen3_5:Qwen35",
        gguf="qwen35",
        model_type="qwen3_5_text",
        inside=("Qwen3_5ForConditionalGeneration",),
    ),
    Family(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5:Qwen35MoE",
        gguf="qwen35moe",
        model_type="qwen3_5_moe_text",
        has_experts=True,
        inside=("Qwen3_5MoeForConditionalGeneration",),
    ),
    Family("GraniteMoeHybridForCausalLM", "granite_hybrid:GraniteHybrid", gguf="granitehybrid", has_experts=True),
    Family("Lfm2MoeForCausalLM", "lfm2:LFM2MoE", gguf="lfm2moe", has_experts=True),
    Family(
        "NemotronHForCausalLM",
        "nemotron_h:NemotronH",
        gguf="nemotron_h",
        gguf_others=("nemotron_h_moe",),
        has_experts=True,
    ),
    Family("Qwen3NextForCausalLM", "qwen3_5:Qwen3Next", gguf="qwen3next", has_experts=True),
)
HEADLESS = ("ForCausalLM", "LMHeadModel")
"""Ends of names. Checkpoints that are made for embeddings may name the model below the head instead, by `Model`."""
DIFFUSION_ARCHITECTURES = ("SDARForCausalLM",)
GGUF_FAMILIES: Mapping[str, Family] = {
    name: next(family for family in FAMILIES if name in (family.gguf, *family.gguf_others))
    for name in dict.fromkeys(each for family in FAMILIES for each in (family.gguf, *family.gguf_others))
    if name is not None
}
"""`general.architecture` -> the family, the first if there are several."""


def _names(family: Family) -> tuple[str, ...]:
    name = family.architecture
    if name in DIFFUSION_ARCHITECTURES:
        return (name,)
    return (name, *(f"{name.removesuffix(end)}Model" for end in HEADLESS if name.endswith(end)))


ARCHITECTURES: Mapping[str, Family] = {name: family for family in FAMILIES for name in _names(family)}
"""Names in the `architectures` of a `config.json` -> the family."""
COMPOSITES: Mapping[str, tuple[Family, ...]] = {
    name: tuple(family for family in FAMILIES if name in family.inside)
    for name in dict.fromkeys(each for family in FAMILIES for each in family.inside)
}
"""Architectures with further parts -> the families that their text model may be of."""


def is_native(architecture: str) -> bool:
    """Return whether an architecture has a native class."""
    return architecture in ARCHITECTURES
