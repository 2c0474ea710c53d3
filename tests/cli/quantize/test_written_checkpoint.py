"""`sluice quantize --output`: the checkpoint must be what quantising at load time computes, and others must read it."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tiny_models
from any_checkpoint import any_checkpoint
from compiled import library
from gguf_makers import write_gguf
from paged_model import chunked_logits
from sluice import cli
from sluice.cli.quantize import write
from sluice.cli.quantize.schemes import SCHEMES
from sluice.cli.quantize.source import PlainCheckpoint
from sluice.cli.quantize.write import write_quantized
from sluice.kernels.cpu.library import Kernels
from sluice.models.base import PagedLM
from sluice.models.checkpoint import CheckpointError
from sluice.models.hub import resolve_checkpoint
from sluice.models.linear import Packer
from sluice.models.loader import load_model
from sluice.models.packers import NativePacker
from sluice.models.quantized import Int4Weight, Int8Weight, QuantizedWeight

CPU = torch.device("cpu")
PROMPTS = [tiny_models.prompt(30, 0), tiny_models.prompt(5, 1)]
WEIGHTS = "model.safetensors"
IN_GROUPS = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96}
"""Sizes that groups of four bits divide."""


def written(source: Path, target: Path, scheme: str = "int8") -> Path:
    write_quantized(PlainCheckpoint(source), target, SCHEMES[scheme], progress=False)
    return target


def loaded(folder: Path, quantization: str | None, dtype: str = "bfloat16", packer: Packer | None = None) -> PagedLM:
    packer = packer or NativePacker(Kernels(library(), library().best(), 1))
    return load_model(folder, dtype=dtype, device=CPU, progress=False, quantization=quantization, packer=packer)[0]


def logits(model: PagedLM) -> torch.Tensor:
    return torch.cat(chunked_logits(model, PROMPTS, page_size=4, seed=0))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    folder = tmp_path / "plain"
    tiny_models.save("llama", folder)
    return folder


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", [tiny_models.llama, tiny_models.llama2, tiny_models.qwen3])
def test_it_computes_what_quantising_at_load_time_does(
    family: Callable[..., transformers.PreTrainedModel], scheme: str, tmp_path: Path
) -> None:
    """Scales rounded on the way to the disk, or weights that are quantised twice, would give other tokens.

    The kernels have groups in int8, which W8A8 has not: there the definitions compute.
    """
    source = tmp_path / "source"
    family(**IN_GROUPS).save_pretrained(source)
    folder = written(source, tmp_path / "out", scheme)
    packer = Packer() if scheme == "int8" else None
    assert torch.equal(logits(loaded(folder, scheme, packer=packer)), logits(loaded(source, scheme, packer=packer)))


def test_shards_stay_shards(tmp_path: Path) -> None:
    """Large models come in many files; a tensor that the index sends to another file is not found."""
    source, folder = tmp_path / "source", tmp_path / "out"
    tiny_models.llama().save_pretrained(source, max_shard_size="20KB")
    assert len(list(source.glob("*.safetensors"))) > 2
    written(source, folder)
    assert {path.name for path in folder.glob("*.safetensors")} == {path.name for path in source.glob("*.safetensors")}
    packer = Packer()
    assert torch.equal(logits(loaded(folder, "int8", packer=packer)), logits(loaded(source, "int8", packer=packer)))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(
        value.nbytes for path in folder.glob("*.safetensors") for value in load_file(path).values()
    )


@pytest.mark.parametrize(("scheme", "kind"), [("int8", Int8Weight), ("int4", Int4Weight)])
def test_transformers_reads_the_same_weights(scheme: str, kind: type[QuantizedWeight], tmp_path: Path) -> None:
    """A checkpoint that only its writer understands is none that people can use elsewhere."""
    plain = tmp_path / "plain"
    tiny_models.llama(**IN_GROUPS).save_pretrained(plain)
    folder = written(plain, tmp_path / "out", scheme)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = load_file(plain / WEIGHTS)
    with torch.inference_mode():
        theirs(torch.tensor([PROMPTS[0]]))  # they unpack at the first step
    state = theirs.state_dict()
    for name, value in ours.items():
        expected = kind.quantize(value).dense(torch.float32) if name.endswith("_proj.weight") else value
        torch.testing.assert_close(state[name].float(), expected.float(), rtol=1e-6, atol=0)


def test_the_command_writes_all_that_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint without its tokenizer; one whose weights take what they took before."""
    folder = tmp_path / "out"
    assert cli.main(["quantize", str(any_checkpoint()), "--quantization", "int8", "--output", str(folder)]) == 0
    assert str(folder) in capsys.readouterr().err
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in any_checkpoint().iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (folder / WEIGHTS).stat().st_size < 0.75 * (any_checkpoint() / WEIGHTS).stat().st_size


