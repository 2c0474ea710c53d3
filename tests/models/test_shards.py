"""Models that are cut into shards and stages, over threads: their logits are those of the whole model."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_families
import tiny_models
from compiled import library
from paged import Row, empty_kv, forward_batch
from paged_model import chunked_logits
from peak_memory import PeakMemory
from slow import products, slow
from sluice.attention.reference import ReferenceAttention
from sluice.device.memory import module_bytes
from sluice.kernels.cpu.library import Kernels
from sluice.models.checkpoint import CheckpointError
from sluice.models.loader import load_model
from sluice.models.packers import NativePacker
from sluice.parallel.layout import Layout
from sluice.parallel.member import Member
from thread_groups import run_ranks, thread_members

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPTS = tuple(tiny_models.prompt(length, seed) for seed, length in enumerate((25, 1, 12)))
CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"
WHOLE = Layout()


def logits(folder: Path, layout: Layout = WHOLE, dtype: str = "float64", **options: Any) -> torch.Tensor:
    """Return the logits of all prompts, [tokens, vocab_size], with each rank in a thread."""

    def body(member: Member) -> torch.Tensor:
        model, _ = load_model(folder, dtype=dtype, device=CPU, progress=False, member=member, **options)
        return torch.cat(chunked_logits(model, PROMPTS, page_size=4, seed=0))

    members = thread_members(layout)
    found = run_ranks(members, body)
    return torch.cat([part for member, part in zip(members, found, strict=True) if member.place.is_last], 1)


FAMILIES: dict[str, Callable[..., Any]] = {
    "llama, untied": tiny_models.llama,
    "llama with biases": tiny_models.llama2,
    "windows": tiny_models.mistral,
    "tied, biases of q, k and v": tiny_models.qwen2,
    "head norms": tiny_models.qwen3,
    "gpt2": lambda **sizes: tiny_models.gpt2(n_embd=32, n_head=4, **sizes),
    "norms over all heads": tiny_families.olmo2,
    "fused": tiny_families.phi3,
    "norms behind": tiny_families.gemma3,
    "growing queries": tiny_families.ministral3,
    "factors": tiny_families.granite,
    "no rotation": tiny_families.smollm3,
    "layers of two sizes": tiny_families.gemma4_31b,
    "experts": tiny_families.qwen3_moe,
}
SIZES = {"vocab_size": 197}
"""Of a vocabulary whose last shard of four is shorter than the others."""


@pytest.fixture(
    params=[
        name
        if name
        in (
            "windows",
            "tied, biases of q, k and v",
            "gpt2",
            "norms over all heads",
            "fused",
            "layers of two sizes",
            "experts",
        )
        else slow(name)
        for name in FAMILIES
    ]
)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    FAMILIES[request.param](**SIZES).save_pretrained(tmp_path)
    return tmp_path


def test_parts_compute_what_the_whole_model_does(folder: Path) -> None:
    """A head of another shard, a bias that is added once per shard, a sum that is left out; a residual that is lost
    between stages, or a first delta that is added in each."""
    whole = logits(folder)
    for shards in (2, 4):  # of two KV heads: with four shards, two have the same one
        assert (logits(folder, Layout(shards)) - whole).abs().max() <= 1e-12
    for stages in (2, 3):
        assert torch.equal(logits(folder, Layout(1, stages)), whole)
    assert torch.equal(logits(folder, Layout(2, 2)), logits(folder, Layout(2)))


def test_layers_that_read_others_are_shards_and_no_stages(tmp_path: Path) -> None:
    """Another rank has the keys and values that they read, and the embeddings of which they have inputs."""
    tiny_families.gemma4(**SIZES).save_pretrained(tmp_path)
    whole = logits(tmp_path)
    for shards in (2, 4):
        assert (logits(tmp_path, Layout(shards)) - whole).abs().max() <= 1e-12
    with pytest.raises(CheckpointError, match="--pp-size 2: this Gemma4ForCausalLM runs in one stage"):
        logits(tmp_path, Layout(2, 2))


def test_only_the_last_stage_leaves_tokens_out(tmp_path: Path) -> None:
    """Of a chunk whose last token alone has logits, the stages before it pass on all tokens."""
    tiny_models.llama().save_pretrained(tmp_path)
    batch = forward_batch([Row(PROMPTS[0], 0, range(7))], 4)

    @torch.inference_mode()
    def body(member: Member) -> torch.Tensor:
        model, whole = load_model(tmp_path, dtype="float64", device=CPU, progress=False, member=member)
        spec = whole.of(member.place)
        kv = [empty_kv(7, 4, spec.num_kv_heads, spec.head_dim, spec.dtype) for _ in range(spec.num_layers)]
        return model.logits(model(batch, kv, ReferenceAttention()))

    (whole,) = run_ranks(thread_members(WHOLE), body)
    *before, last = run_ranks(thread_members(Layout(1, 3)), body)
    assert torch.equal(last, whole)
    assert [tuple(part.shape) for part in before] == 2 * [(0, tiny_models.VOCAB_SIZE)]


@products(family=["gated", "tied", "fused", "gpt2"], quantization=["int4", None, "int8"])
def test_packed_weights_are_cut_like_plain_ones(family: str, quantization: str | None, tmp_path: Path) -> None:
    """A head that begins inside a block, a gated layer whose halves are cut as one."""
    sizes = {"hidden_size": 64, "intermediate_size": 128} | SIZES
    match family:
        case "gated":
            tiny_models.llama(**sizes).save_pretrained(tmp_path)
        case "fused":
            tiny_families.phi3(**sizes).save_pretrained(tmp_path)
        case "tied":
            tiny_models.qwen2(**sizes).save_pretrained(tmp_path)
        case _:
            tiny_models.gpt2(n_embd=64, n_head=4, **SIZES).save_pretrained(tmp_path)
    packer = NativePacker(Kernels(library(), library().best(), 1))
    options = {"dtype": "bfloat16", "packer": packer, "quantization": quantization}
    exact = logits(tmp_path)
    error = (logits(tmp_path, **options) - exact).norm()
    for layout in (Layout(2), Layout(2, 2)):
        assert (logits(tmp_path, layout, **options) - exact).norm() <= 1.2 * error


def test_a_shard_is_read_without_the_rest(tmp_path: Path) -> None:
    """A model that no rank has the memory for must load: what loading takes is near the size of the part."""
    tiny_models.llama(hidden_size=64, intermediate_size=2048, vocab_size=128).save_pretrained(tmp_path)
    mapped = 2 * 64 * 2048 * 4  # the largest tensor and the next one, which are in the file and counted all the same
    for layout in (Layout(4), Layout(4, 3)):
        member = thread_members(layout)[-1]
        with PeakMemory() as memory:
            model, _ = load_model(tmp_path, dtype="float32", device=CPU, progress=False, member=member)
        assert memory.peak <= module_bytes(model) + mapped


@pytest.mark.parametrize(
    ("changes", "layout", "message"),
    [
        ({}, Layout(3), "--tp-size 3: shards cannot share 4 heads, 2 KV heads, 44 inner elements"),
        ({}, Layout(8), "accepted: 1, 2, 4"),
        ({"intermediate_size": 42}, Layout(4), "accepted: 1, 2"),
        ({"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}, Layout(2), "accepted: 1"),
        ({"vocab_size": 96}, Layout(4), "a vocabulary of 96 in blocks of 32; accepted: 1, 2"),
        ({}, Layout(1, 4), "--pp-size 4: the model has 3 layers, and every stage needs one; accepted: 1 to 3"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(
    changes: dict[str, Any], layout: Layout, message: str, tmp_path: Path
) -> None:
    tiny_models.llama(**changes).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_model(tmp_path, dtype="auto", device=CPU, progress=False, member=thread_members(layout)[0])


def test_a_model_of_transformers_is_not_cut(tmp_path: Path) -> None:
    """It would be loaded as a whole on every rank, and its attention summed."""
    tiny_models.llama().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="through transformers, on one device alone: leave out --tp-size"):
        load_model(
            tmp_path,
            dtype="auto",
            device=CPU,
            progress=False,
            implementation="transformers",
            member=thread_members(Layout(2))[0],
        )


def test_every_rank_refuses_what_one_refuses(tmp_path: Path) -> None:
    """A rank that waits for one that has refused its weights says nothing of them."""
    tiny_models.llama().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    for change in ({"model.layers.0.mlp.up_proj.weight": torch.zeros(5, 7)}, {"model.norm.weight": None}):
        save_file({name: value for name, value in (tensors | change).items() if value is not None}, tmp_path / WEIGHTS)
        for member in thread_members(Layout(2, 3)):
            with pytest.raises(CheckpointError, match=r"up_proj\.weight has shape|lacks the tensor norm"):
                load_model(tmp_path, dtype="auto", device=CPU, progress=False, member=member)
