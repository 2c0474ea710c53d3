"""Recurrent states at start: their memory, the reasons, and what is refused beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_families
from sluice import LLM, SamplingParams
from sluice.assembly.load import load
from sluice.assembly.memory import StepLimits, StepTrial
from sluice.assembly.states import StateSizes, state_limits, state_memory
from sluice.attention.states import StatePool, StateSpec
from sluice.config import ConfigError, EngineConfig, MemoryShortage
from sluice.device.memory import Room
from sluice.runner.device_state import DeviceShape
from sluice.runner.logit_ops import TORCH_LOGIT_OPS

SPEC = StateSpec(channels=8, taps=4, dtype=torch.float32, key_heads=2, key_dim=4, value_heads=2, value_dim=4)
SHAPE = DeviceShape(
    num_layers=4,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=10,
    num_slots=16,
    num_pages=1,
    page_size=32,
    row_pages=64,
    dtype=torch.float32,
    device=torch.device("cpu"),
    state=SPEC,
    num_states=3,
    reach=2,
)
SIZES = StateSizes.of(SPEC, 3, 2)
TOKEN_BYTES = 32


def config_of(**options: Any) -> EngineConfig:
    return EngineConfig.from_options(options)


def room_of(size: int) -> Room:
    return Room(size, 2 * size, "so much is free", "cpu")


def test_states_come_first_and_records_take_a_third_of_the_rest() -> None:
    found = state_memory(config_of(), SHAPE, 4, room_of(40 * SIZES.slot_bytes), may_lower=True)
    records = 8 * SIZES.slot_bytes // SIZES.record_bytes
    assert (found.num_slots, found.num_records, found.reasons) == (16, records, {})
    assert found.room.open_bytes == 24 * SIZES.slot_bytes - records * SIZES.record_bytes
    assert "16 recurrent states take" in found.room.reason


def test_slots_that_do_not_fit_lower_the_number_of_requests_with_a_reason() -> None:
    found = state_memory(config_of(), SHAPE, TOKEN_BYTES, room_of(10 * SIZES.slot_bytes), may_lower=True)
    assert found.num_slots == 5
    assert "as many recurrent states as fit into" in found.reasons["max_running_requests"]


def test_a_number_of_requests_that_was_set_is_refused() -> None:
    with pytest.raises(MemoryShortage, match=r"states of 16 requests: those of one take .* --max-running-requests"):
        state_memory(config_of(), SHAPE, TOKEN_BYTES, room_of(10 * SIZES.slot_bytes), may_lower=False)


def test_memory_that_holds_no_slot_is_refused() -> None:
    with pytest.raises(MemoryShortage, match="states of a request"):
        state_memory(config_of(), SHAPE, TOKEN_BYTES, room_of(SIZES.slot_bytes), may_lower=True)


def test_there_are_no_more_records_than_places_in_the_pool() -> None:
    small = replace(SHAPE, row_pages=4)  # 16 requests of 128 tokens, with a place every 64
    found = state_memory(config_of(), small, TOKEN_BYTES, room_of(1 << 30), may_lower=True)
    assert found.num_records == 16 * 128 // 64


def test_a_pool_of_a_given_size_has_records_of_half_its_bytes() -> None:
    tokens = 640 * SIZES.record_bytes // 4 // 32 * 32
    found = state_memory(config_of(max_total_tokens=tokens), SHAPE, 4, room_of(1 << 30), may_lower=True)
    assert 318 <= found.num_records <= 320
    few = state_memory(config_of(max_total_tokens=640), SHAPE, 4, room_of(1 << 30), may_lower=True)
    assert few.num_records == 4


def test_without_a_record_there_is_no_prefix_cache_and_a_reason() -> None:
    few = state_memory(config_of(max_total_tokens=32), SHAPE, TOKEN_BYTES, room_of(1 << 30), may_lower=True)
    assert few.num_records == 0
    assert "no room for a record" in few.reasons["enable_prefix_caching"]
    off = config_of(enable_prefix_caching=False)
    assert state_memory(off, SHAPE, TOKEN_BYTES, room_of(1 << 30), may_lower=True).num_records == 0


def test_records_of_long_contexts_cost_half_of_their_keys_and_values() -> None:
    limits = state_limits(replace(SHAPE, num_records=7), TOKEN_BYTES)
    assert limits is not None
    assert limits.num_records == 7
    assert 2 * SIZES.record_bytes <= limits.spacing * TOKEN_BYTES < 2 * SIZES.record_bytes + TOKEN_BYTES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lfm2")
    tiny_families.FAMILIES["lfm2"](max_position_embeddings=2048).save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_host_bytes": 1 << 20}, "--kv-host-bytes 1048576 is not supported for Lfm2ForCausalLM"),
        ({"kv_disk": "pages"}, "--kv-disk pages is not supported for Lfm2ForCausalLM"),
        (
            {"speculative_algorithm": "draft-model", "speculative_draft_model": "x"},
            "--speculative-algorithm draft-model is not supported for Lfm2ForCausalLM",
        ),
    ],
)
def test_what_is_not_done_is_refused_by_name(folder: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load(config_of(model=str(folder), dtype="float32", max_total_tokens=256, **options), progress=False)


def test_what_is_allocated_is_reported(folder: Path) -> None:
    with LLM(folder, dtype="float32", max_total_tokens=512, max_running_requests=3) as llm:
        report = llm.memory_report()
        assert report == llm.memory_report(100) | {"weights_bytes": report["weights_bytes"]}
        shape = load(config_of(model=str(folder), dtype="float32", max_total_tokens=512), progress=False).shape
        assert shape.state is not None
        sizes = StateSizes.of(shape.state, shape.num_states, shape.reach)
        assert report["state_bytes"] == 3 * sizes.slot_bytes
        assert report["record_bytes"] == min(8, 512 // 64) * sizes.record_bytes
        llm.generate([list(range(3, 80))], SamplingParams(max_tokens=2, temperature=0.0))


def test_the_largest_step_runs_on_states(folder: Path) -> None:
    """As on a GPU, where it is run to see what it takes."""
    loaded = load(config_of(model=str(folder), dtype="float32", max_total_tokens=512), progress=False)
    trial = StepTrial(loaded.model, loaded.shape, loaded.backend, TORCH_LOGIT_OPS)
    trial.run(StepLimits(rows=3, tokens=100, context=300))


def test_a_trial_holds_one_state_for_all_its_slots() -> None:
    """Those of hundreds of slots, which a GPU may have no room for, would count as memory of the step."""
    shared, one = (
        StatePool(SPEC, 2, slots, 1, 3, torch.device("cpu"), is_shared=slots > 1).layers[0].s for slots in (256, 1)
    )
    assert len(shared) == 256
    assert shared.untyped_storage().nbytes() == one.untyped_storage().nbytes()
