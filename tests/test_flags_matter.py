"""Every option changes something that can be seen: two values of it, the same requests, other plans.

An option that is accepted and does nothing is worse than none: its user relies on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from option_worlds import SMALL, play, world_of
from sluice.config import ENGINE_GROUPS, FOREIGN, GROUPS, EngineConfig, Switch, flag, options_of
from sluice.engine.messages import Submit
from sluice.testing import resolved
from worlds import Arrival


def ask(request_id: int, tokens: int, outputs: int = 4, *, first: int = 1, at: int = 0, priority: int = 0) -> Arrival:
    """A request whose prompt is `first` and then zeros: those with the same `first` begin alike."""
    prompt = (first, *[0] * (tokens - 1))
    return Arrival(at, Submit(request_id, prompt, resolved(outputs), priority=priority))


A_FEW = [ask(0, 6, 8), ask(1, 30, first=0), ask(2, 7)]
OVER_THE_POOL = [ask(0, 8, 60), ask(1, 8, 30, first=0, at=20)]
"""The outputs of both do not fit, what is left of them when the second arrives nearly does."""


class Case(NamedTuple):
    one: dict[str, Any]
    other: dict[str, Any]
    arrivals: Sequence[Arrival] = A_FEW


BY_PRIORITY = {"schedule_policy": "priority", "max_running_requests": 1}
RANKED = [ask(0, 5), ask(1, 5, first=0, priority=1), ask(2, 6, priority=2)]
ON_DISK = {"kv_disk": "pages"}
SHRINKING = {"dynamic_chunking": 4}
TARGET = {"itl_target": "3ms"}
NGRAM = {"speculative_algorithm": "ngram"}
REPEATING = [Arrival(20 * number, Submit(number, (0, 1, 1, 0, 1, 0, 0), resolved(24))) for number in range(3)]
OFFLOADED = ON_DISK | {"offload_above": 12, "ring_block_tokens": 4}
CASES = {
    "page_size": Case({"page_size": 4}, {"page_size": 8}),
    "max_total_tokens": Case({"max_total_tokens": 40}, {"max_total_tokens": 96}),
    "enable_prefix_caching": Case({}, {"enable_prefix_caching": False}),
    "kv_host_bytes": Case({}, {"kv_host_bytes": 20_000}),
    "kv_disk": Case({}, {"kv_disk": "pages"}),
    "kv_disk_bytes": Case(ON_DISK | {"kv_disk_bytes": 2_000}, ON_DISK | {"kv_disk_bytes": 90_000}),
    "kv_write_policy": Case(ON_DISK, ON_DISK | {"kv_write_policy": "selective"}),
    "schedule": Case({"schedule": "mixed"}, {"schedule": "prefill-first"}),
    "chunked_prefill_size": Case({"chunked_prefill_size": 8}, {"chunked_prefill_size": 16}),
    "dynamic_chunking": Case({"dynamic_chunking": 4}, {"dynamic_chunking": 1000}),
    "dynamic_chunking_smoothing": Case(SHRINKING, SHRINKING | {"dynamic_chunking_smoothing": 0.1}, [ask(0, 50)]),
    "itl_target": Case({}, {"itl_target": "3ms"}),
    "sliced_chunk_size": Case(TARGET | {"sliced_chunk_size": 0}, TARGET | {"sliced_chunk_size": 16}, [ask(0, 50)]),
    "itl_quantile": Case(TARGET | {"itl_quantile": 0.5}, TARGET | {"itl_quantile": 0.99}),
    "max_batch_tokens": Case({}, {"max_batch_tokens": 12}),
    "max_running_requests": Case({"max_running_requests": 1}, {"max_running_requests": 4}),
    "max_prefill_tokens": Case({}, {"max_prefill_tokens": 8}),
    "long_prefill_token_threshold": Case({}, {"long_prefill_token_threshold": 8}),
    "max_prefill_requests": Case({}, {"max_prefill_requests": 1}),
    "max_partial_prefills": Case({"max_partial_prefills": 1}, {"max_partial_prefills": 2}),
    "reserve": Case({"reserve": "ratio"}, {"reserve": "full"}, OVER_THE_POOL),
    "schedule_conservativeness": Case(
        {"schedule_conservativeness": 0.0}, {"schedule_conservativeness": 1.4}, OVER_THE_POOL
    ),
    "schedule_policy": Case(
        {"schedule_policy": "fcfs", "max_running_requests": 1},
        {"schedule_policy": "lpm", "max_running_requests": 1},
        [ask(0, 9), ask(1, 9, first=0), ask(2, 10)],
    ),
    "priority_classes": Case(
        {"priority_classes": "interactive:ttft=9s", "max_running_requests": 1},
        {"priority_classes": "interactive:ttft=1s", "max_running_requests": 1},
        [
            Arrival(0, Submit(0, (1, 0), resolved(4), arrived=1)),
            Arrival(0, Submit(1, (0, 0), resolved(4), priority_class="interactive", arrived=2_000_000)),
        ],
    ),
    "schedule_low_priority_values_first": Case(
        BY_PRIORITY, BY_PRIORITY | {"schedule_low_priority_values_first": True}, RANKED
    ),
    "enable_priority_preemption": Case(
        BY_PRIORITY,
        BY_PRIORITY | {"enable_priority_preemption": True},
        [ask(0, 5, 9), ask(1, 5, first=0, at=3, priority=1)],
    ),
    "max_queued_requests": Case({}, {"max_queued_requests": 1}, [ask(number, 5) for number in range(6)]),
    "max_queued_tokens": Case({}, {"max_queued_tokens": 20}),
    "enable_overlap": Case({}, {"enable_overlap": True}),
    "depth": Case({"depth": 1}, {"depth": 2}),
    "lookahead": Case({"depth": 2}, {"depth": 2, "lookahead": 1}),
    "speculative_algorithm": Case({}, NGRAM, REPEATING),
    "speculative_num_steps": Case(NGRAM, NGRAM | {"speculative_num_steps": 1}, REPEATING),
    "speculative_num_draft_tokens": Case(NGRAM, NGRAM | {"speculative_num_draft_tokens": 2}, REPEATING),
    "speculative_ngram_min_match_window_size": Case(
        NGRAM, NGRAM | {"speculative_ngram_min_match_window_size": 6}, REPEATING
    ),
    "speculative_ngram_max_match_window_size": Case(
        NGRAM, NGRAM | {"speculative_ngram_max_match_window_size": 2}, REPEATING
    ),
    "speculative_ngram_capacity": Case(NGRAM, NGRAM | {"speculative_ngram_capacity": 0}, REPEATING),
    "offload_above": Case(ON_DISK, ON_DISK | {"offload_above": 20}),
    "ring_blocks": Case(OFFLOADED | {"ring_blocks": 2}, OFFLOADED | {"ring_blocks": 8}),
    "ring_block_tokens": Case(OFFLOADED, OFFLOADED | {"ring_block_tokens": 8}),
    "sparse_policy": Case(OFFLOADED, OFFLOADED | {"sparse_policy": "window:4:4"}, [ask(0, 80)]),
}


@pytest.mark.parametrize("name", CASES)
def test_it_changes_what_happens(name: str) -> None:
    one, other = (SMALL | options for options in CASES[name][:2])
    changed = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    assert changed == {name}
    arrivals = CASES[name].arrivals
    assert play(world_of(one), arrivals) != play(world_of(other), arrivals)


def test_every_option_has_a_case() -> None:
    """An option of the cache or of the scheduler that `config` gained and this file did not."""
    groups = ("cache", "scheduler", "speculative", "offload")
    options = [name for group in groups for name, _ in options_of(GROUPS[group])]
    assert [*CASES] == [name for name in options if name != "speculative_draft_model"]


ALIASES = [
    (alias, name) for group in ENGINE_GROUPS for name, meta in options_of(GROUPS[group]) for alias in meta.aliases
]
EXAMPLES: dict[str, Any] = {
    "model": "some/model",
    "lora_modules": ("a=some/adapter",),
    "tokenizer": "some/tokenizer",
    "speculative_draft_model": "some/draft",
    "generation_config": "none",
    "kv_write_policy": "selective",
    "schedule_policy": "lpm",
    "enable_overlap": True,
    "disable_cuda_graph": True,
    "debug_uninitialized_reads": True,
}


@pytest.mark.parametrize(("alias", "name"), ALIASES)
def test_an_alias_means_the_same(alias: str, name: str) -> None:
    value = EXAMPLES.get(name, 16)
    assert EngineConfig.from_options({alias: value}) == EngineConfig.from_options({name: value}) != EngineConfig()


@pytest.mark.parametrize(
    ("name", "switch"), [(name, item) for name, item in FOREIGN.items() if isinstance(item, Switch)]
)
def test_a_switch_sets_its_option(name: str, switch: Switch) -> None:
    for given, value in ((True, switch.on), (False, switch.off)):
        expected = {} if value is None else {switch.option: value}
        assert EngineConfig.from_options({flag(name)[2:]: given}) == EngineConfig.from_options(expected)
    assert switch.on != switch.off
