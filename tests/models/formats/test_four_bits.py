"""GPTQ and AWQ: numbers packed by plain loops must come out as the weights that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quantized_checkpoints as made
import tiny_models
from models.formats.loading import assert_same, load, refusal

GROUP = 16
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output that each four bits of a word belong to, from the lowest on."""


def grouped(weight: torch.Tensor, bits: int, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise a weight [out, in] by the group of each input: numbers [in, out], zeros and scales [groups, out]."""
    count, top = int(groups.max()) + 1, 2**bits - 1
    parts = [weight[:, groups == group] for group in range(count)]
    low = torch.stack([part.amin(1).clamp(max=0) for part in parts])
    high = torch.stack([part.amax(1).clamp(min=0) for part in parts])
    scales = ((high - low) / top).half()
    zeros = (-low / scales.float()).round().clamp(0, top).int()
    numbers = (weight.T / scales[groups].float() + zeros[groups]).round().clamp(0, top).int()
    return numbers, zeros, scales


def packed(numbers: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Pack [N, M] along M, a number at a time."""
    per_word = 32 // bits
    words = torch.zeros(numbers.shape[0], numbers.shape[1] // per_word, dtype=torch.int64)
    for place in range(per_word):
        column = place if order is None else order[place]
        words |= (numbers[:, column::per_word].long() & (2**bits - 1)) << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def plain_of(numbers: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    return ((numbers - zeros[groups]).float() * scales[groups].float()).T.bfloat16()


def gptq(bits: int = 4, *, shuffled: bool = False, less: int = 1, group: int = GROUP) -> Callable[..., made.Stored]:
    def store(weight: torch.Tensor) -> made.Stored:
        groups = torch.arange(weight.shape[1]) // (weight.shape[1] if group == -1 else group)
        if shuffled:
            groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(7))]
        numbers, zeros, scales = grouped(weight, bits, groups)
        parts = {"qweight": packed(numbers.T, bits).T, "qzeros": packed(zeros - less, bits), "scales": scales}
        return parts | {"g_idx": groups.int()}, plain_of(numbers, zeros, scales, groups)

    return store


def awq(weight: torch.Tensor) -> made.Stored:
    groups = torch.arange(weight.shape[1]) // GROUP
    numbers, zeros, scales = grouped(weight, 4, groups)
    parts = {"qweight": packed(numbers, 4, AWQ_ORDER), "qzeros": packed(zeros, 4, AWQ_ORDER), "scales": scales}
    return parts, plain_of(numbers, zeros, scales, groups)


GPTQ_CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
AWQ_CONFIG = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
FORMATS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], made.Stored]]] = {
    "gptq": (GPTQ_CONFIG, gptq()),
    "gptq-8-bits": (GPTQ_CONFIG | {"bits": 8}, gptq(8)),
    "gptq-2-bits": (GPTQ_CONFIG | {"bits": 2}, gptq(2)),
    "gptq-act-order": (GPTQ_CONFIG | {"desc_act": True}, gptq(shuffled=True)),
    "gptq-v2": (GPTQ_CONFIG | {"checkpoint_format": "gptq_v2"}, gptq(less=0)),
    "gptq-channel": (GPTQ_CONFIG | {"group_size": -1}, gptq(group=-1)),
    "awq": (AWQ_CONFIG, awq),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2, which has biases beside its quantised weights, of sizes that words and groups divide."""
    folder = tmp_path_factory.mktemp("qwen2")
    tiny_models.qwen2(intermediate_size=48).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_what_was_packed(name: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One place off in a word, or the zero point of a neighbour, gives a model that writes nonsense."""
    config, store = FORMATS[name]
    ours, theirs = made.quantized(plain, tmp_path, config, store)
    assert_same(load(ours), load(theirs))
    monkeypatch.setattr("sluice.models.formats.dequantize.AT_ONCE", 1)
    assert_same(load(ours), load(theirs))


def test_our_words_of_awq_are_those_of_others() -> None:
    """The maker of these tests must not share a mistake with the reader: another library's reader agrees with it."""
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(3))
    groups = torch.arange(64) // GROUP
    numbers, zeros, _ = grouped(weight, 4, groups)
    parts, _ = awq(weight)
    found = AutoAWQConverter.reverse_awq_order(*AutoAWQConverter.unpack_awq(parts["qweight"], parts["qzeros"], 4), 4)
    assert torch.equal(found[0] & 15, numbers.to(torch.int8))
    assert torch.equal(found[1] & 15, zeros.to(torch.int8))


