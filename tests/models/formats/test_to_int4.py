"""Quantised checkpoints that are loaded in four bits: those that have four bits keep their numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import quantized_checkpoints as made
import tiny_models
from gguf_makers import write_gguf
from models.formats.loading import load
from models.formats.test_compressed import SCHEMES, config_of, storing
from models.formats.test_four_bits import FORMATS, GPTQ_CONFIG, GROUP, gptq
from models.formats.test_to_int8 import Recorder
from sluice.models.checkpoint import CheckpointError
from sluice.models.hub import resolve_checkpoint
from sluice.models.quantized import Int4Weight, Int8Weight

PACKED = {name: SCHEMES[name] for name in ("int4-groups", "int4-zero-points")}
KEPT: Mapping[str, tuple[dict[str, Any], Callable[[torch.Tensor], made.Stored]]] = {
    **{name: FORMATS[name] for name in ("gptq", "gptq-v2", "gptq-channel", "awq")},
    **{name: (config_of(*scheme), storing(*scheme)) for name, scheme in PACKED.items()},
}
MODULES = ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
"""In the order in which they are packed."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 whose sizes words and groups of 16 divide, and groups of 32 only in part."""
    folder = tmp_path_factory.mktemp("qwen2")
    tiny_models.qwen2(intermediate_size=48).save_pretrained(folder)
    return folder


def parts(folder: Path, **options: Any) -> list[Any]:
    """Return the weights of the layers of a checkpoint in four bits, in their order, without the head."""
    packer = Recorder()
    load(folder, quantization="int4", packer=packer, dtype="bfloat16", **options)
    return [part.weight for part in packer.seen]


@pytest.mark.parametrize("name", KEPT)
def test_four_bits_keep_their_numbers(name: str, source: Path, tmp_path: Path) -> None:
    """Another rounding on top of the stored one; zero points off by one, or of another output."""
    ours, theirs = made.quantized(source, tmp_path, *KEPT[name])
    plain = {n.removesuffix(".weight"): value for n, value in load_file(theirs / made.WEIGHTS).items()}
    found = parts(ours)
    assert len(found) == 21
    assert load(ours, quantization="int4", dtype="bfloat16").spec.stored_as.kept == 21
    for weight, module in zip(found[:7], MODULES, strict=True):
        full = f"model.layers.0.{module}_proj"
        assert isinstance(weight, Int4Weight)
        assert weight.group == (weight.in_features if name == "gptq-channel" else GROUP)
        assert torch.allclose(weight.dense(torch.float32), plain[full].float(), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("name", ["gptq-act-order", "gptq-8-bits", "int8-packed"])
def test_others_are_quantised_again(name: str, source: Path, tmp_path: Path) -> None:
    """Groups of inputs that are no neighbours, or eight bits, taken for four."""
    config, store = FORMATS[name] if name in FORMATS else (config_of(*SCHEMES[name]), storing(*SCHEMES[name]))
    ours, theirs = made.quantized(source, tmp_path, config, store)
    assert load(ours, quantization="int4", dtype="bfloat16").spec.stored_as.kept == 0
    for weight, wanted in zip(parts(ours), parts(theirs), strict=True):
        assert type(weight) is type(wanted)
        assert isinstance(weight, Int8Weight if weight.in_features == 48 else Int4Weight)
        off = weight.dense(torch.float32) - wanted.dense(torch.float32)
        assert float(off.norm() / wanted.dense(torch.float32).norm()) <= 0.1


def test_a_head_of_four_bits_that_is_tied_becomes_int8(tmp_path: Path) -> None:
    """An embedding of four bits, which nothing can look up."""
    tiny_models.llama(hidden_size=32, intermediate_size=64, tie_word_embeddings=True).save_pretrained(tmp_path / "made")
    path, plain = write_gguf(tmp_path / "made", tmp_path / "model.gguf", "Q4_0")
    folder, stored = resolve_checkpoint(str(path)), load_file(plain / made.WEIGHTS)
    model = load(folder, quantization="int4", dtype="bfloat16")
    ids = torch.arange(20)
    wanted = stored["model.embed_tokens.weight"][ids].float()
    assert torch.allclose(model.embed_tokens(ids).float(), wanted, rtol=2**-7, atol=float(wanted.abs().max()) / 200)
    gate = parts(folder)[4]
    assert torch.equal(gate.dense(torch.float32), stored["model.layers.0.mlp.gate_proj.weight"].float())
    query = parts(folder)[0]
    assert torch.equal(query.dense(torch.float32), stored["model.layers.0.self_attn.q_proj.weight"].float())


def test_kept_weights_have_the_shapes_of_the_model(tmp_path: Path) -> None:
    """A wider weight would read behind its activations."""
    tiny_models.llama(hidden_size=32, intermediate_size=64).save_pretrained(tmp_path / "made")
    path, _ = write_gguf(tmp_path / "made", tmp_path / "model.gguf", "Q4_0")
    folder = resolve_checkpoint(str(path), cache=tmp_path / "cache")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 32}))
    for quantization in (None, "int4"):
        with pytest.raises(
            CheckpointError, match=r"down_proj\.weight has shape \(32, 64\), config.json requires \(32, 32\)"
        ):
            load(folder, quantization=quantization, dtype="bfloat16")


def test_a_head_of_four_bits_keeps_its_numbers(tmp_path: Path) -> None:
    """A head that is quantised again, to int8."""
    tiny_models.llama(hidden_size=32, intermediate_size=64, vocab_size=64).save_pretrained(tmp_path / "made")
    store = gptq()
    ours, _ = made.quantized(tmp_path / "made", tmp_path, GPTQ_CONFIG | {"lm_head": True}, store)
    written, plain = store(load_file(ours / made.WEIGHTS)["lm_head.weight"].float())
    head = {f"lm_head.{part}": value.contiguous() for part, value in written.items()}
    made.change(ours, lambda t: {name: value for name, value in t.items() if name != "lm_head.weight"} | head)
    model = load(ours, quantization="int4", dtype="bfloat16", packer=Recorder())
    weight = next(part.weight for part in model.lm_head.modules() if hasattr(part, "weight"))
    assert isinstance(weight, Int4Weight)
    assert torch.allclose(weight.dense(torch.float32), plain.float(), rtol=2**-8, atol=1e-6)
