"""Replayed steps of a model whose layers with a window have pages of their own, against eager steps over one pool."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny_models
from runner.test_graphs import WORLD, answers, runner_with_graphs, state_for
from sluice.device.queues import inline_queues
from sluice.engine.messages import Submit
from sluice.models.decoder import Decoder
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceState
from sluice.runner.runner import TorchRunner
from sluice.runner.windows import WindowShape
from sluice.testing.device import StaticAttention, late_queues
from sluice.types import SamplingParams, WindowLimits
from worlds import Bench

WINDOWS = WindowLimits(tiny_models.WINDOW, 24)
"""Fewer pages than the other layers have."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("windows")
    tiny_models.qwen2_windows().save_pretrained(folder)
    loaded = load_model(folder, dtype="float64", device=torch.device("cpu"), progress=False)[0]
    assert isinstance(loaded, Decoder)
    return loaded


def windowed_state(model: Decoder) -> DeviceState:
    """Empty state, its KV NaN throughout."""
    layers = model.windowed_layers
    assert layers is not None
    assert layers.are_windowed == (False, True, True)
    shape = replace(
        state_for(model, WORLD).shape, window=WindowShape(layers.length, WINDOWS.num_pages, layers.are_windowed)
    )
    state = DeviceState(shape)
    for layer in state.kv:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    return state


@pytest.mark.parametrize("eager", [(), ("inputs", "compute")])
def test_replays_over_two_page_tables_give_the_tokens_of_one(eager: tuple[str, ...], model: Decoder) -> None:
    expected = answers(WORLD, TorchRunner(model, state_for(model, WORLD), StaticAttention()))
    world = replace(WORLD, windows=WINDOWS, limits=replace(WORLD.limits, lookahead=1), depth=2)
    runner, counted = runner_with_graphs(model, windowed_state(model), late_queues(eager))
    assert answers(world, runner) == expected
    assert len(counted.rows) < 20, f"prompts alone are run eagerly, not {counted.rows}"


def test_padded_rows_touch_nothing(model: Decoder) -> None:
    """They write to the scratch page of each pool. NaN must stay NaN in all others."""
    world, state = replace(WORLD, windows=WINDOWS), windowed_state(model)
    runner, _ = runner_with_graphs(model, state, inline_queues(), (7,))
    bench = Bench.of(world, runner)
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=6)
    bench.link.put(*(Submit(i, (i + 1,), params) for i in range(3)))
    bench.drain(100)
    windows = state.shape.window
    assert windows is not None
    for layer, has_window in zip(state.kv, windows.are_windowed, strict=True):
        pages = windows.num_pages if has_window else state.shape.num_pages
        assert int(torch.isfinite(layer.k[:pages]).all(-1).all(-1).sum()) == 3 * 6
