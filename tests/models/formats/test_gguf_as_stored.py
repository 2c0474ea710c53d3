"""GGUF files whose weights are multiplied as they are stored: what is kept so, and what a shard has of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tiny_models
from compiled import library
from gguf_makers import write_gguf
from models.formats.loading import load
from models.formats.test_to_int8 import Recorder
from paged_model import chunked_logits
from sluice.assembly.load import how_held
from sluice.device.memory import module_bytes
from sluice.kernels.cpu.library import Kernels
from sluice.models.block_types import BLOCK_TYPES
from sluice.models.catalog.gguf_sizes import GGUFSizes
from sluice.models.formats.gguf_open import open_gguf
from sluice.models.grouped_layers import GroupedLinear, StoredEmbedding
from sluice.models.hub import resolve_checkpoint
from sluice.models.native_linear import NativeLinear
from sluice.models.ops import Ops
from sluice.models.packers import NativePacker
from sluice.models.quantized import QuantizedLinear
from sluice.models.stored_blocks import StoredBlocks
from sluice.parallel.layout import Layout
from sluice.parallel.member import ALONE, Member
from thread_groups import thread_members

LIBRARY = library()


class Keeper(Recorder):
    """Keeps what it is given, and has products for all kinds."""

    def why_not(self, kind: str, dtype: torch.dtype) -> str | None:
        return None

    def embedding(self, embedding: Any) -> nn.Module:
        return nn.ModuleList([embedding])


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))


def packer() -> NativePacker:
    return NativePacker(Kernels(LIBRARY, LIBRARY.best(), 2))


def made(
    tmp_path: Path, kind: str, size: int = 64, others: Mapping[str, str] = {}, **changes: Any
) -> tuple[Path, Path]:
    """Write a tiny model; return the folder of its GGUF file, and that of the weights which this stands for.

    Args:
        others: as for `write_gguf`.
    """
    sizes = {"hidden_size": size, "intermediate_size": 2 * size, "num_hidden_layers": 2}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    tiny_models.llama(**(rope | sizes | changes)).save_pretrained(tmp_path / "source")
    path, plain = write_gguf(tmp_path / "source", tmp_path / "model.gguf", kind, others=others)
    return resolve_checkpoint(str(path)), plain


def logits(folder: Path, **options: Any) -> torch.Tensor:
    prompts = [[5, 3, 11, 7, 2, 9, 14, 1], [8, 8, 4]]
    return torch.cat(chunked_logits(load(folder, **options), prompts, page_size=16, seed=1)).double()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "IQ2_XS", "IQ3_S", "IQ1_S", "TQ2_0"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_it_computes_what_the_file_says(kind: str, is_tied: bool, tmp_path: Path) -> None:
    """Rows of q and k are in another order there, and the head may share the embedding's blocks."""
    size = max(64, BLOCK_TYPES[kind].inputs)
    folder, plain = made(tmp_path, kind, size, tie_word_embeddings=is_tied)
    model = load(folder, packer=packer())
    assert model.spec.quantization == "blocks-as-stored"
    kinds = {type(module) for module in model.modules()}
    assert {GroupedLinear, StoredEmbedding} <= kinds
    assert NativeLinear not in kinds
    exact = logits(plain, dtype="float32")
    assert_near(logits(folder, packer=packer()), exact, logits(plain, dtype="bfloat16"))


def assert_near(got: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor) -> None:
    """Assert that an error is not much larger than that of the same weights in bfloat16."""
    error, usual = (float((each - exact).norm() / exact.norm()) for each in (got, rounded))
    assert error < 2 * usual + 0.01


