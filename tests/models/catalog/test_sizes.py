"""What is said of a model before it is loaded: memory, the bound of its speed, the models that are suggested."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import transformers
from safetensors.torch import load_file

import tiny_families
from any_checkpoint import any_checkpoint
from sluice import LLM, cli
from sluice.models.catalog.estimate import Estimate, gigabytes
from sluice.models.catalog.read_sizes import read_sizes, sizes_of
from sluice.models.catalog.sizes import ModelSizes
from sluice.models.catalog.suggested import SUGGESTED
from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.spec import DTYPES, INT4, ModelSpec

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}


def sizes_in(fields: Mapping[str, object]) -> ModelSizes:
    return sizes_of(Fields(fields, "config.json"), "m", Path("nowhere"))


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_the_memory_is_that_of_a_loaded_model(quantization: str) -> None:
    """README would promise a model to a machine that it does not fit into."""
    options = {} if quantization == "none" else {"quantization": quantization}
    with LLM(any_checkpoint(), max_total_tokens=256, dtype="bfloat16", **options) as llm:
        loaded = llm.memory_report()["weights_bytes"]
        token_bytes = llm.info.token_bytes
    estimate = Estimate(read_sizes(any_checkpoint()), quantization)
    # Norms and the scales of int8's rows are left out. They weigh more in rows of 256 numbers than in rows of 1,024.
    assert loaded <= 1.09 * estimate.weights_bytes
    copied = 2 * estimate.sizes.table if quantization == "none" else 0
    assert loaded >= estimate.weights_bytes - copied, "some processors need no copy of the embedding"
    assert estimate.sizes.token_bytes == token_bytes


@pytest.mark.parametrize("make", [tiny_families.gemma4, tiny_families.gemma4_31b])
def test_layers_that_differ(make: Callable[[], transformers.PreTrainedModel], tmp_path: Path) -> None:
    """Half of Gemma 4 E2B is tables of which a token needs a row, and most of its layers have no KV."""
    make().save_pretrained(tmp_path)
    sizes = read_sizes(tmp_path)
    with LLM(tmp_path, max_total_tokens=64, dtype="bfloat16") as llm:
        assert sizes.token_bytes == llm.info.token_bytes
    matrices = (weight for name, weight in load_file(tmp_path / "model.safetensors").items() if weight.dim() == 2)
    assert sizes.stored == sum(weight.numel() for weight in matrices)


@pytest.mark.parametrize("family", tiny_families.WITH_STATES)
def test_layers_with_a_state_have_no_keys_and_values(family: str, tmp_path: Path) -> None:
    tiny_families.FAMILIES[family]().save_pretrained(tmp_path)
    sizes = read_sizes(tmp_path)
    assert sizes.states is not None
    with LLM(tmp_path, max_total_tokens=128, max_running_requests=2, dtype="bfloat16") as llm:
        assert sizes.token_bytes == llm.info.token_bytes
        assert llm.memory_report()["record_bytes"] == 128 // 64 * sizes.states.record
        assert llm.memory_report()["state_bytes"] in (2 * sizes.states.slot, 3 * sizes.states.slot)
    matrices = (weight for name, weight in load_file(tmp_path / "model.safetensors").items() if weight.dim() > 1)
    assert sizes.stored == sum(weight.numel() for weight in matrices)


def test_bytes_of_numbers_are_those_of_loaded_models() -> None:
    """Two tables of the same thing must agree."""
    from sluice.models.catalog.estimate import NUMBER_SIZES

    for name, sizes in NUMBER_SIZES.items():
        spec = ModelSpec("A", 1, 1, 1, 2, 2, 2, 2, (), DTYPES["bfloat16"], quantization=name)
        assert (spec.weight_bytes, spec.table_bytes) == sizes
    assert INT4 in NUMBER_SIZES


def test_a_tied_head_is_held_once_and_read_for_every_token() -> None:
    fields = {
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 100,
        "max_position_embeddings": 16,
    }
    tied = Estimate(sizes_in({**fields, "tie_word_embeddings": True}))
    untied = Estimate(sizes_in(fields))
    assert tied.read_bytes == untied.read_bytes == tied.weights_bytes - 800 == untied.weights_bytes - 800
    small = sizes_in({**fields, "tie_word_embeddings": True})
    assert Estimate(small, "int8").read_bytes == Estimate(small, "int8").weights_bytes == tied.read_bytes / 2 * 17 / 16
    assert untied.rate(untied.read_bytes * 10.0) == 10
    assert untied.rate(1e6, context=100) < untied.rate(1e6)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"num_experts": 8, "architectures": ["NewForCausalLM"]}, "mixture of experts"),
        ({"n_routed_experts": 8, "architectures": ["MixtralForCausalLM"]}, "num_local_experts is missing"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised weights"),
        ({"hidden_size": None}, "hidden_size is missing"),
    ],
)
def test_sizes_that_are_not_known(fields: dict[str, object], reason: str) -> None:
    """A figure for a mixture of experts that is not known would be wrong by a factor of ten."""
    with pytest.raises(CheckpointError, match=reason):
        sizes_in({**QWEN3, **fields})


QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32_000,
    "max_position_embeddings": 32_768,
}


@pytest.mark.parametrize(
    ("config", "stored", "read"), [(QWEN3_30B, 30.5e9, 3.0e9), (MIXTRAL, 46.7e9, 12.75e9)], ids=["qwen3", "mixtral"]
)
def test_a_mixture_of_experts_is_held_whole_and_read_in_part(
    config: dict[str, object], stored: float, read: float
) -> None:
    """What its authors state: 30B with 3B active, and 47B with 13B."""
    sizes = sizes_in(config)
    assert sizes.stored == pytest.approx(stored, rel=0.01)
    assert sizes.weights == pytest.approx(read, rel=0.02)
    found = Estimate(sizes, "int8")
    assert found.weights_bytes == pytest.approx(stored * 17 / 16, rel=0.01)
    assert found.read_bytes == pytest.approx(read * 17 / 16, rel=0.02)


def test_suggested_models_are_what_their_names_say() -> None:
    """A wrong size of a layer shows in the number of parameters, which the id names."""
    for each in SUGGESTED:
        number = each.id.rpartition("-Instruct")[0] or each.id
        size = number.rpartition("-")[2]
        stated = float(size[:-1]) * {"M": 1e6, "B": 1e9}[size[-1]]
        assert each.estimate().sizes.stored == pytest.approx(stated, rel=0.02)
        assert each.licence in ("Apache-2.0", "MIT")
        assert each.estimate().weights_bytes < 5e9, "for a laptop"
    for name in ModelSizes.__dataclass_fields__.keys() - {"name", "architecture"}:
        assert getattr(SUGGESTED[1].sizes, name) == getattr(sizes_in(QWEN3), name), name


def test_another_architecture_is_taken_to_be_as_llama() -> None:
    """`sluice simulate` takes models that Sluice does not serve."""
    others = ({"architectures": ["NewForCausalLM"]}, {"architectures": None}, {"architectures": ["LlamaForCausalLM"]})
    assert len({sizes_in({**QWEN3, **other}) for other in others}) == 1


@pytest.mark.parametrize(
    "own",
    [
        {"sliding_window": 4096, "layer_types": ["sliding_attention"] * 28, "hidden_act": "swish_of_its_own"},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "attn_logit_softcapping": 30.0},
    ],
)
def test_what_llama_refuses_does_not_hide_the_sizes_of_others(own: dict[str, object]) -> None:
    assert sizes_in({**QWEN3, "architectures": ["NewForCausalLM"], **own}) == sizes_in({**QWEN3, "architectures": None})


def test_heads_need_not_divide_the_width_of_another_architecture() -> None:
    fields = {**QWEN3, "architectures": ["NewForCausalLM"], "num_attention_heads": 15, "num_key_value_heads": 5}
    assert sizes_in({**fields, "head_dim": None}).head_dim == 1024 // 15


@pytest.mark.parametrize("family", tiny_families.WITH_EXPERTS)
def test_sizes_of_many_experts_follow_from_those_of_few(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of 94 layers with 128 experts each took three seconds to count."""
    tiny_families.FAMILIES[family]().save_pretrained(tmp_path)
    monkeypatch.setattr("sluice.models.catalog.read_sizes.FEW_EXPERTS", ())
    counted = read_sizes(tmp_path)
    assert counted.experts is not None
    monkeypatch.setattr("sluice.models.catalog.read_sizes.FEW_EXPERTS", (1, 4))
    assert read_sizes(tmp_path) == counted


