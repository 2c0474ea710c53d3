"""The options of `sluice bench` and `sluice compare`, each once, as in `config`. Loads nothing heavy: `--help` does."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from sluice.config import ConfigError, Option, check_values, flag, option, options_of

ENDPOINTS = ("completions", "chat")
PROMPT_FORMATS = ("ids", "text")
PRESET_NAMES = ("rosellm", "rosellm-long", "rosellm-burst", "interference", "conversation")


@dataclass(frozen=True)
class WorkloadOptions:
    """What is sent, and when. `presets.resolve_workload` fills what was left open."""

    preset: str | None = option(
        None,
        "a workload by name, which other options change",
        unset="none",
        choices=PRESET_NAMES,
        metavar="NAME",
    )
    num_requests: int | None = option(
        None, "requests, or conversations of --turns each", unset="32, or all that are scheduled", positive=True
    )
    concurrency: int | None = option(
        None, "closed loop: so many at a time; with a schedule, at most so many", unset="4 without a schedule",
        positive=True,
    )  # fmt: skip
    submit_interval_ms: float | None = option(None, "send one every so many ms", unset="off", metavar="MS")
    request_rate: float | None = option(None, "send so many a second, at random (Poisson)", unset="off", metavar="RATE")
    burstiness: float = option(1.0, "shape of the gaps of --request-rate: below 1 clustered, above 1 even", metavar="X")
    burst_size: int | None = option(None, "send so many at once...", unset="off", positive=True)
    burst_interval_ms: float | None = option(None, "...again every so many ms", unset="off", metavar="MS")
    at_ms: str | None = option(None, "send one at each of these times: 2000,8000", unset="off", metavar="LIST")
    arrivals: str | None = option(
        None, "JSON lines: at_ms, prompt_tokens, max_tokens and maybe class", unset="off", metavar="FILE"
    )
    prompt_tokens: str = option("256", "tokens of a prompt: N, uniform:A:B or lognormal:MEDIAN:SIGMA", metavar="LENGTH")
    prompt_repeats: str = option("1", "each prompt this many times itself, in turn: 1,1,1,64", metavar="LIST")
    output_tokens: str | None = option(None, "tokens to ask for, as --prompt-tokens", unset="64", metavar="LENGTH")
    max_new_tokens: int | None = option(None, "the same as --output-tokens N", unset="off", positive=True)
    ignore_eos: bool = option(False, "go on behind the end of the text, so that every answer has its length")
    shared_prefix_tokens: int = option(0, "tokens that all prompts begin with, beside --prompt-tokens")
    unique_prompts: bool = option(True, "no prompt begins like another one; off: all are beginnings of one text")
    turns: int = option(1, "requests of a conversation; each has the ones before and their answers", positive=True)
    think_ms: float = option(0.0, "from an answer's end to the next turn", metavar="MS")
    long_prompt_tokens: int | None = option(
        None, "a prompt is called long from here on", unset="4 times the median", positive=True
    )
    background: int = option(0, "requests kept going beside the others until these are done")
    background_prompt_tokens: str = option("64", "their prompts, as --prompt-tokens", metavar="LENGTH")
    background_output_tokens: str = option("128", "their answers", metavar="LENGTH")
    seed: int = option(0, "of lengths, arrivals and prompts: the same seed, the same workload")


@dataclass(frozen=True)
class TargetOptions:
    """Who is asked, and how."""

    endpoint: str = option("completions", "of the OpenAI API", choices=ENDPOINTS)
    model_name: str | None = option(None, "name of the served model", unset="what /v1/models says", metavar="NAME")
    api_key: str | None = option(None, "sent as bearer token; never stored", unset="none", metavar="KEY")
    prompt_format: str | None = option(
        None, "token ids, or common words", unset="ids, for a chat or --turns text", choices=PROMPT_FORMATS
    )
    vocab_size: int = option(256, "token ids in prompts are below this", positive=True)
    tokenizer: str | None = option(
        None, "folder with a tokenizer.json, to count what a server does not count", unset="none", metavar="FOLDER"
    )
    temperature: float = option(0.0, "of the requests", metavar="X")
    timeout_s: float = option(600.0, "give a request up after so long", metavar="S")


@dataclass(frozen=True)
class RunOptions:
    """How the measurement goes."""

    warmup: int = option(1, "requests sent before, not counted")
    repeats: int = option(1, "measure so many times", positive=True)
    goodput: str | None = option(
        None, "limits in ms of a good request: ttft:500 itl:100 tpot:50 e2e:9000", unset="off", metavar="LIMIT"
    )


@dataclass(frozen=True)
class BenchOptions:
    """A whole command line of `sluice bench`, but for files and the engine's options."""

    workload: WorkloadOptions
    target: TargetOptions
    run: RunOptions


