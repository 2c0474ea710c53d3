"""What attends, and whether steps are replayed: chosen by the options, the device and the model."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from any_checkpoint import any_checkpoint
from slow import slow
from sluice import LLM, SamplingParams
from sluice.assembly.graphs import graph_rows
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.assembly.resolve import resolve
from sluice.attention.backend import AttentionBackend
from sluice.attention.select import BACKENDS, AttentionChoice, backend_named, choose_attention
from sluice.attention.spec import KVShape
from sluice.config import ConfigError, EngineConfig
from sluice.models.spec import ModelSpec
from sluice.types import BatchPlan, Chunk, NewSlot, Submit

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SMALL = {"max_total_tokens": 512, "page_size": 16, "dtype": "float32", "device": "cpu"}
GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
SPEC = ModelSpec("LlamaForCausalLM", 2, 4, 2, 64, 256, 1000, 4096, (), torch.bfloat16)


def loaded(**options: Any) -> LoadedModel:
    return load(EngineConfig.from_options(SMALL | {"model": str(any_checkpoint())} | options), progress=False)


@pytest.mark.parametrize("name", ["native", "reference", slow("triton")])
def test_all_give_the_same_tokens(name: str) -> None:
    if name == "native" and loaded().backend.name != "native":
        pytest.skip("no compiled kernels here")
    prompts = [[10, 11, 12, 13, 14], [20] * 19]
    with LLM(any_checkpoint(), **SMALL, cpu_kernels="torch") as llm:
        expected = [result.token_ids for result in llm.generate(prompts, GREEDY)]
    with LLM(any_checkpoint(), **SMALL, attention_backend=name) as llm:
        assert [result.token_ids for result in llm.generate(prompts, GREEDY)] == expected


@pytest.mark.parametrize("name", ["native", "reference", "triton"])
def test_it_is_what_attends(name: str) -> None:
    """The one asked for is named, and is the one that runs."""
    if name == "native" and loaded().backend.name != "native":
        pytest.skip("no compiled kernels here")
    model = loaded(attention_backend=name)
    assert model.info.config.model.attention_backend == name
    assert model.backend is backend_named(name)
    assert type(model.backend.make(CPU, model.kernels, lambda: None)).__name__.lower() == f"{name}attention"


def test_on_a_cpu() -> None:
    """The compiled kernels where there are any; what needs a GPU is refused with an alternative."""
    assert choose_attention("auto", CPU, "avx2") == AttentionChoice("native", "--cpu-kernels avx2")
    assert choose_attention("auto", CPU, "torch").name == "reference"
    with pytest.raises(ConfigError, match="native: it needs the compiled CPU kernels; use --attention-backend refe"):
        choose_attention("native", CPU, "torch")
    with pytest.raises(ConfigError, match="flashinfer: it needs --device cuda, got cpu; use --attention-backend refe"):
        choose_attention("flashinfer", CPU, "torch")


class _Properties:
    name = "GTX 1080"
    multi_processor_count = 20

    def __init__(self, major: int, minor: int) -> None:
        self.major, self.minor = major, minor


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device of a compute capability, as far as the choice asks; and packages that are not installed."""

    def make(major: int, minor: int, *missing: str) -> torch.device:
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: _Properties(major, minor))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GTX 1080")
        for module in ("triton", "flashinfer"):
            monkeypatch.setattr(
                f"sluice.attention.{module}.backend.find_spec", lambda name: None if name in missing else object()
            )
        return GPU

    return make


def test_on_a_gpu(gpu: Any) -> None:
    assert choose_attention("auto", gpu(9, 0), "torch") == AttentionChoice("triton", "default on cuda")
    assert choose_attention("flashinfer", GPU, "torch") == AttentionChoice("flashinfer", None)
    assert choose_attention("auto", gpu(9, 0, "triton"), "torch").name == "reference"
    with pytest.raises(ConfigError, match="triton is not installed; use --attention-backend reference"):
        choose_attention("triton", GPU, "torch")
    with pytest.raises(ConfigError, match=r"flashinfer is not installed .* use --attention-backend triton"):
        choose_attention("flashinfer", gpu(9, 0, "flashinfer"), "torch")


def test_every_backend_is_listed_once() -> None:
    assert len({backend.name for backend in BACKENDS}) == len(BACKENDS)
    with pytest.raises(ConfigError, match=r"--attention-backend must be one of auto, native, .*, got 'flash'"):
        choose_attention("flash", CPU, "torch")


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_pages_have_the_layout_that_a_backend_names(backend: AttentionBackend) -> None:
    """A page file that names another layout would be read as garbage after a restart."""
    kernels = loaded().kernels
    if backend.needs_kernels and kernels is None:
        pytest.skip("no compiled kernels here")
    kv = backend.new_kv(KVShape(2, 16, 2, 16, torch.float32, CPU), kernels)
    assert kv.layout == backend.layout
    assert (kv.page_size, kv.kv_heads) == (16, 2)