def test_explain_tells_what_the_shapes_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    assert cli.main(["explain", str(tmp_path), "--quantization", "int8", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights_bytes"]["value"] == pytest.approx(633e6, rel=0.01)
    rate, bandwidth = found["most_tokens_per_second"]["value"], found["memory_bandwidth"]["value"]
    assert rate == pytest.approx(bandwidth / found["weights_bytes"]["value"], rel=0.01)
    assert cli.main(["explain", SUGGESTED[1].id, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "596 million numbers in 16 bits, the embedding twice" in out
    _, estimate = out.split("\nestimate:\n")
    assert max(map(len, estimate.splitlines())) <= 110


def test_explain_tells_what_states_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_families.FAMILIES["qwen3.5"]().save_pretrained(tmp_path)
    assert cli.main(["explain", str(tmp_path), "--device", "cpu"]) == 0
    _, estimate = capsys.readouterr().out.split("\nestimate:\n")
    assert "KV of a token in 16 bits: 2 layers of 5, of" in estimate
    assert "recurrent states of a running request: 3 layers" in estimate
    assert "a record of them, behind a cached prefix, as the KV of" in estimate


@pytest.mark.parametrize("model", ["no/such-model", "no/such/model", "a model"])
def test_explain_downloads_nothing(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", model, "--device", "cpu"]) == 0
    assert f"not known: {model} is not on this machine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ({"architectures": ["SDARForCausalLM"]}, [], "a pass of block diffusion"),
        ({}, ["--speculative-algorithm", "ngram"], "with --speculative-algorithm, a pass"),
    ],
    ids=["block-diffusion", "speculation"],
)
def test_no_bound_where_a_pass_yields_several_tokens(
    fields: dict[str, object], options: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both may be faster than one token for each pass over the weights."""
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, **fields}))
    assert cli.main(["explain", str(tmp_path), "--device", "cpu", "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["most_tokens_per_second"]["value"] is None
    assert reason in found["most_tokens_per_second"]["reason"]
    assert found["weights_bytes"]["value"] > 1e9


@pytest.mark.parametrize(("content", "said"), [("{", "is not valid JSON"), ("[]", "must hold a JSON object")])
def test_a_broken_config_in_the_cache(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A download that was cut off was a traceback."""
    commit = "0" * 40
    folder = tmp_path / "models--some--model"
    for file, text in ((f"snapshots/{commit}/config.json", content), ("refs/main", commit)):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text(text)
    assert cli.main(["explain", "some/model", "--download-dir", str(tmp_path), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "not known: " in out
    assert said in out


def test_sizes_in_words() -> None:
    assert [gigabytes(size) for size in (800, 114_688, 7.24e8, 1.19e9)] == ["1 kB", "115 kB", "724 MB", "1.2 GB"]


def test_the_figures_of_the_readme() -> None:
    """Figures that nobody computes again are wrong after the next change."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    for each in SUGGESTED:
        cells = [f"`{each.id}`"]
        for quantization in ("none", "int8"):
            estimate = each.estimate(quantization)
            cells += [gigabytes(estimate.weights_bytes), f"{estimate.rate(50e9):.0f}"]
        assert f"| {' | '.join(cells)} |" in text


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_bandwidth_that_is_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", f"--memory-bandwidth={value}"]) == 2
    assert "--memory-bandwidth must be a number above 0" in capsys.readouterr().err
