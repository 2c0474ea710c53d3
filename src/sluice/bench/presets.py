"""Workloads by name, and what explicit options change about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sluice.bench.options import WorkloadOptions, check_all
from sluice.config import ConfigError, flag

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # RoseLLM's published measurement of a prefill budget: three short prompts, then one 64 times as long.
    "rosellm": {
        "num_requests": 32,
        "submit_interval_ms": 20.0,
        "prompt_tokens": "2",
        "prompt_repeats": "1,1,1,64",
        "max_new_tokens": 32,
        "ignore_eos": True,
    },
    # The same with prompts that are long for today's machines too.
    "rosellm-long": {
        "num_requests": 32,
        "submit_interval_ms": 20.0,
        "prompt_tokens": "2",
        "prompt_repeats": "1,1,1,384",
        "max_new_tokens": 32,
        "ignore_eos": True,
    },
    # Bursts whose prompts are each within RoseLLM's budget of 224 tokens, and together more than three times over it.
    "rosellm-burst": {
        "num_requests": 64,
        "burst_size": 16,
        "burst_interval_ms": 400.0,
        "prompt_tokens": "2",
        "prompt_repeats": "1,1,1,96",
        "max_new_tokens": 32,
        "ignore_eos": True,
    },
    # Four streams, and two very long prompts that arrive among them.
    "interference": {
        "background": 4,
        "background_prompt_tokens": "64",
        "background_output_tokens": "128",
        "at_ms": "2000,8000",
        "prompt_tokens": "4000",
        "max_new_tokens": 16,
        "ignore_eos": True,
    },
    # People who read and answer, behind one system prompt.
    "conversation": {
        "num_requests": 16,
        "request_rate": 1.0,
        "turns": 4,
        "think_ms": 500.0,
        "shared_prefix_tokens": 256,
        "prompt_tokens": "lognormal:60:0.8",
        "output_tokens": "lognormal:100:0.6",
    },
}
SCHEDULES = ("submit_interval_ms", "request_rate", "burst_size", "at_ms", "arrivals")
"""Ways to say when requests arrive, of which there is one."""
FAMILIES: tuple[frozenset[str], ...] = (
    frozenset({*SCHEDULES, "burst_interval_ms"}),
    frozenset({"output_tokens", "max_new_tokens"}),
)
"""Options that replace each other: an explicit one takes a preset's others away."""
NUM_REQUESTS, CONCURRENCY, OUTPUT_TOKENS = 32, 4, "64"


def resolve_workload(given: Mapping[str, Any]) -> WorkloadOptions:
    """The options that were given, over the preset's, over the defaults; nothing left open that has a default.

    Raises:
        ConfigError: a value that cannot be, or options that contradict each other.
    """
    explicit = {name: value for name, value in given.items() if value is not None}
    options = WorkloadOptions(**(_preset(explicit) | explicit))
    check_all(options)
    _check_pairs(options)
    scheduled = [name for name in SCHEDULES if _of(options, name) is not None]
    if not scheduled and options.concurrency is None:
        options = replace(options, concurrency=CONCURRENCY)
    if options.num_requests is None and not {"at_ms", "arrivals"} & set(scheduled):
        options = replace(options, num_requests=NUM_REQUESTS)
    if options.output_tokens is None and options.max_new_tokens is None:
        options = replace(options, output_tokens=OUTPUT_TOKENS)
    return options


def _preset(explicit: Mapping[str, Any]) -> dict[str, Any]:
    name = explicit.get("preset")
    if name is None:
        return {}
    if name not in PRESETS:
        raise ConfigError(f"--preset must be one of {', '.join(PRESETS)}, got {name!r}")
    replaced = {other for family in FAMILIES if family & explicit.keys() for other in family}
    return {option: value for option, value in PRESETS[name].items() if option not in replaced}


def _check_pairs(options: WorkloadOptions) -> None:
    given = [name for name in SCHEDULES if _of(options, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"{flag(given[0])} and {flag(given[1])} both say when requests arrive; give one of them")
    if (options.burst_size is None) != (options.burst_interval_ms is None):
        raise ConfigError("--burst-size and --burst-interval-ms go together; give both")
    for name in ("request_rate", "burstiness"):
        if _of(options, name) == 0:
            raise ConfigError(f"{flag(name)} must be more than 0, got 0")
    if options.burstiness != 1.0 and options.request_rate is None:
        raise ConfigError("--burstiness shapes the gaps of --request-rate, which is not given")
    if options.output_tokens is not None and options.max_new_tokens is not None:
        raise ConfigError("--output-tokens and --max-new-tokens say the same; give one of them")
    if options.think_ms and options.turns == 1:
        raise ConfigError("--think-ms is the pause between turns, and --turns is 1")
    if options.arrivals is not None and (options.turns > 1 or options.prompt_repeats != "1"):
        raise ConfigError("--arrivals says what each request is; --turns and --prompt-repeats cannot change it")


def _of(options: WorkloadOptions, name: str) -> Any:
    return vars(options)[name]
