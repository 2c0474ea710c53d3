"""Architectures without a native implementation run through transformers over paged KV, or are refused."""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

import tiny_fallbacks
import tiny_families
import tiny_models
from paged_model import chunked_logits
from slow import slow
from sluice import LLM, SamplingParams
from sluice.models.base import PagedLM
from sluice.models.checkpoint import CheckpointError
from sluice.models.loader import load_model
from tiny_models import exact

PROMPTS = tuple(tiny_models.prompt(length, seed) for seed, length in enumerate((45, 1, 20)))
MAX_TOKENS = 12
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Write the checkpoint of one of `FALLBACKS`."""

    @functools.cache
    def saved(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        tiny_fallbacks.FALLBACKS[name]().save_pretrained(path)
        return path

    return saved


@pytest.fixture(scope="module")
def reference(folder: Folder) -> Callable[[str], transformers.PreTrainedModel]:
    """Return the model of transformers in float64."""
    return functools.cache(lambda name: tiny_families.load_reference(folder(name), torch.float64))


def load(path: Path, dtype: str = "float64", implementation: str = "transformers") -> PagedLM:
    with exact(torch.float64 if dtype == "float64" else torch.float32):
        return load_model(path, dtype=dtype, device=torch.device("cpu"), progress=False, implementation=implementation)[
            0
        ]


@pytest.mark.parametrize("name", tiny_fallbacks.FALLBACKS)
def test_logits_in_chunks_are_those_of_transformers(
    name: str, folder: Folder, reference: Callable[[str], transformers.PreTrainedModel]
) -> None:
    """Random chunks of several requests over shuffled pages show a lost window, cap, scale, sink or position."""
    expected = [tiny_models.logits(reference(name), prompt) for prompt in PROMPTS]
    model = load(folder(name))
    with exact(torch.float64):
        ours = chunked_logits(model, PROMPTS, page_size=4, seed=1)
    assert max(float((a - b).abs().max()) for a, b in zip(ours, expected, strict=True)) <= 1e-9


@pytest.mark.parametrize(("page_size", "chunk"), [slow(1, 7), (16, 17), slow(16, -1)])
@pytest.mark.parametrize("name", ["gemma2", "mixtral", *map(slow, ("gemma3", "phi3", "olmo2", "granite"))])
def test_greedy_is_transformers_token_for_token(
    name: str, page_size: int, chunk: int, folder: Folder, reference: Callable[[str], transformers.PreTrainedModel]
) -> None:
    """Alone without and with its prompt in the cache, and in a batch with prompts that share a prefix."""
    first, *rest = PROMPTS
    prompts = [first, *rest, first[:30] + rest[1]]
    options = {"page_size": page_size, "chunked_prefill_size": chunk, "max_total_tokens": 512}
    options |= {"model_impl": "transformers"}
    with exact(torch.float64), LLM(folder(name), dtype="float64", **options) as llm:
        alone = [llm.generate([first], GREEDY)[0] for _ in range(2)]
        together = llm.generate(prompts, GREEDY)
    assert [result.num_cached_tokens > 0 for result in alone] == [False, True]
    for prompt, result in zip([first, first, *prompts], [*alone, *together], strict=True):
        tokens = list(result.token_ids)
        assert tokens == tiny_models.greedy(reference(name), prompt, MAX_TOKENS, tokens)


@pytest.mark.parametrize("make", [tiny_families.gemma2, tiny_fallbacks.gpt_oss])
def test_over_the_default_attention_in_float32(
    make: Callable[..., transformers.PreTrainedModel], tmp_path: Path
) -> None:
    """With a head size that the compiled kernels support: caps, windows and sinks must reach them too."""
    make(head_dim=16).save_pretrained(tmp_path)
    model = tiny_families.load_reference(tmp_path, torch.float32)
    prompts = [*PROMPTS, PROMPTS[0][:30] + PROMPTS[2]]
    options = {"page_size": 16, "chunked_prefill_size": 17, "max_total_tokens": 512}
    with LLM(tmp_path, dtype="float32", model_impl="transformers", **options) as llm:
        results = llm.generate(prompts, GREEDY)
    for prompt, result in zip(prompts, results, strict=True):
        tokens = list(result.token_ids)
        assert tokens == tiny_models.greedy(model, prompt, MAX_TOKENS, tokens)


@pytest.mark.parametrize("name", ["gemma2", "mixtral"])
def test_bfloat16_loads_and_runs(name: str, folder: Folder) -> None:
    """Parts that a family keeps in float32 must work with pages in bfloat16."""
    with LLM(folder(name), dtype="bfloat16", model_impl="transformers", max_total_tokens=512) as llm:
        (result,) = llm.generate([PROMPTS[0]], GREEDY)
        assert len(result.token_ids) == MAX_TOKENS


def test_a_native_architecture_through_transformers(tmp_path: Path) -> None:
    """`--model-impl` decides, and the resolved configuration shows it."""
    tiny_models.llama().save_pretrained(tmp_path)
    results = {}
    for asked, came_to in (("auto", "native"), ("native", "native"), ("transformers", "transformers")):
        with LLM(tmp_path, dtype="float64", model_impl=asked, max_total_tokens=512) as llm:
            assert llm.info.config.model.model_impl == came_to
            assert ("model_impl" in llm.info.reasons) == (asked == "auto")
            results[asked] = [list(result.token_ids) for result in llm.generate(list(PROMPTS), GREEDY)]
    assert results["auto"] == results["native"] == results["transformers"]


def test_it_says_that_it_is_slow(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """The log explains why a model without a native implementation is slow."""
    with caplog.at_level(logging.WARNING, "sluice"):
        load(folder("olmo2"), "float32")
    assert [record.getMessage() for record in caplog.records] == [
        "Olmo2ForCausalLM runs through transformers, slower than a native implementation would; up to 512 tokens a"
        " request"
    ]


def test_longrope_ends_where_its_frequencies_change(folder: Folder) -> None:
    """A request beyond the original context would need all its cached keys rotated again, and other requests' too."""
    assert load(folder("phi3-long"), "float32").spec.max_model_len == 64


