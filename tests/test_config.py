"""Options: what is derived from what, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.assembly.resolve import resolve as resolve_config
from sluice.config import ConfigError, EngineConfig
from sluice.types import CHUNKS_BY_TIME, ITL_AUTO


def resolve(device_type: str = "cpu", /, **options: Any) -> EngineConfig:
    return resolve_config(EngineConfig.from_options(options), device_type).config


def test_the_defaults_differ_by_device() -> None:
    cpu, cuda = resolve("cpu"), resolve("cuda")
    assert (cpu.cache.page_size, cuda.cache.page_size) == (32, 64)
    assert (cpu.scheduler.chunked_prefill_size, cuda.scheduler.chunked_prefill_size) == (128, 2048)
    assert (cpu.scheduler.max_running_requests, cuda.scheduler.max_running_requests) == (64, 256)
    assert cpu.scheduler.max_batch_tokens == 128 + 64


@given(
    st.sampled_from(
        [
            "chunked_prefill_size",
            "max_batch_tokens",
            "max_running_requests",
            "max_total_tokens",
            "max_prefill_tokens",
            "long_prefill_token_threshold",
            "max_prefill_requests",
        ]
    ),
    st.integers(2, 5000),
)
def test_any_one_size_alone_is_valid_and_kept(name: str, value: int) -> None:
    config = resolve(**{name: value})
    limits = config.scheduler.limits()
    group = config.cache if name == "max_total_tokens" else config.scheduler
    assert getattr(group, name) == value
    assert limits.max_running_requests < limits.max_batch_tokens
    assert config.cache.page_size is not None
    assert config.cache.page_size <= min(limits.chunked_prefill_size, limits.max_batch_tokens)
    assert config.cache.page_size <= limits.max_batch_tokens - limits.max_running_requests or name != "max_batch_tokens"


@pytest.mark.parametrize("size", [1, 2, 64, 1024])
def test_any_page_size_alone_is_valid(size: int) -> None:
    config = resolve(page_size=size)
    assert config.cache.page_size == size
    assert config.scheduler.limits().chunked_prefill_size >= size


@pytest.mark.parametrize("off", [-1, 0])
def test_chunking_is_turned_off_by_minus_one_and_nought(off: int) -> None:
    assert resolve(chunked_prefill_size=off).scheduler.limits().chunked_prefill_size == 0


def test_aliases_and_dashes() -> None:
    config = resolve(**{"max-num-seqs": 3, "max_num_batched_tokens": 77, "enable-mixed-chunk": True})
    assert config.scheduler.limits() == resolve(max_running_requests=3, max_batch_tokens=77).scheduler.limits()
    assert resolve(enable_mixed_chunk=False).scheduler.schedule == "prefill-first"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"no_such": 1}, "unknown option 'no_such'; docs/flags.md has all"),
        ({"max_model_length": 2}, "unknown option 'max_model_length'; did you mean max_model_len?"),
        (
            {"max_num_seqs": 2, "max_running_requests": 3},
            "--max-num-seqs 2 and --max-running-requests 3 contradict each other; give one of them",
        ),
        ({"schedule": "random"}, "--schedule must be one of mixed, prefill-first, got 'random'"),
        ({"dtype": "int3"}, "--dtype must be one of auto, float64"),
        ({"page_size": 3}, "--page-size must be a power of two of at most 1024, got 3"),
        ({"page_size": 2048}, "--page-size must be a power of two of at most 1024, got 2048"),
        ({"page_size": 0}, "--page-size must be at least 1, got 0"),
        ({"page_size": 64, "chunked_prefill_size": 32}, "--chunked-prefill-size must be at least one page"),
        ({"page_size": 64, "max_total_tokens": 32}, "--max-total-tokens must be at least one page"),
        ({"chunked_prefill_size": -2}, "--chunked-prefill-size must be at least 1, or -1 or 0 for off, got -2"),
        ({"max_batch_tokens": 0}, "--max-batch-tokens must be at least 1, got 0"),
        ({"max_batch_tokens": 1}, "--max-batch-tokens must be larger than --max-running-requests"),
        ({"max_batch_tokens": 8, "max_running_requests": 8}, "got 8 with 8 running"),
        (
            {"max_batch_tokens": 16, "page_size": 16},
            "--max-batch-tokens less running decodes must be at least one page, got 15 with --page-size 16",
        ),
        (
            {"max_batch_tokens": 20, "max_running_requests": 8, "page_size": 16},
            "--max-batch-tokens less running decodes must be at least one page, got 12 with --page-size 16",
        ),
        ({"page_size": 64, "max_prefill_tokens": 32}, "--max-prefill-tokens must be at least one page, got 32"),
        ({"page_size": 64, "long_prefill_token_threshold": 32}, "--long-prefill-token-threshold must be at least one"),
        ({"max_prefill_tokens": 0}, "--max-prefill-tokens must be at least 1, got 0"),
        ({"max_prefill_requests": -1}, "--max-prefill-requests must be at least 1, got -1"),
        ({"max_partial_prefills": 0}, "--max-partial-prefills must be at least 1, got 0"),
        ({"max_partial_prefills": 3, "max_running_requests": 2}, "must be at most --max-running-requests 2, got 3"),
        ({"max_partial_prefills": 2, "chunked_prefill_size": -1}, "needs prompts that may be cut"),
        ({"long_prefill_token_threshold": 64, "chunked_prefill_size": 0}, "needs prompts that may be cut"),
        ({"schedule_policy": "sjf"}, "--schedule-policy must be one of fcfs, lpm, priority, deadline, got 'sjf'"),
        ({"schedule_policy": "lpm", "enable_prefix_caching": False}, "lpm needs the prefix cache, but it is off"),
        ({"schedule_low_priority_values_first": True}, "needs --schedule-policy priority, got 'fcfs'"),
        ({"enable_priority_preemption": True}, "needs --schedule-policy priority or deadline, got 'fcfs'"),
        (
            {"priority_classes": "batch:ttft=1h", "schedule_policy": "fcfs"},
            "--priority-classes batch:ttft=1h needs --schedule-policy deadline, got 'fcfs'",
        ),
        ({"priority_classes": "urgent:ttft=1s"}, "classes are interactive, standard, batch, got 'urgent'; the form is"),
        ({"priority_classes": ""}, "classes are interactive, standard, batch, got ''"),
        ({"priority_classes": "batch"}, "the class batch has no target; the form is NAME:ttft=TIME"),
        ({"priority_classes": "batch:ttft=1h,batch:ttft=2h"}, "the class batch is given twice"),
        ({"priority_classes": "batch:1h"}, "a target of batch is ttft or itl, got '1h'"),
        ({"priority_classes": "batch:ttft=soon"}, "of batch must be a time such as 500ms, 10s or 1h, got 'soon'"),
        ({"priority_classes": "batch:ttft=0s"}, "of batch must be a time such as 500ms, 10s or 1h, got '0s'"),
        ({"priority_classes": f"batch:ttft={'9' * 12}h"}, "of batch must be a time such as"),
        (
            {"priority_classes": "interactive:ttft=20s"},
            "the TTFT target of interactive, 20 s, must not be longer than that of standard, 10 s",
        ),
        ({"priority_classes": "batch:itl=4x"}, r"itl=4x of batch needs a target \(--itl-target TIME\)"),
        (
            {"priority_classes": "batch:itl=0.5x", "itl_target": "100ms"},
            r"the ITL target of batch, 0\.5x, is below --itl-target, 0\.1 s",
        ),
        ({"priority_classes": "batch:itl=50ms", "itl_target": "100ms"}, "of batch, 50ms, is below --itl-target"),
        (
            {"priority_classes": "batch:itl=4x", "itl_target": "auto"},
            "the ITL target of batch must be a time beside an --itl-target that follows decodes, got '4x'",
        ),
        ({"priority_classes": "batch:itl=x", "itl_target": "1s"}, "or 1h, or a multiple such as 4x, got 'x'"),
        ({"reserve": "half"}, "--reserve must be one of ratio, full, got 'half'"),
        ({"reserve": "full", "schedule_conservativeness": 1.0}, "needs --reserve ratio, got 'full'"),
        ({"schedule_conservativeness": -0.1}, "must be a number of at least 0, got -0.1"),
        ({"enable_overlap": True, "depth": 1}, "--enable-overlap means at least --depth 2"),
        ({"enable_overlap": True, "lookahead": 0}, "--enable-overlap means .* --lookahead 1"),
        ({"max_running_requests": -1}, "--max-running-requests must be at least 1, got -1"),
        ({"depth": 0}, "--depth must be at least 1, got 0"),
        ({"depth": 2, "lookahead": 2}, "--lookahead must be from 0 to depth - 1 = 1, got 2"),
        ({"lookahead": -1}, "--lookahead must be from 0 to depth - 1 = 0, got -1"),
        ({"page_size": "8"}, "--page-size must be an integer, got '8'"),
        ({"page_size": True}, "--page-size must be an integer, got True"),
        ({"enable_prefix_caching": 1}, "--enable-prefix-caching must be true or false, got 1"),
        ({"device": 3}, "--device must be a text, got 3"),
        ({"dynamic_chunking_smoothing": 0.5}, "--dynamic-chunking-smoothing 0.5 needs --dynamic-chunking"),
        ({"dynamic_chunking": 0, "dynamic_chunking_smoothing": 0.0}, "must be above 0 and at most 1, got 0.0"),
        ({"dynamic_chunking": 0, "dynamic_chunking_smoothing": 1.5}, "must be above 0 and at most 1, got 1.5"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(**options)


def test_limits_need_a_resolved_config() -> None:
    with pytest.raises(AssertionError, match="not resolved"):
        EngineConfig().scheduler.limits()


def test_dynamic_chunking_needs_chunks() -> None:
    with pytest.raises(ConfigError, match="--dynamic-chunking 0 needs prompts that may be cut"):
        resolve(chunked_prefill_size=-1, dynamic_chunking=0)
    with pytest.raises(ConfigError, match="--dynamic-chunking must be a position, or 0, got -1"):
        resolve(dynamic_chunking=-1)
    limits = resolve(dynamic_chunking=300).scheduler.limits()
    assert (limits.dynamic_chunking, limits.dynamic_chunking_smoothing) == (300, 0.75)
    assert resolve(enable_dynamic_chunking=True).scheduler.limits().dynamic_chunking == CHUNKS_BY_TIME
    assert resolve().scheduler.limits().dynamic_chunking == 0


@pytest.mark.parametrize("name", ["schedule_policy", "scheduling_policy", "scheduling-policy"])
def test_the_policy_beside_priorities_under_any_name(name: str) -> None:
    """The policy that priorities include would contradict them under vLLM's name, in `LLM(...)`."""
    config = EngineConfig.from_options({"enable_priority_scheduling": True, name: "fcfs"})
    assert config == EngineConfig.from_options({"schedule_policy": "priority"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"itl_target": "1x"}, "a number of steps from 2x to 100x, auto or off, got '1x'"),
        ({"itl_target": "soon"}, "a number of steps from 2x to 100x, auto or off, got 'soon'"),
        ({"itl_target": "200"}, "a number of steps from 2x to 100x, auto or off, got '200'"),
        ({"itl_target": "0ms"}, "--itl-target must be a time"),
        ({"itl_target": "1s", "chunked_prefill_size": -1}, "--itl-target 1s needs prompts that may be cut"),
        ({"itl_target": "1s", "schedule": "prefill-first"}, "--itl-target 1s needs --schedule mixed"),
        ({"itl_target": "1s", "dynamic_chunking": 0}, "--dynamic-chunking 0 has no effect with --itl-target 1s"),
        ({"itl_target": "1s", "itl_quantile": 1.0}, "--itl-quantile must be from 0.5 to 0.999, got 1.0"),
        ({"itl_quantile": 0.9}, "--itl-quantile 0.9 needs a target"),
        ({"itl_target": "off", "cost_model": "file"}, "--cost-model file needs a target"),
    ],
)
def test_an_itl_target_that_cannot_be_kept_is_refused(options: dict[str, Any], message: str) -> None:
    """It would be accepted, and streams would stand still for longer all the same."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        resolve(**options)


def test_an_itl_target_is_a_duration() -> None:
    """And chunks may be larger with it, as their time is known; a size that is set is the most."""
    assert resolve(itl_target="off").scheduler.limits().itl_target == 0
    for text, micros in (("auto", ITL_AUTO), ("12x", -12), ("900us", 900), ("200ms", 200_000), ("1.5s", 1_500_000)):
        assert resolve(itl_target=text).scheduler.limits().itl_target == micros
    assert resolve(itl_target="1s").scheduler.limits().chunked_prefill_size == 512
    assert resolve(itl_target="1s", chunked_prefill_size=64).scheduler.limits().chunked_prefill_size == 64
