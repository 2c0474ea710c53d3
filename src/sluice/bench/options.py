"""The options of `sluice bench` and `sluice compare`, each defined once. Loads nothing heavy."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sluice.bench.presets import PRESETS
from sluice.config import ConfigError, check_values, flag, option, options_of
from sluice.config.arguments import add_fields, help_of

ENDPOINTS = ("completions", "chat")
PROMPT_FORMATS = ("ids", "text")
NUM_REQUESTS, CONCURRENCY, OUTPUT_TOKENS = 32, 4, "64"
SCHEDULES = ("submit_interval_ms", "request_rate", "burst_size", "at_ms", "arrivals")
"""Options that set when requests arrive. At most one of them is given."""
FAMILIES: tuple[frozenset[str], ...] = (
    frozenset({*SCHEDULES, "burst_interval_ms"}),
    frozenset({"output_tokens", "max_new_tokens"}),
)
"""Options that replace each other: an explicit one removes the others of its family from a preset."""


@dataclass(frozen=True)
class WorkloadOptions:
    """Which requests are sent, and when. `resolve_workload` fills in the options that are not given."""

    preset: str | None = option(None, "named workload; other options change it", unset="none", choices=tuple(PRESETS))
    num_requests: int | None = option(
        None, "number of requests, or of conversations with --turns", unset="32, or all in the schedule", positive=True
    )
    concurrency: int | None = option(
        None, "requests at a time (closed loop); with a schedule: at most this many", unset="4 without a schedule",
        positive=True,
    )  # fmt: skip
    submit_interval_ms: float | None = option(None, "send one request every MS", unset="off", metavar="MS")
    request_rate: float | None = option(
        None, "send RATE requests a second, at random (Poisson)", unset="off", metavar="RATE"
    )
    burstiness: float = option(
        1.0, "burstiness of --request-rate: below 1 clustered, 1 Poisson, above 1 even", metavar="X"
    )
    burst_size: int | None = option(None, "requests in a burst", unset="off", positive=True)
    burst_interval_ms: float | None = option(None, "time between two bursts", unset="off", metavar="MS")
    at_ms: str | None = option(
        None, "send one request at each of these times, like 2000,8000", unset="off", metavar="LIST"
    )
    arrivals: str | None = option(
        None,
        "file of JSON lines with at_ms, prompt_tokens, max_tokens and optionally class",
        unset="off",
        metavar="FILE",
    )
    prompt_tokens: str = option(
        "256", "length of a prompt: N, uniform:LOWEST:HIGHEST or lognormal:MEDIAN:SIGMA", metavar="LENGTH"
    )
    prompt_repeats: str = option("1", "how many times to repeat each prompt, in turn, like 1,1,1,64", metavar="LIST")
    output_tokens: str | None = option(
        None, "length of an answer, in the same forms as --prompt-tokens", unset="64", metavar="LENGTH"
    )
    max_new_tokens: int | None = option(None, "the same as --output-tokens N", unset="off", positive=True)
    ignore_eos: bool = option(False, "generate past the end-of-text token, so that every answer has its full length")
    shared_prefix_tokens: int = option(0, "length of a prefix that all prompts share, in addition to --prompt-tokens")
    unique_prompts: bool = option(True, "make all prompts begin differently; off: all are prefixes of one text")
    turns: int = option(1, "requests in a conversation; each contains the earlier requests and answers", positive=True)
    think_ms: float = option(0.0, "pause between an answer and the next turn", metavar="MS")
    long_prompt_tokens: int | None = option(
        None, "shortest prompt that counts as long", unset="4 times the median", positive=True
    )
    background: int = option(0, "requests to keep running beside the others until these have ended")
    background_prompt_tokens: str = option("64", "prompt length of --background requests", metavar="LENGTH")
    background_output_tokens: str = option("128", "answer length of --background requests", metavar="LENGTH")
    seed: int = option(0, "random seed; the same seed makes the same lengths, arrival times and prompts")


@dataclass(frozen=True)
class TargetOptions:
    """What the requests look like."""

    endpoint: str = option("completions", "endpoint of the OpenAI API to call", choices=ENDPOINTS)
    model_name: str | None = option(
        None, "name of the model on the server", unset="the one that /v1/models lists", metavar="NAME"
    )
    api_key: str | None = option(None, "API key, sent as bearer token and never stored", unset="none", metavar="KEY")
    prompt_format: str | None = option(
        None,
        "prompts of token ids, or of common words",
        unset="ids; text with --endpoint chat or --turns",
        choices=PROMPT_FORMATS,
    )
    vocab_size: int = option(256, "upper bound of the token ids in prompts", positive=True)
    tokenizer: str | None = option(
        None, "folder with a tokenizer.json, to count tokens if the server does not", unset="none", metavar="FOLDER"
    )
    temperature: float = option(0.0, "sampling temperature", metavar="X")
    timeout_s: float = option(600.0, "seconds until a request counts as failed", metavar="S")


@dataclass(frozen=True)
class RunOptions:
    """How to measure."""

    warmup: int = option(1, "requests to send before the measurement")
    repeats: int = option(1, "number of measurements", positive=True)
    goodput: str | None = option(
        None,
        "latency limits of a good request in ms, like ttft:500 itl:100 tpot:50 e2e:9000",
        unset="off",
        metavar="LIMIT",
    )


@dataclass(frozen=True)
class BenchOptions:
    """A command line of `sluice bench`, without files and the engine's options."""

    workload: WorkloadOptions
    target: TargetOptions
    run: RunOptions


