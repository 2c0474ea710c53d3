"""Layers with a window and pages of their own: the same answers as with all pages, whatever is in pages of no one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_families
import tiny_models
from recording import RecordingRunner
from slow import products
from sluice import LLM, SamplingParams
from sluice.assembly import memory
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.config import EngineConfig
from sluice.engine.protocols import Pending, Runner
from sluice.kv.manager import KVManager
from sluice.runner.device_state import DeviceState
from sluice.testing import ManualLink
from sluice.types import BatchPlan, Submit

GREEDY = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True, seed=0)
FIRST = tiny_models.prompt(49)
PROMPTS = [FIRST, tiny_models.prompt(11, 1), FIRST[:33] + tiny_models.prompt(8, 2), tiny_models.prompt(7, 3) * 5]
"""Longer than a window, and some of them begin alike."""
Folder = Callable[[int], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A tiny Gemma 3 in a folder, with a head size."""
    saved: dict[int, Path] = {}

    def found(head_dim: int) -> Path:
        if head_dim not in saved:
            saved[head_dim] = tmp_path_factory.mktemp("gemma3")
            tiny_families.gemma3(head_dim=head_dim).save_pretrained(saved[head_dim])
        return saved[head_dim]

    return found


@contextmanager
def one_group() -> Iterator[None]:
    """Let all layers have the same pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "windows_of", lambda *args, **options: (None, None))
        yield


def loaded(folder: Path, **options: Any) -> LoadedModel:
    asked = {"model": str(folder), "max_running_requests": 3, "max_total_tokens": 512} | options
    return load(EngineConfig.from_options(asked), progress=False)


@dataclass
class Spoiling:
    """Fills every free page with NaN before each step, in all layers."""

    inner: Runner
    state: DeviceState
    kv: KVManager
    spoiled: int = 0

    def launch(self, plan: BatchPlan) -> Pending:
        assert self.kv.windows is not None
        assert self.state.shape.window is not None
        windowed, free = self.state.shape.window.are_windowed, self.kv.windows.pool.free_pages()
        self.spoiled += len(free)
        for layer, has_window in zip(self.state.kv, windowed, strict=True):
            for page in free if has_window else self.kv.pool.free_pages():
                layer.k[page].fill_(torch.nan)
                layer.v[page].fill_(torch.nan)
        return self.inner.launch(plan)

    def close(self) -> None:
        self.inner.close()


def answers(model: LoadedModel, *, spoils: bool = False, times: int = 2) -> list[list[int]]:
    """Generate for the prompts, the second time with what is cached of the first."""
    link, state = ManualLink(), model.state()
    runner: Any = RecordingRunner(model.runner(state=state))
    engine = model.engine(link, runner)
    if spoils:
        runner = engine.runner = Spoiling(runner, state, engine.scheduler.state.kv)
    for turn in range(times):
        link.put(*(Submit(10 * turn + i, prompt, GREEDY) for i, prompt in enumerate(PROMPTS)))
        engine.step()
        while not engine.is_idle:
            engine.step()
    assert not spoils or runner.spoiled > 0
    return [list(link.tokens(10 * turn + i)) for turn in range(times) for i in range(len(PROMPTS))]


@products(
    kind=["float64", "bfloat16", "int8"],
    page_size=[16, 32],
    options=[
        {},
        {"chunked_prefill_size": 33, "depth": 2, "lookahead": 1},
        {"itl_target": "1ms", "sliced_chunk_size": 32},
        {"speculative_algorithm": "ngram", "speculative_num_steps": 3},
        {"enable_prefix_caching": False, "chunked_prefill_size": 32},
    ],
)
def test_pages_of_their_own_change_no_answer(
    kind: str, page_size: int, options: dict[str, Any], folder: Folder
) -> None:
    """In float64 the reference attends; in bfloat16 the compiled kernels, which look at whole groups of keys, also at
    those before a window, and whose decodes are replayed."""
    dtype = {"dtype": "float64"} if kind == "float64" else {"dtype": "bfloat16"}
    if kind == "int8":
        dtype["kv_cache_dtype"] = "int8"
    asked = {"page_size": page_size, **dtype, **options}
    own = loaded(folder(16), **asked)
    assert own.shape.window is not None
    assert own.shape.window.length == tiny_models.WINDOW
    with one_group():
        whole = loaded(folder(16), **asked)
        assert whole.shape.window is None
    assert answers(own, spoils=kind != "int8") == answers(whole)


def test_pages_are_given_up_as_the_window_moves(folder: Folder) -> None:
    """A request of hundreds of tokens holds a few pages of layers with a window."""
    model = loaded(folder(12), dtype="float64", page_size=4, chunked_prefill_size=16, enable_prefix_caching=False)
    link = ManualLink()
    engine = model.engine(link)
    link.put(Submit(0, tiny_models.prompt(40), GREEDY))
    windows = engine.scheduler.state.kv.windows
    assert windows is not None
    most = 0
    while not most or not engine.is_idle:
        engine.step()
        most = max(most, windows.pool.num_pages - windows.pool.num_free)
    assert most <= 2 + 2 + 16 // 4  # 8 positions before its own, a cut page at each end, and a chunk
    assert link.tokens(0)


def test_a_prefix_is_found_in_the_middle_of_a_conversation(folder: Folder) -> None:
    """A question is asked again in other words: the turns before it are cached, and their windows, too."""
    with LLM(folder(12), dtype="float64", page_size=4, max_total_tokens=1024) as llm:
        context = tiny_models.prompt(30)
        ends = []
        for turn in range(4):
            result = llm.generate([context], GREEDY)[0]
            assert result.num_cached_tokens >= (0 if turn == 0 else ends[-1] - 4)
            context = [*context, *result.token_ids, *tiny_models.prompt(6, turn)]
            ends.append(len(context) - 7)  # the last token of an answer is not computed
        again = llm.generate([[*context[: ends[1]], *tiny_models.prompt(9, 9)]], GREEDY)[0]
        assert again.num_cached_tokens >= ends[1] - 4
    with one_group(), LLM(folder(12), dtype="float64", page_size=4, max_total_tokens=1024) as llm:
        fresh = llm.generate([[*context[: ends[1]], *tiny_models.prompt(9, 9)]], GREEDY)[0]
    assert list(again.token_ids) == list(fresh.token_ids)