def test_without_an_option_its_layers_compute_in_int8(plain: Path, tmp_path: Path) -> None:
    """A checkpoint that was made for int8 must not be widened; what it does not quantise stays as it is."""
    folder = written(plain, tmp_path / "out")
    model, int8 = loaded(folder, None), loaded(folder, "int8")
    assert model.spec.quantization == "int8-as-stored"
    assert model.lm_head.packed.dtype == torch.bfloat16
    assert model.layers["0"].mlp.down_proj.packed.dtype == torch.int8
    assert not torch.equal(logits(model), logits(int8))
    assert (logits(model).double() - logits(int8).double()).norm() <= 0.15 * logits(int8).double().norm()


def test_it_is_dequantised_where_int8_does_not_compute(plain: Path, tmp_path: Path) -> None:
    """float32 is asked for by those who want the stored weights without rounding."""
    model = loaded(written(plain, tmp_path / "out"), None, dtype="float32")
    assert model.spec.quantization == "none"


def broken(plain: Path, name: str, value: torch.Tensor | None) -> Path:
    """Change or remove a tensor of a checkpoint."""
    tensors = load_file(plain / WEIGHTS)
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    save_file(tensors, plain / WEIGHTS)
    return plain


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.full((44, 32), torch.inf), f"tensor {UP} cannot be quantised: it holds values that are infinite"),
        (torch.ones((44, 31)), f"tensor {UP} has shape \\(44, 31\\), which is not that of a weight of 44 x 32"),
        (torch.ones((44, 32), dtype=torch.int32), f"tensor {UP} has dtype torch.int32; accepted are"),
        (None, f"the checkpoint lacks the tensor {UP}"),
    ],
)
def test_a_broken_tensor_is_named_and_nothing_stays(
    value: torch.Tensor | None, reason: str, plain: Path, tmp_path: Path
) -> None:
    """Half a checkpoint that looks like a whole one."""
    with pytest.raises(CheckpointError, match=reason):
        written(broken(plain, UP, value), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_what_is_refused(plain: Path, tmp_path: Path) -> None:
    """A folder whose files would be overwritten; weights that would be rounded twice; what no format stores."""
    folder = written(plain, tmp_path / "out")
    with pytest.raises(CheckpointError, match=f"--output {folder} is not empty"):
        written(plain, folder)
    with pytest.raises(CheckpointError, match=r"is quantised already \(compressed-tensors\)"):
        written(folder, tmp_path / "again")
    with pytest.raises(CheckpointError, match=r"config\.json is a file"):
        written(plain, plain / "config.json")
    with pytest.raises(CheckpointError, match=r"down_proj\.weight cannot be quantised: groups of 32 .* its 44 inputs"):
        written(plain, tmp_path / "again", "int4")
    tiny_models.save("gpt2", tmp_path / "gpt2")
    with pytest.raises(CheckpointError, match="GPT2LMHeadModel stores its weights transposed"):
        written(tmp_path / "gpt2", tmp_path / "again")
    (tmp_path / "gguf").mkdir()
    for kind, problem in (
        ("F16", r"a GGUF file of plain weights \(F16\) is quantised when it is served: sluice serve FILE --quant"),
        ("Q8_0", r"the GGUF file is quantised already \(Q8_0.*\), and is served as it is: sluice serve FILE\. To qu"),
    ):
        file, _ = write_gguf(plain, tmp_path / "gguf" / f"{kind}.gguf", kind)
        with pytest.raises(CheckpointError, match=problem):
            written(resolve_checkpoint(str(file), cache=tmp_path / "cache"), tmp_path / "again")
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config | {"architectures": ["OlmoForCausalLM"]}))
    with pytest.raises(CheckpointError, match="OlmoForCausalLM cannot be quantised: which tensors") as caught:
        written(plain, tmp_path / "again")
    assert "--model-impl" not in str(caught.value)
    assert not (tmp_path / "again").exists()


def test_a_copy_keeps_the_dtype_that_only_its_weights_name(plain: Path, tmp_path: Path) -> None:
    """Old checkpoints in float32 say no dtype, and a quantised one without it is computed in bfloat16."""
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "dtype"}))
    assert loaded(plain, None, dtype="auto").spec.dtype == torch.float32
    assert loaded(written(plain, tmp_path / "out"), None, dtype="auto").spec.dtype == torch.float32


def test_a_full_disk_is_no_fault_of_the_checkpoint(plain: Path, tmp_path: Path) -> None:
    """The source was called unreadable."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=f"--output {tmp_path}/out cannot be written: .*File too large"):
            written(plain, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_sigterm_leaves_nothing(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers and batch systems send it; each left a hidden folder of the model's size."""
    monkeypatch.setattr(write, "_copy_others", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        cli.main(["quantize", str(plain), "--quantization", "int8", "--output", str(tmp_path / "out")])
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_an_empty_folder_is_filled(plain: Path, tmp_path: Path) -> None:
    """Some tools make the folder before they name it."""
    (tmp_path / "out").mkdir()
    assert (written(plain, tmp_path / "out") / WEIGHTS).is_file()