@pytest.mark.parametrize("implementation", ["auto", "transformers"])
def test_without_transformers(implementation: str, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CheckpointError, match=r"not installed: pip install 'sluice-llm\[transformers\]'"):
        load(folder("cohere"), "float32", implementation)


def test_native_only(folder: Folder) -> None:
    with pytest.raises(CheckpointError, match=r"'CohereForCausalLM' is not supported natively; .*--model-impl"):
        load(folder("cohere"), "float32", "native")


OLMO: dict[str, Any] = {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "dtype": "float32"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "encoder": ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}, "it has an encoder"),
    "classifier": (
        OLMO | {"architectures": ["Olmo2ForSequenceClassification"]},
        "not a causal language model over text; that of its configuration is Olmo2ForCausalLM",
    ),
    "images": (
        {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"},
        "it is not a causal language model over text",
    ),
    "state": (
        {"architectures": ["MambaForCausalLM"], "model_type": "mamba"},
        "keep a state between tokens other than keys and values",
    ),
    "attention of its own": (
        {"architectures": ["FalconForCausalLM"], "model_type": "falcon"},
        "does not allow another attention function for it",
    ),
    "mixed layers": (
        {"architectures": ["MiniMaxForCausalLM"], "model_type": "minimax", "num_hidden_layers": 2},
        "layers of the kind linear_attention are not supported, only full_attention and sliding_attention",
    ),
    "quantised": (OLMO | {"quantization_config": {"quant_method": "fp8"}}, "its weights are quantised"),
    "remote code": (
        {"architectures": ["OursForCausalLM"], "model_type": "ours", "auto_map": {"AutoConfig": "ours.Config"}},
        "OursForCausalLM needs Python code from the checkpoint, which Sluice never runs",
    ),
    "unknown": (
        {"architectures": ["NewForCausalLM"], "model_type": "from_the_future"},
        "'NewForCausalLM' is not supported: transformers .* does not know the model type 'from_the_future' either",
    ),
    "no length": (OLMO | {"max_position_embeddings": 0}, "max_position_embeddings must be the model's longest"),
    "bad field": (OLMO | {"num_hidden_layers": "three"}, "config.json: transformers refuses it: .*num_hidden_layers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    """Before any weight is read: the file has none, but could hold layers and dimensions."""
    config, reason = REFUSED[case]
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "float32"} | config))
    nothing = {f"nothing.{number}": torch.empty(0, 1 << 20) for number in range(99)}
    safetensors.torch.save_file(nothing, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=reason) as caught:
        load(tmp_path, "float32")
    assert "\n" not in str(caught.value)


def test_latent_attention_is_refused(tmp_path: Path) -> None:
    """DeepSeek's keys and values differ in size, and one pool for both would truncate or pad one of them."""
    sizes = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    config = transformers.DeepseekV3Config(
        **(tiny_models.sizes() | sizes | experts | {"moe_intermediate_size": 12, "num_key_value_heads": 4})
    )
    tiny_models.made(transformers.DeepseekV3ForCausalLM, config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="keys have 16 elements a head and its values 12"):
        load(tmp_path, "float32")


def test_a_window_that_is_not_passed_on_is_refused(tmp_path: Path) -> None:
    """transformers may apply a window of the config only through its mask, which our attention does not see."""
    config = transformers.Glm4Config(**(tiny_models.sizes() | {"pad_token_id": 0, "head_dim": 12, "sliding_window": 9}))
    tiny_models.made(transformers.Glm4ForCausalLM, config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="layer 0 uses the window None, its config says 9"):
        load(tmp_path, "float32")


def test_logits_that_differ_are_refused(folder: Folder) -> None:
    """The last check, against kinds of attention that are unknown."""
    from sluice.models.fallback.checks import check_agreement, sample_tokens

    model = load(folder("olmo2"), "float32")
    tokens = sample_tokens(tiny_models.VOCAB_SIZE, torch.device("cpu"))
    other = tiny_models.logits(tiny_families.load_reference(folder("olmo2"), torch.float32), tokens.flip(0).tolist())
    with pytest.raises(CheckpointError, match=r"differ from transformers' own by 0\.8"):
        check_agreement(model, tokens, other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model.norm.weight": None}, "the checkpoint lacks the tensor: model.norm.weight"),
        ({"model.extra.weight": torch.ones(3)}, "holds an unexpected tensor: model.extra.weight"),
        ({"model.norm.weight": torch.ones(3)}, "transformers cannot load"),
    ],
)
def test_missing_and_unexpected_tensors_are_refused(
    change: dict[str, torch.Tensor | None], said: str, folder: Folder, tmp_path: Path
) -> None:
    """transformers initialises a missing tensor at random and only warns."""
    tensors = safetensors.torch.load_file(folder("olmo2") / "model.safetensors") | change
    kept = {name: value for name, value in tensors.items() if value is not None}
    safetensors.torch.save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((folder("olmo2") / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=said):
        load(tmp_path, "float32")


def test_pickled_weights_are_refused(folder: Folder, tmp_path: Path) -> None:
    """transformers reads pickled weights if there are no others."""
    (tmp_path / "config.json").write_bytes((folder("olmo2") / "config.json").read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="only pickled weights, which are not read because they can run code"):
        load(tmp_path, "float32")
