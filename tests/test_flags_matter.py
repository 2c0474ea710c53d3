"""Every option changes something that can be seen: two values of it, the same requests, other plans.

An option that is accepted and does nothing is worse than none: its user relies on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from option_worlds import SMALL, Arrival, play, world_of
from sluice.config import ENGINE_GROUPS, FOREIGN, GROUPS, EngineConfig, Switch, flag, options_of
from sluice.engine.messages import Submit
from sluice.testing import resolved


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
    "sparse_policy": Case(OFFLOADED, OFFLOADED | {"sparse_policy": "window:4:4"}),
}
ELSEWHERE = {
    "model": "llm/test_llm.py::test_a_missing_model_is_refused",
    "tokenizer": "test_checkpoint_options.py::test_a_tokenizer_of_its_own",
    "revision": "models/test_hub.py::test_a_revision",
    "download_dir": "test_checkpoint_options.py::test_downloads_go_where_they_should",
    "context_length": "test_checkpoint_options.py::test_a_shorter_context_is_a_limit",
    "generation_config": "test_checkpoint_options.py::test_the_settings_of_a_model",
    "override_generation_config": "test_checkpoint_options.py::test_settings_in_place_of_the_models",
    "seed": "test_checkpoint_options.py::test_a_seed_for_requests_without_one",
    "dtype": "llm/test_llm.py::test_options_have_their_effect",
    "device": "llm/test_llm.py::test_options_that_cannot_be_honoured_are_refused",
    "mem_fraction_static": "device/test_memory.py::test_a_fraction_counts_what_is_there_already",
    "gpu_memory_utilization": "device/test_memory.py::test_a_utilization_counts_steps_too",
    "threads": "llm/test_llm.py::test_threads_compute",
    "cpu_kernels": "kernels/cpu/test_choice.py::test_a_requested_level_is_used",
    "quantization": "models/formats/test_quantization_option.py::test_it_names_what_the_checkpoint_is",
    "model_impl": "models/test_fallback.py::test_a_native_architecture_through_transformers",
    "attention_backend": "assembly/test_select_attention.py::test_it_is_what_attends",
    "kv_cache_dtype": "test_kv_cache_dtype.py::test_only_what_is_kept_is_rounded",
    "disable_cuda_graph": "assembly/test_select_attention.py::test_graphs_of_a_gpu",
    "cuda_graph_max_bs": "assembly/test_select_attention.py::test_graphs_of_a_gpu",
    "debug_uninitialized_reads": "assembly/test_select_attention.py::test_poison_is_noticed",
    "dllm_algorithm": "test_block_diffusion.py::test_the_answer_of_the_reference",
    "dllm_algorithm_config": "test_block_diffusion.py::test_the_answer_of_the_reference",
    "dllm_prefill": "test_block_diffusion.py::test_prompts_by_the_block_as_sglang_cuts_them",
    "tp_size": "process/ranks/test_ranks.py::test_ranks_answer_as_one_process",
    "pp_size": "process/ranks/test_ranks.py::test_ranks_answer_as_one_process",
    "nnodes": "assembly/test_ranks.py::test_machines_have_equal_shares_of_the_ranks",
    "node_rank": "assembly/test_ranks.py::test_machines_have_equal_shares_of_the_ranks",
    "dist_init_addr": "assembly/test_ranks.py::test_addresses",
    "dist_token_file": "cli/test_migration.py::test_sglang",
    "distributed_executor_backend": "process/ranks/test_ray_ranks.py::test_ranks_of_other_machines_have_a_token",
    "kv_events": "process/kv_events/test_process.py::test_a_subscriber_of_a_server_knows_what_is_cached",
    "kv_events_endpoint": "process/kv_events/test_process.py::test_a_subscriber_of_a_server_knows_what_is_cached",
    "kv_events_replay_endpoint": "process/kv_events/test_publisher.py::test_batches_come_in_order_and_again",
    "kv_events_buffer_steps": "process/kv_events/test_publisher.py::test_as_many_batches_are_kept_as_asked_for",
    "kv_events_hwm": "process/kv_events/test_publisher.py::test_a_slow_subscriber_misses_what_is_too_much",
    "kv_events_max_queue_size": (
        "process/kv_events/test_publisher.py::test_batches_that_find_the_queue_full_leave_a_gap"
    ),
    "kv_events_topic": "process/kv_events/test_publisher.py::test_a_topic_is_chosen_by_its_beginning",
    "speculative_draft_model": "parity/test_draft_models.py::test_no_drafter_changes_an_answer",
    "trace": "llm/test_llm_trace.py::test_a_trace_holds_every_step_and_replays",
    "trace_token_ids": "llm/test_llm_trace.py::test_without_token_ids_there_are_none",
    "cost_model": "assembly/test_pacing.py::test_a_later_engine_knows_the_machine",
    "host": "cli/test_cli.py::test_an_address_of_another_machine",
    "port": "cli/test_cli.py::test_a_port_in_use",
    "allowed_hosts": "http/test_tenant_options.py::test_a_server_with_tenants",
    "allowed_origins": "http/test_tls.py::test_a_server_with_a_certificate",
    "ssl_certfile": "http/test_tls.py::test_a_server_with_a_certificate",
    "ssl_keyfile": "http/test_tls.py::test_a_server_with_a_certificate",
    "served_model_name": "http/test_serve.py::test_serve_a_model",
    "api_key": "http/test_serve.py::test_keys_and_bounds_of_a_server",
    "api_key_file": "http/test_serve.py::test_keys_and_bounds_of_a_server",
    "page": "http/test_tenant_options.py::test_a_server_that_trusts_its_clients",
    "enable_admin": "http/test_sleep.py::test_a_server_that_its_administrator_puts_to_sleep",
    "admin_key": "http/test_sleep.py::test_a_server_that_its_administrator_puts_to_sleep",
    "admin_key_file": "http/test_sleep.py::test_a_server_that_its_administrator_puts_to_sleep",
    "cache_isolation": "http/test_tenant_options.py::test_a_server_with_tenants",
    "allow_special_tokens": "http/test_tenant_options.py::test_a_server_that_trusts_its_clients",
    "chat_template": "http/test_tenant_options.py::test_a_server_with_a_template_and_fields_of_its_own",
    "tool_call_parser": "http/test_tools.py::test_a_server_reads_what_its_options_say",
    "lone_tool_calls": "text/parsers/test_lone_calls.py::test_a_server_need_not_read_them",
    "reasoning_parser": "http/test_tools.py::test_a_server_reads_what_its_options_say",
    "strict_fields": "http/test_tenant_options.py::test_a_server_with_a_template_and_fields_of_its_own",
    "max_request_bytes": "http/test_serve.py::test_keys_and_bounds_of_a_server",
    "max_stored_responses": "http/test_serve.py::test_keys_and_bounds_of_a_server",
    "max_stored_response_bytes": "http/test_serve.py::test_keys_and_bounds_of_a_server",
    "max_connections": "http/test_connections.py::test_one_too_many_gets_503_but_its_health_check_is_answered",
    "log_level": "process/test_engine_process.py::test_the_log_level_reaches_the_engine",
    "log_format": "http/test_serve.py::test_what_is_seen_of_a_call",
    "otlp_traces_endpoint": "http/test_serve.py::test_what_is_seen_of_a_call",
    "max_engine_restarts": "http/test_serve.py::test_the_end_of_the_last_engine",
    "idle_unload": "http/test_sleep.py::test_a_server_unloads_an_idle_engine_and_loads_it_for_the_next_request",
    "restart_timeout": "http/test_serve.py::test_a_server_gives_up_if_no_engine_can_be_started",
    "heartbeat_timeout": "http/test_serve.py::test_a_hung_engine_is_replaced_while_its_server_says_so",
    "step_timeout": "http/test_serve.py::test_a_device_that_hangs",
    "start_timeout": "http/test_serve.py::test_a_model_that_loads_too_long_ends_the_server",
    "progress_timeout": "http/test_serve.py::test_an_engine_that_hangs_while_it_loads_is_replaced",
    "drain_timeout": "http/test_serve.py::test_a_drain_is_bounded",
    "enable_fault_injection": "http/test_options.py::test_refused",
    "inject_fault": "http/test_serve.py::test_a_hung_engine_is_replaced_while_its_server_says_so",
}


@pytest.mark.parametrize("name", CASES)
def test_it_changes_what_happens(name: str) -> None:
    one, other = (SMALL | options for options in CASES[name][:2])
    changed = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    assert changed == {name}
    arrivals = CASES[name].arrivals
    assert play(world_of(one), arrivals) != play(world_of(other), arrivals)


def test_every_option_has_a_case() -> None:
    """An option that `config` gained and this file did not."""
    of = {group: [name for name, _ in options_of(kind)] for group, kind in GROUPS.items()}
    of["speculative"].remove("speculative_draft_model")
    assert list(CASES) == [*of["cache"], *of["scheduler"], *of["speculative"], *of["offload"]]
    elsewhere = [
        *of["model"],
        *of["diffusion"],
        *of["parallel"],
        *of["kv_events"],
        "speculative_draft_model",
        *of["trace"],
        *of["server"],
    ]
    assert list(ELSEWHERE) == elsewhere


def test_the_cases_elsewhere_exist() -> None:
    """A test that was renamed or deleted, and an option that no test is left for."""
    for place in set(ELSEWHERE.values()):
        file, _, test = place.partition("::")
        assert f"def {test}(" in (Path(__file__).parent / file).read_text(), place


ALIASES = [
    (alias, name) for group in ENGINE_GROUPS for name, meta in options_of(GROUPS[group]) for alias in meta.aliases
]
EXAMPLES: dict[str, Any] = {
    "model": "some/model",
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