def test_on_an_old_gpu(gpu: Any) -> None:
    """One line that says what is too old for what, and what to do."""
    device = gpu(6, 1)
    choice = choose_attention("auto", device, "torch")
    assert choice.name == "reference"
    assert "needs compute capability 8.0" in str(choice.reason)
    for name in ("triton", "flashinfer"):
        with pytest.raises(ConfigError, match=rf"{name}: .*capability 8.0.* GTX 1080 .*reference"):
            choose_attention(name, device, "torch")


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("triton", {}, None),
        ("triton", {"dtype": torch.float64}, "the model is float64"),
        ("triton", {"head_dim": 320}, "at most 256"),
        ("flashinfer", {}, None),
        ("flashinfer", {"dtype": torch.float32}, "the model is float32"),
        ("flashinfer", {"head_dim": 80}, "heads of 64, 128, 256, the model's have 80"),
        ("reference", {"head_dim": 80, "dtype": torch.float64}, None),
    ],
)
def test_what_a_backend_supports(
    name: str, change: dict[str, Any], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.attention.flashinfer.backend._first_use", lambda *_: None)
    found = backend_named(name).supports(replace(SPEC, **change).attention, 32, CPU)
    assert found is None if problem is None else problem in str(found)


def test_a_model_that_a_backend_does_not_take(caplog: pytest.LogCaptureFixture) -> None:
    """Asked for, it is refused; chosen, it gives way and says so."""
    with pytest.raises(
        ConfigError, match=r"--attention-backend triton cannot serve this model: .* the model is float64"
    ):
        loaded(dtype="float64", attention_backend="triton")
    with caplog.at_level(logging.WARNING, logger="sluice"):
        model = loaded(dtype="float64")
    assert model.backend.name == "reference"
    assert "reference" not in model.info.reasons["attention_backend"]


def graphs(spec: ModelSpec = SPEC, attention: str = "triton", **options: Any) -> tuple[tuple[int, ...], str]:
    config = resolve(EngineConfig.from_options(options), "cuda").config
    return graph_rows(config, spec, GPU, backend_named(attention))


def test_graphs_of_a_gpu() -> None:
    """Every number of running requests has its graph, up to a bound; what cannot be captured is run as it is."""
    assert graphs(max_running_requests=20)[0] == (1, 2, 4, 8, 16, 20)
    assert graphs(max_running_requests=500)[0][-1] == 256
    assert graphs(cuda_graph_max_bs=8)[0] == (1, 2, 4, 8)
    assert graphs(disable_cuda_graph=True) == ((), "no graphs: --disable-cuda-graph")
    assert graphs(attention="reference")[0] == ()
    assert graphs(replace(SPEC, implementation="transformers"))[0] == ()
    with pytest.raises(ConfigError, match="--cuda-graph-max-bs must be at most --max-running-requests 4, got 9"):
        graphs(cuda_graph_max_bs=9, max_running_requests=4)
    with pytest.raises(ConfigError, match="--cuda-graph-max-bs 9 has no effect: the reference attention"):
        graphs(attention="reference", cuda_graph_max_bs=9)


@pytest.mark.parametrize("options", [{"disable_cuda_graph": True}, {"cuda_graph_max_bs": 8}])
def test_graphs_of_a_cpu_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--(disable-cuda-graph|cuda-graph-max-bs 8) needs --device cuda, got cpu"):
        resolve(EngineConfig.from_options(options), "cpu")
    with pytest.raises(ConfigError, match="--cuda-graph-max-bs 8 has no effect with --disable-cuda-graph"):
        resolve(EngineConfig.from_options({"disable_cuda_graph": True, "cuda_graph_max_bs": 8}), "cuda")


def test_poison_is_noticed() -> None:
    """A step that reads a slot before it sampled: without the option it gets some token, with it its request ends."""
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=3)
    plan = BatchPlan(0, (NewSlot(0, Submit(1, (), params)),), (Chunk(1, 0, 0, 2, (5,), (0,), True),))
    assert not loaded().runner().launch(plan).wait().errors
    (error,) = loaded(debug_uninitialized_reads=True).runner().launch(plan).wait().errors
    assert "not sampled yet" in error.message


def test_debug_poison_changes_no_result() -> None:
    with LLM(any_checkpoint(), **SMALL, enable_overlap=True) as llm:
        expected = [result.token_ids for result in llm.generate([[10, 11, 12]] * 3, GREEDY)]
    with LLM(any_checkpoint(), **SMALL, enable_overlap=True, debug_uninitialized_reads=True) as llm:
        assert [result.token_ids for result in llm.generate([[10, 11, 12]] * 3, GREEDY)] == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", ["triton", "flashinfer"])
def test_a_gpu_gives_the_tokens_of_the_reference(name: str, graphs: bool, overlap: bool) -> None:
    """Replays, two steps in flight, and kernels of our own, all in one engine; FlashInfer where it is."""
    if name == "flashinfer" and find_spec("flashinfer") is None:
        pytest.skip("no FlashInfer here")
    dtype = "float32" if name == "triton" else "bfloat16"
    options = {"max_total_tokens": 4096, "page_size": 64, "device": "cuda", "dtype": dtype, "max_running_requests": 4}
    prompts = [[10 + i, 11, 12, 13 + i] * (3 * i + 1) for i in range(7)]
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    with LLM(any_checkpoint(), **options, attention_backend="reference") as llm:
        expected = [result.token_ids for result in llm.generate(prompts, params)]
    mode = {"enable_overlap": overlap, "disable_cuda_graph": not graphs, "debug_uninitialized_reads": True}
    with LLM(any_checkpoint(), **options, **mode, attention_backend=name) as llm:
        found = [result.token_ids for result in llm.generate(prompts, params)]
    same = sum(a == b for a, b in zip(found, expected, strict=True))
    assert same == len(prompts) if dtype == "float32" else same >= len(prompts) - 2, "bfloat16 may tie"
