"""Layers with a window: which have pages of their own, how many these are, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_families
import tiny_models
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.config import EngineConfig
from sluice.device.memory import PoolRequest, WindowRequest, cpu_room, pool_pages
from sluice.models.plan import LayerPlan, StateKind, StatePlan
from sluice.models.windows import WindowedLayers, windowed_layers
from sluice.types.footprint import KVSizes

PAGE = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma3")
    tiny_families.gemma3().save_pretrained(path)
    return path


def loaded(folder: Path, **options: Any) -> LoadedModel:
    asked = {"model": str(folder), "dtype": "float64", "max_running_requests": 3, "page_size": 4} | options
    return load(EngineConfig.from_options(asked), progress=False)


def test_the_layers_of_a_window() -> None:
    """A layer that reads the keys of another one has no pages; one without keys is in no group."""
    state = StatePlan(kind=StateKind.SHORT_CONV, inner_size=4)
    plans = [
        LayerPlan(1.0, window=5),
        LayerPlan(1.0),
        LayerPlan(1.0, state=state),
        LayerPlan(1.0, window=9),
        LayerPlan(1.0, window=9, donor=3),
        LayerPlan(1.0, donor=1),
    ]
    assert windowed_layers(plans) == WindowedLayers(9, (True, False, True))
    assert windowed_layers(plans[1:3]) is None
    assert windowed_layers([LayerPlan(1.0, window=5), LayerPlan(1.0, donor=0)]) is None, "its reader sees all"


def test_a_model_whose_layers_all_have_a_window_keeps_a_target(tmp_path: Path) -> None:
    """Such as Phi-3: no key of a whole context is held, and the price of one was 0, which ended the start."""
    tiny_families.phi3().save_pretrained(tmp_path)
    model = loaded(tmp_path, max_total_tokens=512, itl_target="1ms")
    assert model.pacing is not None
    assert model.info.kv_sizes.token_bytes == 0 < model.pacing.prior.key


def test_pages_and_bytes_of_a_model(folder: Path) -> None:
    """Three of five layers see 9 positions; the pool that was asked for counts the tokens of the two others."""
    model = loaded(folder, max_total_tokens=4096, chunked_prefill_size=16, max_batch_tokens=16)
    window, sizes = model.shape.window, model.info.kv_sizes
    assert window is not None
    assert window.are_windowed == (True, True, False, True, False)
    reserve = 3 * (2 + 2) + 16 // 4  # requests: 8 positions before a query and two cut pages; tokens of a step
    assert (model.shape.num_pages, window.num_pages) == (1024, reserve + 1024 // 8)
    shapes = model.shape.layers
    assert [shape.num_pages for shape in shapes] == [157 - 12, 157 - 12, 1024, 157 - 12, 1024]
    assert sizes.num_layers == 2
    runner = model.runner()
    info = model.built(runner)
    assert info.memory.pool_bytes == info.predicted_memory(100).pool_bytes
    assert info.memory.window_bytes == info.window_bytes == 3 * 145 * 4 * sizes.layer_token_bytes
    assert "a window of 9 have 576 tokens of their own" in info.reasons["max_total_tokens"]


def test_a_pool_is_larger_by_what_windows_save(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.assembly.memory.free_memory", lambda device: 16 << 20)
    options = {"chunked_prefill_size": 16, "max_batch_tokens": 256, "max_running_requests": 200}
    own = loaded(folder, **options).shape
    monkeypatch.setattr("sluice.assembly.memory.windows_of", lambda *args, **options: (None, None))
    whole = loaded(folder, **options).shape
    assert own.num_pages > whole.num_pages
    used = [sum(each.num_pages for each in shape.layers) for shape in (own, whole)]
    assert used[0] <= used[1] + 3 + 5, "with the page of zeros"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kv_host_bytes": 1 << 20, "max_total_tokens": 512}, "tiers copy pages of all layers"),
        ({"max_model_len": 9, "max_total_tokens": 512}, "no request is longer than the window of 9"),
    ],
)
def test_why_layers_keep_the_whole_context(folder: Path, options: dict[str, Any], why: str) -> None:
    model = loaded(folder, **options)
    assert model.shape.window is None
    assert model.windows is None
    assert model.info.reasons["max_total_tokens"].endswith(f"layers with a window keep the whole context: {why}")


def test_pages_of_other_engines_have_all_layers(folder: Path) -> None:
    config = EngineConfig.from_options({"model": str(folder), "dtype": "float64", "max_total_tokens": 512})
    assert load(config, progress=False, shares_pages=True).shape.window is None


def test_a_model_without_windows_says_nothing_of_them(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    model = loaded(tmp_path, max_total_tokens=512)
    assert model.shape.window is None
    assert "window" not in model.info.reasons.get("max_total_tokens", "")


@given(
    own=st.integers(0, 100),
    windowed=st.integers(1, 100),
    reserve=st.integers(1, 300),
    room=st.integers(0, 100_000),
)
def test_a_pool_takes_all_of_its_room(own: int, windowed: int, reserve: int, room: int) -> None:
    """And not a byte more; and never fewer pages than if all layers had as many."""
    request = WindowRequest(windowed, reserve, 8)
    pages = request.others_in(room, own)
    assert own * pages + windowed * request.pages_beside(pages) <= room
    assert pages >= room // (own + windowed)
    more = pages + 8  # each eighth page has one of the window's beside it
    assert own * more + windowed * request.pages_beside(more) > room


def test_a_pool_of_32_thousand_tokens_takes_less_than_a_third() -> None:
    """Of a model like Gemma 3 270M: 15 of 18 layers with a window of 512. The same memory holds more contexts."""
    layer = KVSizes(1, 1, 256, 2)
    windows = WindowRequest(15 * PAGE * layer.token_bytes, reserve=18 + 512 // PAGE, share=8)
    open_request = PoolRequest(PAGE, 3 * layer.token_bytes, 32768, 1, None, windows)
    whole = 32768 * 18 * layer.token_bytes
    assert open_request.bytes_of(32768 // PAGE) <= 0.3 * whole
    many = replace(open_request, max_running_requests=64)
    assert pool_pages(many, cpu_room(20 * whole)) >= 3 * 10 * 32768 // PAGE