SEVERAL = frozenset({"goodput"})
"""Options whose value is a text of several words, which the command line takes one by one."""
GROUPS: Mapping[str, type] = {"workload": WorkloadOptions, "target": TargetOptions, "run": RunOptions}


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sluice bench`, the engine's left out."""
    target = parser.add_argument_group("whom to measure (one of the two)")
    target.add_argument("--url", metavar="URL", help="a server with OpenAI's API, http://localhost:8000")
    target.add_argument(
        "--model",
        metavar="MODEL",
        help='in this process: folder or hub id ("": the bundled model)',
    )
    _add_groups(parser)
    files = parser.add_argument_group("results")
    files.add_argument("--json", metavar="FILE", help="write all settings, every token's time and the numbers")
    files.add_argument("--html", metavar="FILE", help="write a report that needs nothing else")
    files.add_argument("--from", dest="source", metavar="FILE", help="measure nothing: show what --json wrote")


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sluice compare`."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="two results of bench --json: the base, the other")
    parser.add_argument(
        "--url",
        action="append",
        dest="urls",
        metavar="URL",
        help="twice: measure two servers in turns",
    )
    parser.add_argument("--json", metavar="FILE", help="write the ratios")
    parser.add_argument("--keep", metavar="PREFIX", help="with --url: write PREFIX-a.json and PREFIX-b.json")
    _add_groups(parser)


def _add_groups(parser: argparse.ArgumentParser) -> None:
    for title, group in GROUPS.items():
        shown = parser.add_argument_group(title)
        types = {item.name: str(item.type) for item in fields(group)}
        defaults = {item.name: item.default for item in fields(group)}
        for name, meta in options_of(group):
            settings = _settings(meta, types[name], defaults[name])
            if name in SEVERAL:
                settings["nargs"] = "+"
            shown.add_argument(flag(name), dest=name, **settings)


def _settings(meta: Option, type_name: str, default: object) -> dict[str, Any]:
    shown = ("off", "on")[default] if isinstance(default, bool) else default
    settings: dict[str, Any] = {"help": f"{meta.help} (default: {meta.unset or shown})"}
    if "bool" in type_name:
        return settings | {"action": argparse.BooleanOptionalAction}
    if meta.choices:
        return settings | {
            "choices": meta.choices,
            "metavar": "|".join(meta.choices),
        }
    kind = float if "float" in type_name else int if "int" in type_name else str
    return settings | {"type": kind, "metavar": meta.metavar}


def options_from(given: Mapping[str, Any]) -> BenchOptions:
    """The options among `given`, by field name.

    Raises:
        ConfigError: a value that cannot be, or two options that contradict each other.
    """
    from sluice.bench.presets import resolve_workload

    given = {name: " ".join(value) if name in SEVERAL else value for name, value in given.items()}
    target = _build(TargetOptions, given)
    run = _build(RunOptions, given)
    workload = resolve_workload({name: given[name] for name in _names(WorkloadOptions) & given.keys()})
    _check_target(target, workload)
    return BenchOptions(workload, target, run)


def option_names() -> frozenset[str]:
    return frozenset(name for group in GROUPS.values() for name in _names(group))


def _check_target(target: TargetOptions, workload: WorkloadOptions) -> None:
    needs_text = "--endpoint chat" if target.endpoint == "chat" else "--turns" if workload.turns > 1 else None
    if target.prompt_format == "ids" and needs_text:
        raise ConfigError(f"--prompt-format must be text with {needs_text}, got 'ids'")
    if target.timeout_s == 0:
        raise ConfigError("--timeout-s must be more than 0, got 0")


T = TypeVar("T")


def _build(group: type[T], given: Mapping[str, Any]) -> T:
    built = group(**{name: given[name] for name in _names(group) & given.keys()})
    check_all(built)
    return built


def check_all(group: Any) -> None:
    """`config.check_values`, and that no number is below 0.

    Raises:
        ConfigError
    """
    check_values(group)
    for item in fields(group):
        value = getattr(group, item.name)
        if isinstance(value, int) and value < 0 and item.name != "seed":
            raise ConfigError(f"{flag(item.name)} must be at least 0, got {value}")


def _names(group: type) -> frozenset[str]:
    return frozenset(item.name for item in fields(group))