def test_modules_that_are_left_out(plain: Path, tmp_path: Path) -> None:
    """Each format has its own way to say which modules stay as they were."""
    keep = "model.layers.0.mlp.down_proj"
    inside = [["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"], ["self_attn.o_proj"]]
    ways = {
        "awq": AWQ_CONFIG | {"modules_to_not_convert": ["0.mlp.down_proj"]},
        "dynamic": GPTQ_CONFIG | {"dynamic": {r"-:.*\.0\.mlp\.down_proj": {}}},
        "inside": GPTQ_CONFIG | {"modules_in_block_to_quantize": [*inside, ["mlp.up_proj", "mlp.gate_proj"]]},
    }
    every = tuple(f"model.layers.{layer}.mlp.down_proj" for layer in range(3))
    for way, config in ways.items():
        (tmp_path / way).mkdir()
        kept = every if way == "inside" else (keep,)
        store = awq if way == "awq" else gptq()
        ours, theirs = made.quantized(plain, tmp_path / way, config, store, keep=kept)
        assert_same(load(ours), load(theirs))


def test_biases_of_zeros_are_left_out(tmp_path: Path) -> None:
    """AutoGPTQ writes a bias for every layer, also for those of models that have none."""
    folder = tmp_path / "llama"
    tiny_models.llama(intermediate_size=48).save_pretrained(folder)
    ours, theirs = made.quantized(folder, tmp_path, GPTQ_CONFIG, gptq())
    bias = "model.layers.1.mlp.up_proj.bias"
    assert_same(load(made.change(ours, lambda tensors: tensors | {bias: torch.zeros(48)})), load(theirs))
    assert f"unexpected tensor {bias}" in refusal(made.change(ours, lambda t: t | {bias: torch.ones(48)}))


def test_float16_is_computed_in_bfloat16_on_a_cpu(plain: Path, tmp_path: Path) -> None:
    """Nearly all of these checkpoints name float16, for which a CPU has no fast kernels."""
    ours, _ = made.quantized(plain, tmp_path, AWQ_CONFIG, awq)
    config = ours / "config.json"
    config.write_text(config.read_text().replace('"bfloat16"', '"float16"'))
    assert load(ours).spec.dtype == torch.bfloat16
    assert load(ours, dtype="float16").spec.dtype == torch.float16


Q = "model.layers.0.self_attn.q_proj"
BROKEN: dict[str, tuple[str, dict[str, Any], Callable[[made.Tensors], made.Tensors], str]] = {
    "bits": ("gptq", {"bits": 3}, lambda t: t, "bits must be 2, 4 or 8, got 3"),
    "format": ("gptq", {"checkpoint_format": "marlin"}, lambda t: t, "checkpoint_format must be gptq or gptq_v2, got"),
    "dynamic": ("gptq", {"dynamic": {"+:.*": {"bits": 8}}}, lambda t: t, "'+:.*' quantises some modules in another"),
    "group": ("gptq", {"group_size": 0}, lambda t: t, "group_size must be an integer of at least 1, got 0"),
    "g_idx": ("gptq", {}, lambda t: t | {f"{Q}.g_idx": t[f"{Q}.g_idx"] + 1}, f"{Q}: g_idx must name groups from 0 to"),
    "scales": ("gptq", {}, lambda t: t | {f"{Q}.scales": t[f"{Q}.scales"][:1]}, "scales has shape (1, 32), gptq requ"),
    "zeros": ("gptq", {}, lambda t: {k: v for k, v in t.items() if k != f"{Q}.qzeros"}, f"{Q}.qzeros is missing"),
    "version": ("awq", {"version": "gemv"}, lambda t: t, "version must be gemm, got 'gemv'"),
    "w_bit": ("awq", {"w_bit": 8}, lambda t: t, "w_bit must be 4, got 8"),
    "divides": ("awq", {"group_size": 20}, lambda t: t, "groups of 20 do not divide its 48 inputs"),
    "int64": ("awq", {}, lambda t: t | {f"{Q}.qweight": t[f"{Q}.qweight"].long()}, "dtype int64, awq requires int32"),
    "none": ("awq", {}, lambda t: {k: v for k, v in t.items() if not k.startswith(Q)}, "lacks the tensor layers.0"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused(name: str, plain: Path, tmp_path: Path) -> None:
    """Each by the name of the field or the tensor, and with what would be accepted."""
    kind, changes, edit, message = BROKEN[name]
    config, store = FORMATS[kind]
    ours, _ = made.quantized(plain, tmp_path, config | changes, store)
    assert message in refusal(made.change(ours, edit))
