"""The memory of steps is bounded by the chunk, not by the prompt, and never exceeds that of the largest step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny_models
from peak_memory import PeakMemory
from sluice.assembly.largest_plan import StepLimits, largest_plan
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.assembly.memory import StepTrial, cuda_memory
from sluice.assembly.small_operations import use_triton
from sluice.config import EngineConfig
from sluice.engine.messages import Submit
from sluice.testing import ManualLink
from sluice.types import SamplingParams
from triton_device import each_device, quiet

pytestmark = quiet
CHUNK, PAGE, ROWS = 4, 2, 3
OPTIONS = {"page_size": PAGE, "chunked_prefill_size": CHUNK, "max_running_requests": ROWS, "max_total_tokens": 768}


def loaded_model(folder: Path, device: torch.device) -> LoadedModel:
    """Load a model with attention and all operations by Triton, as on a GPU."""
    options = OPTIONS | {"model": str(folder), "dtype": "float32", "device": str(device), "attention_backend": "triton"}
    loaded = load(EngineConfig.from_options(options), progress=False)
    return replace(loaded, logit_ops=use_triton(loaded.model))  # type: ignore[arg-type]


def trial_of(loaded: LoadedModel) -> StepTrial:
    return StepTrial(loaded.model, loaded.shape, loaded.backend, loaded.logit_ops)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_models.qwen3(num_hidden_layers=1).save_pretrained(folder)
    return folder


def peaks(loaded: LoadedModel, *submits: Submit) -> Iterator[int]:
    """Return the peak memory of each step of these requests, without weights, KV and memory kept by earlier steps."""
    device = loaded.shape.device
    link = ManualLink()
    engine = loaded.engine(link)
    link.put(*submits)
    while True:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            engine.step()
            yield torch.cuda.max_memory_allocated(device) - before
        else:
            with PeakMemory() as memory:
                engine.step()
            yield memory.peak
        if engine.is_idle:
            return


def prompt(length: int) -> tuple[int, ...]:
    return tuple((7 * at) % 120 + 3 for at in range(length))


@pytest.mark.slow
@each_device
def test_a_longer_prompt_takes_no_more(folder: Path, device: torch.device) -> None:
    """No buffer may be as long as the prompt (scores, gathered keys, hidden states); a hidden state takes 128 bytes.

    There are as many page numbers as pages of the prompt, and a few temporary copies of them.
    """
    loaded = loaded_model(folder, device)
    sampling = SamplingParams(max_tokens=2, seed=1, top_p=0.9, prompt_logprobs=1)
    short, long = (max(peaks(loaded, Submit(0, prompt(length), sampling))) for length in (2 * CHUNK + 3, 5 * CHUNK + 3))
    assert long <= short + 8 * (3 * CHUNK)


@each_device
def test_no_step_takes_more_than_the_largest(folder: Path, device: torch.device) -> None:
    """Otherwise the memory kept free for a step would not be enough: three requests with all options, in all phases."""
    loaded = loaded_model(folder, device)
    limits = StepLimits(ROWS, CHUNK + ROWS, 16)
    if device.type == "cuda":
        largest = cuda_memory(trial_of(loaded), limits, (), device).step
    else:
        with PeakMemory() as memory:
            trial_of(loaded).run(limits)
        state = loaded.shape.num_slots * loaded.shape.row_pages * 4
        largest = memory.peak - state
    everything = SamplingParams(
        max_tokens=2, seed=1, top_p=0.8, frequency_penalty=0.3, logprobs=20, prompt_logprobs=20, logit_bias=((3, 1.0),)
    )
    submits = [Submit(number, prompt(length), everything) for number, length in enumerate((10, 3, 5))]
    assert max(peaks(loaded, *submits)) <= largest


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_share_of_a_gpu_is_not_exceeded(folder: Path) -> None:
    """Weights, pool and graphs as the device counts them, and requests that run in the rest."""
    free, total = torch.cuda.mem_get_info()
    share = round(1 - free / total, 2) + 0.1
    options = {"model": str(folder), "device": "cuda", "mem_fraction_static": share, "max_running_requests": 64}
    loaded = load(EngineConfig.from_options(options), progress=False)
    loaded.runner()
    free, total = torch.cuda.mem_get_info()
    assert 1 - free / total <= share + 0.02
    assert list(peaks(loaded, Submit(0, prompt(200), SamplingParams(max_tokens=2, seed=1))))


@pytest.mark.parametrize(
    ("limits", "lengths"),
    [
        (StepLimits(3, 19, 100), [1, 1, 17]),
        (StepLimits(1, 19, 100), [19]),
        (StepLimits(1, 100, 40), [40]),
        (StepLimits(4, 100, 40), [1, 33, 33, 33]),
        (StepLimits(4, 4, 100), [1, 1, 1, 1]),
        (StepLimits(2, 50, 1), [1, 1]),
    ],
)
def test_the_largest_step(limits: StepLimits, lengths: list[int]) -> None:
    """All tokens of a step in as few prompts as possible, since decodes take memory of their own."""
    plan = largest_plan(limits, page_size=8)
    assert [chunk.length for chunk in plan.chunks] == lengths
    assert {chunk.end for chunk in plan.chunks} == {limits.context}
    assert plan.num_decodes == lengths.count(1) if limits.context > 1 else True