def test_parts_of_several_types(tmp_path: Path) -> None:
    """Files mix types, and a layer of several is computed as stored too."""
    others = {"v_proj": "Q6_K", "up_proj": "Q5_0", "down_proj": "TQ1_0", "embed_tokens": "Q8_0"}
    folder, plain = made(tmp_path, "Q4_K", 256, others)
    model = load(folder, packer=packer())
    stored_as = model.spec.stored_as
    assert stored_as is not None
    assert how_held(model.spec, stored_as) == "computed as stored"
    assert "TQ1_0 (2)" in stored_as.description
    vectors = 4 * 256 * (2 * model.spec.num_layers + 1)
    in_file = open_gguf(tmp_path / "model.gguf").tensors
    matrices = sum(info.nbytes for info in in_file.values()) - in_file["token_embd.weight"].nbytes - vectors
    assert GGUFSizes.read(tmp_path / "model.gguf").as_stored.held == pytest.approx(matrices, rel=0.01)
    assert not any(isinstance(module, NativeLinear) for module in model.modules())
    stored = load_file(plain / "model.safetensors")
    x = torch.randn(9, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    for number, layer in model.layers.items():
        prefix = f"model.layers.{number}"
        exact = [x.float() @ stored[f"{prefix}.self_attn.{name}_proj.weight"].T for name in "qkv"]
        for got, wanted in zip(
            layer.self_attn.qkv_proj(x).split([len(each.T) for each in exact], 1), exact, strict=True
        ):
            assert (got - wanted).norm() < 0.01 * wanted.norm()
        gate, up = (x.float() @ stored[f"{prefix}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        wanted = nn.functional.silu(gate) * up
        assert (layer.mlp.gate_up_proj(x, Ops()) - wanted).norm() < 0.02 * wanted.norm()


def test_a_file_without_blocks_holds_none(tmp_path: Path) -> None:
    folder, _ = made(tmp_path, "F16")
    assert load(folder, packer=packer()).spec.quantization == "none"


def test_a_number_takes_the_bytes_of_the_file(tmp_path: Path) -> None:
    """The pace of a step is estimated from them."""
    folder, _ = made(tmp_path, "Q4_1")
    spec = load(folder, packer=packer()).spec
    assert (spec.weight_bytes, spec.table_bytes) == (20 / 32, 20 / 32)
    assert spec.stored_as is not None
    assert spec.stored_as.kept == 16


def test_memory_counts_what_was_packed(tmp_path: Path) -> None:
    """The budget of the KV cache and the pace of steps come from it."""
    folder, plain = made(tmp_path, "Q4_1", 128, tie_word_embeddings=True)
    matrices = sum(each.numel() for each in load_file(plain / "model.safetensors").values() if each.ndim == 2)
    assert module_bytes(load(folder, packer=packer())) == pytest.approx(matrices * 20 / 32, rel=0.05)


def test_it_can_be_dequantised_or_quantised_again(tmp_path: Path) -> None:
    """The products of another precision are still there for comparison."""
    folder, plain = made(tmp_path, "Q4_1")
    found = {each: load(folder, packer=packer(), quantization=each).spec.quantization for each in ("none", "int8")}
    assert found == {"none": "none", "int8": "int8"}
    assert torch.equal(
        logits(folder, packer=packer(), quantization="none"), logits(plain, packer=packer(), dtype="bfloat16")
    )
    assert load(folder, packer=packer(), dtype="float32").spec.quantization == "none"


def weights(folder: Path, member: Member = ALONE) -> list[Any]:
    keeper = Keeper()
    load(folder, packer=keeper, member=member)
    return keeper.seen


def widened(parts: Sequence[Any]) -> list[torch.Tensor]:
    return [
        part.weight.dense(torch.bfloat16) if isinstance(part, QuantizedLinear) else part.weight.data for part in parts
    ]


@pytest.mark.parametrize(("kind", "inner", "are_kept"), [("Q4_0", 128, True), ("Q4_0", 96, False)])
def test_shards_are_parts(kind: str, inner: int, are_kept: bool, tmp_path: Path) -> None:
    """A shard whose inputs begin inside a block has that layer's part dequantised, and the others as stored."""
    folder, _ = made(tmp_path, kind, intermediate_size=inner)
    whole = widened(weights(folder))
    shards = [weights(folder, member) for member in thread_members(Layout(2))]
    cut_by_inputs = (0, 0, 0, 1, 0, 0, 1)  # q, k, v, o, gate, up, down; then the head
    for dim, weight, *parts in zip((*2 * cut_by_inputs, 0), whole, *map(widened, shards), strict=True):
        assert torch.equal(torch.cat(parts, dim), weight)
    down = shards[0][6]
    assert isinstance(down, QuantizedLinear) is are_kept
    assert isinstance(shards[0][0].weight, StoredBlocks)
