"""The command line: `sluice serve`, `fleet`, `chat`, `generate`, `explain`, `bench`, `simulate`, `tune`, and others.

The flags are the options of `config`, so that flags, `LLM(...)` and documentation cannot disagree. A command's
imports are made when it runs: `--help` loads neither torch nor the server. Every error is one line on standard
error; the exit status is 2 for a wrong command line and 1 for anything else.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from sluice.bench.options import add_bench_arguments, add_compare_arguments
from sluice.cli import commands as run
from sluice.cli.chat.command import add_chat_arguments
from sluice.cli.completion import add_completion_arguments, run_completion
from sluice.cli.parsing import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    HelpFormatter,
    Parser,
    ShowVersion,
    add_command,
    add_plain_command,
    add_sampling_arguments,
)
from sluice.cli.quantize.command import add_quantize_arguments, run_quantize
from sluice.config import ENGINE_GROUPS, let_threads_sleep
from sluice.config.arguments import add_foreign_flags, add_options
from sluice.fleet.arguments import add_fleet_arguments
from sluice.http.start import EarlyEngine
from sluice.sim.command import add_simulate_arguments, run_simulate
from sluice.sim.tune_command import add_tune_arguments, run_tune
from sluice.storage.command import add_inspect_arguments, run_inspect
from sluice.tracing.command import add_replay_arguments, add_trace_arguments, run_replay, run_trace

NOT_OF_BENCH = ("seed", "tokenizer", "generation_config", "override_generation_config")
"""Engine options without effect on a measurement, which sets the sampling itself, or that it has under other terms."""


def main(arguments: Sequence[str] | None, early: EarlyEngine | None = None) -> int:
    """Run one command. Returns the exit status.

    Args:
        early: a process for the first engine of `sluice serve`.
    """
    try:
        given = vars(build_parser().parse_args(arguments))
        command = given.pop("run")
        let_threads_sleep()
        status: int = run.serve(given, early) if command is run.serve else command(given)
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of the output closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. The values of options that were not given are absent from the result."""
    parser = Parser(prog="sluice", description="An LLM inference server with chunked prefill.", allow_abbrev=False)
    parser.add_argument(
        "--version", action=ShowVersion, nargs=0, default=argparse.SUPPRESS, help="show the version and exit"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_fleet(commands)
    _add_chat(commands)
    _add_generate(commands)
    _add_models(commands)
    _add_explain(commands)
    _add_quantize(commands)
    _add_bench(commands)
    _add_compare(commands)
    _add_simulate(commands)
    _add_tune(commands)
    _add_trace(commands)
    _add_replay(commands)
    _add_cache(commands)
    _add_completion(commands, parser)
    return parser


def _add_serve(commands: Any) -> None:
    parser = add_command(commands, "serve", "serve a model over HTTP, with OpenAI's API", run.serve)
    for group in ("server", *ENGINE_GROUPS):
        add_options(parser, group)
    add_foreign_flags(parser)


def _add_fleet(commands: Any) -> None:
    help = "serve a model with several replicas, on a cluster of Ray"
    add_fleet_arguments(add_command(commands, "fleet", help, run.fleet))


def _add_chat(commands: Any) -> None:
    parser = add_command(commands, "chat", "talk to a model in the terminal", run.chat)
    add_chat_arguments(parser)
    add_sampling_arguments(parser.add_argument_group("sampling"), max_tokens="what the context has room for")
    for group_name in ENGINE_GROUPS:
        add_options(parser, group_name, own={"seed"})
    add_foreign_flags(parser)


def _add_generate(commands: Any) -> None:
    parser = add_command(commands, "generate", "generate text from a prompt in the terminal", run.generate)
    group = parser.add_argument_group("sampling")
    group.add_argument("--prompt", required=True, metavar="TEXT", help="the prompt")
    group.add_argument("--adapter", metavar="NAME", help="adapter of --lora-modules that answers (default: none)")
    add_sampling_arguments(group, max_tokens=str(run.GENERATE_MAX_TOKENS))
    group.add_argument("--ignore-eos", action="store_true", help="continue after the end-of-text token")
    for group_name in ENGINE_GROUPS:
        add_options(parser, group_name, own={"seed"})
    add_foreign_flags(parser)


def _add_models(commands: Any) -> None:
    help = "list the models on this machine, and small ones to begin with"
    parser = add_plain_command(commands, "models", help, "sluice models [PATH] [options]", run.models)
    parser.add_argument(
        "path", nargs="?", metavar="PATH", help="a GGUF file or a folder (default: what was downloaded from the hub)"
    )
    parser.add_argument(
        "--download-dir", metavar="FOLDER", help="folder of downloads (default: the cache of huggingface_hub)"
    )
    parser.add_argument(
        "--memory-bandwidth", type=float, metavar="GB", help="of the machine, in GB/s (default: measured now, here)"
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")


def _add_explain(commands: Any) -> None:
    parser = add_command(
        commands,
        "explain",
        "show the value of every option and the reason for it, without loading the model",
        run.explain,
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    for group in ("server", *ENGINE_GROUPS):
        add_options(parser, group)
    add_foreign_flags(parser)


def _add_quantize(commands: Any) -> None:
    help = "write a quantised checkpoint, or report what quantisation costs"
    of_model = "folder or hub id of a checkpoint in safetensors (without one: SmolLM2-135M-Instruct)"
    add_quantize_arguments(
        add_command(commands, "quantize", help, run.reporting("quantize", run_quantize), of_model=of_model)
    )


def _add_bench(commands: Any) -> None:
    usage = "sluice bench --url URL | --model MODEL [options]"
    parser = add_plain_command(
        commands,
        "bench",
        "measure the latency and throughput of a server, or of the engine in this process",
        usage,
        run.bench,
    )
    add_bench_arguments(parser)
    for group in ENGINE_GROUPS:
        add_options(parser, group, own=NOT_OF_BENCH)
    add_foreign_flags(parser)


def _add_compare(commands: Any) -> None:
    usage = "sluice compare FILE FILE | --url URL --url URL [options]"
    parser = add_plain_command(commands, "compare", "compare two measurements, or two servers", usage, run.compare)
    add_compare_arguments(parser)


def _add_simulate(commands: Any) -> None:
    usage = "sluice simulate [TRACE] [options]"
    help = "run traffic through the scheduler on a model of a machine"
    add_simulate_arguments(
        add_plain_command(commands, "simulate", help, usage, run.reporting("simulate", run_simulate))
    )


def _add_tune(commands: Any) -> None:
    usage = "sluice tune TRACE --slo LIST [options]"
    help = "search for the settings that meet latency objectives, by simulation"
    add_tune_arguments(add_plain_command(commands, "tune", help, usage, run.reporting("tune", run_tune)))


def _add_trace(commands: Any) -> None:
    usage = "sluice trace FILE [options]"
    add_trace_arguments(
        add_plain_command(commands, "trace", "summarize a trace file", usage, run.reporting("trace", run_trace))
    )


def _add_replay(commands: Any) -> None:
    usage = "sluice replay FILE"
    help = "plan the steps of a trace again and compare the plans"
    add_replay_arguments(add_plain_command(commands, "replay", help, usage, run.reporting("replay", run_replay)))


def _add_completion(commands: Any, program: argparse.ArgumentParser) -> None:
    usage = "sluice completion SHELL"
    help = "print a script that completes this command line in bash, zsh or fish"
    work = partial(run_completion, parser=program)
    add_completion_arguments(add_plain_command(commands, "completion", help, usage, work))


def _add_cache(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "cache",
        help="inspect a file of --kv-disk",
        description="Inspect a file of --kv-disk.",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    usage = "sluice cache inspect PATH [options]"
    add_inspect_arguments(
        add_plain_command(
            verbs,
            "inspect",
            "show the contents of a file of --kv-disk",
            usage,
            run.reporting("cache inspect", run_inspect),
        )
    )