SEVERAL = frozenset({"goodput"})
"""Options that the command line takes as several words and joins with spaces."""
GROUPS: Mapping[str, type] = {"workload": WorkloadOptions, "target": TargetOptions, "run": RunOptions}
OPTION_NAMES = frozenset(name for group in GROUPS.values() for name, _ in options_of(group))


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `sluice bench`, without the engine's."""
    target = parser.add_argument_group("what to measure (one of the two)")
    target.add_argument("--url", metavar="URL", help="a server with OpenAI's API, like http://localhost:8000")
    target.add_argument(
        "--model", metavar="MODEL", help='a folder or hub id, to measure in this process ("": the default model)'
    )
    _add_groups(parser)
    files = parser.add_argument_group("results")
    files.add_argument("--json", metavar="FILE", help="write settings, metrics and the time of every token to FILE")
    files.add_argument("--html", metavar="FILE", help="write a report as one HTML file")
    files.add_argument(
        "--from", dest="source", metavar="FILE", help="show a result that --json wrote, without measuring"
    )


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `sluice compare`."""
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="two results of bench --json: first the baseline, then the other"
    )
    parser.add_argument(
        "--url",
        action="append",
        dest="urls",
        metavar="URL",
        help="server to measure; give it twice, and both are measured in turns",
    )
    parser.add_argument("--json", metavar="FILE", help="write the ratios to FILE")
    parser.add_argument(
        "--keep", metavar="PREFIX", help="with --url: keep the results as PREFIX-a.json and PREFIX-b.json"
    )
    _add_groups(parser)


def _add_groups(parser: argparse.ArgumentParser) -> None:
    for title, group in GROUPS.items():
        add_option_group(parser.add_argument_group(title), group)


def add_option_group(shown: argparse._ArgumentGroup, group: type, without: Collection[str] = ()) -> None:
    """Add the flags of one group of options, but those named."""
    add_fields(shown, group, {*without, *SEVERAL})
    for name, meta in options_of(group):
        if name in SEVERAL:
            shown.add_argument(flag(name), dest=name, nargs="+", metavar=meta.metavar, help=help_of(meta, None))


def options_from(given: Mapping[str, Any]) -> BenchOptions:
    """Make the options of those among `given`, by field name.

    Raises:
        ConfigError: a value is not accepted, or two options contradict each other.
    """
    given = {name: " ".join(value) if name in SEVERAL else value for name, value in given.items()}
    workload = resolve_workload({name: value for name, value in given.items() if name in _names(WorkloadOptions)})
    options = BenchOptions(workload, _build(TargetOptions, given), _build(RunOptions, given))
    needs_text = "--endpoint chat" if options.target.endpoint == "chat" else "--turns" if workload.turns > 1 else None
    if options.target.prompt_format == "ids" and needs_text:
        raise ConfigError(f"--prompt-format must be text with {needs_text}, got 'ids'")
    if options.target.timeout_s == 0:
        raise ConfigError("--timeout-s must be more than 0, got 0")
    return options


Group = TypeVar("Group")


def _build(group: type[Group], given: Mapping[str, Any]) -> Group:
    built = group(**{name: given[name] for name in _names(group) & given.keys()})
    check_values(built)
    for name, value in vars(built).items():
        if isinstance(value, int) and value < 0 and name != "seed":
            raise ConfigError(f"{flag(name)} must be at least 0, got {value}")
    return built


def _names(group: type) -> frozenset[str]:
    return frozenset(name for name, _ in options_of(group))


def resolve_workload(given: Mapping[str, Any]) -> WorkloadOptions:
    """Put the given options over the preset's and the defaults, and fill in what was left open.

    Raises:
        ConfigError: a value is not accepted, or options contradict each other.
    """
    explicit = {name: value for name, value in given.items() if value is not None}
    options = _build(WorkloadOptions, _preset(explicit) | explicit)
    scheduled = [name for name in SCHEDULES if vars(options)[name] is not None]
    _check_pairs(options, scheduled)
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


def _check_pairs(options: WorkloadOptions, scheduled: Sequence[str]) -> None:
    if len(scheduled) > 1:
        one, other = map(flag, scheduled[:2])
        raise ConfigError(f"{one} and {other} both set when requests arrive; give one of them")
    if (options.burst_size is None) != (options.burst_interval_ms is None):
        raise ConfigError("--burst-size and --burst-interval-ms go together; give both")
    for name in ("request_rate", "burstiness"):
        if vars(options)[name] == 0:
            raise ConfigError(f"{flag(name)} must be more than 0, got 0")
    if options.burstiness != 1.0 and options.request_rate is None:
        raise ConfigError("--burstiness needs --request-rate, which is not given")
    if options.output_tokens is not None and options.max_new_tokens is not None:
        raise ConfigError("--output-tokens and --max-new-tokens both set the length of answers; give one of them")
    if options.think_ms and options.turns == 1:
        raise ConfigError("--think-ms is the pause between turns, so it needs --turns above 1")
    if options.arrivals is not None and (options.turns > 1 or options.prompt_repeats != "1"):
        raise ConfigError("--arrivals describes each request; --turns and --prompt-repeats cannot change it")
