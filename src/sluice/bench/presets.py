"""The presets of `sluice bench`: named workloads, as values of the options of `WorkloadOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROSELLM = {"prompt_tokens": "2", "max_new_tokens": 32, "ignore_eos": True}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # RoseLLM's published measurement of a prefill budget: three short prompts, then one 64 times as long.
    "rosellm": ROSELLM | {"num_requests": 32, "submit_interval_ms": 20.0, "prompt_repeats": "1,1,1,64"},
    # The same with prompts that are long for today's machines too.
    "rosellm-long": ROSELLM | {"num_requests": 32, "submit_interval_ms": 20.0, "prompt_repeats": "1,1,1,384"},
    # Bursts whose prompts are each within RoseLLM's budget of 224 tokens, and together more than three times over it.
    "rosellm-burst": ROSELLM
    | {"num_requests": 64, "burst_size": 16, "burst_interval_ms": 400.0, "prompt_repeats": "1,1,1,96"},
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
    # One stream, and a prompt beside it that takes as long as a short film.
    "victim": {
        "background": 1,
        "background_prompt_tokens": "64",
        "background_output_tokens": "128",
        "at_ms": "2000",
        "prompt_tokens": "65536",
        "max_new_tokens": 16,
        "ignore_eos": True,
    },
    # Short prompts, each of which arrives behind a long one.
    "head-of-line": {
        "num_requests": 16,
        "submit_interval_ms": 250.0,
        "prompt_tokens": "128",
        "prompt_repeats": "64,1,1,1",
        "max_new_tokens": 16,
        "ignore_eos": True,
    },
    # Agents at work: long histories that are cached, to which each turn adds a little.
    "agents": {
        "num_requests": 8,
        "request_rate": 0.5,
        "turns": 6,
        "think_ms": 300.0,
        "shared_prefix_tokens": 4096,
        "prompt_tokens": "lognormal:150:0.8",
        "output_tokens": "lognormal:60:0.6",
    },
    # People who read and answer, all with one system prompt.
    "conversation": {
        "num_requests": 16,
        "request_rate": 1.0,
        "turns": 4,
        "think_ms": 500.0,
        "shared_prefix_tokens": 256,
        "prompt_tokens": "lognormal:60:0.8",
        "output_tokens": "lognormal:100:0.6",
    },
    # Short questions about one long text that arrive together, as those of a call of /v1/decisions do.
    "decisions": {
        "num_requests": 64,
        "concurrency": 64,
        "shared_prefix_tokens": 7936,
        "prompt_tokens": "25",
        "max_new_tokens": 1,
        "ignore_eos": True,
    },
}
