"""The command line: `sluice serve`, `generate`, `explain`, `quantize`, `bench`, `simulate`, `tune`, and others.

The flags are the options of `config`, so that flags, `LLM(...)` and documentation cannot disagree. A command's
imports are made when it runs: `--help` loads neither torch nor the server. Every error is one line on standard
error; the exit status is 2 for a wrong command line and 1 for anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NoReturn

from sluice.bench.options import add_bench_arguments, add_compare_arguments
from sluice.config import (
    ENGINE_GROUPS,
    GROUPS,
    ConfigError,
    EngineConfig,
    ServerConfig,
    canonical,
    flag,
    options_of,
)
from sluice.config.arguments import add_foreign_flags, add_options, help_of
from sluice.quantize.command import add_quantize_arguments
from sluice.sim.command import add_simulate_arguments
from sluice.sim.tune_command import add_tune_arguments
from sluice.tiers.inspect import add_inspect_arguments
from sluice.tracing.command import add_replay_arguments, add_trace_arguments
from sluice.types import SamplingParams

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
GENERATE_MAX_TOKENS = 128
HELP_WIDTH = 110
NOT_OF_BENCH = ("seed", "tokenizer", "generation_config", "override_generation_config")
"""Engine options without effect on a measurement, which sets the sampling itself, or that it has under other terms."""
BUNDLED = "This is the small model that comes with Sluice. Name a large one: {} generate MODEL --prompt TEXT"
SAMPLING_OPTIONS: Mapping[str, tuple[type, str, str]] = {
    "max_tokens": (int, "N", f"maximum number of tokens to generate (default: {GENERATE_MAX_TOKENS})"),
    "temperature": (float, "X", "sampling temperature; 0: greedy (default: the model's, or 1.0)"),
    "top_p": (
        float,
        "X",
        "sample from the most likely tokens whose probabilities add up to this (default: the model's, or 1.0)",
    ),
    "top_k": (int, "N", "sample from this many most likely tokens; 0: off (default: the model's, or 0)"),
    "min_p": (
        float,
        "X",
        "leave out tokens less likely than this fraction of the most likely (default: the model's, or 0)",
    ),
    "seed": (int, "N", "random seed; the same seed gives the same text (default: a new one each time)"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    try:
        given = vars(build_parser().parse_args(arguments))
        command = given.pop("run")
        status: int = command(given)
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of the output closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


class Parser(argparse.ArgumentParser):
    """argparse, with errors in one line, which name the flag that an unknown one is close to."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def parse_known_args(
        self, args: Any = None, namespace: Any = None
    ) -> Any:  # as argparse's: commands come here, too
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            close = get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown


class HelpFormatter(argparse.HelpFormatter):
    """Wide enough that a command's help fits on a screen."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=40, width=HELP_WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """A flag that can be on or off as --[no-]flag."""
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"--[no-]{action.option_strings[0].removeprefix('--')}"
        return super()._format_action_invocation(action)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. The values of options that were not given are absent from the result."""
    parser = Parser(prog="sluice", description="An LLM inference server with chunked prefill.", allow_abbrev=False)
    parser.add_argument(
        "--version", action=_ShowVersion, nargs=0, default=argparse.SUPPRESS, help="show the version and exit"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_generate(commands)
    _add_explain(commands)
    _add_quantize(commands)
    _add_bench(commands)
    _add_compare(commands)
    _add_simulate(commands)
    _add_tune(commands)
    _add_trace(commands)
    _add_replay(commands)
    _add_cache(commands)
    return parser


class _ShowVersion(argparse.Action):
    """Looks up the version when it is shown: that takes longer than the rest of a `--help`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"sluice {version('sluice')}")
        parser.exit()


def _add_command(commands: Any, name: str, help: str, run: Any) -> argparse.ArgumentParser:
    parser = _add_plain_command(commands, name, help, f"sluice {name} [MODEL] [options]", run)
    model = dict(options_of(GROUPS["model"]))["model"]
    parser.add_argument("model", nargs="?", metavar="MODEL", help=help_of(model, None))
    # Apart from the positional argument, so that two models are refused.
    parser.add_argument("--model", "--model-path", dest="model_path", help=argparse.SUPPRESS)
    return parser


def _add_plain_command(commands: Any, name: str, help: str, usage: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        formatter_class=HelpFormatter,
        usage=usage,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(run=run)
    return parser


def _add_serve(commands: Any) -> None:
    parser = _add_command(commands, "serve", "serve a model over HTTP, with OpenAI's API", serve)
    for group in ("server", *ENGINE_GROUPS):
        add_options(parser, group)
    add_foreign_flags(parser)


def _add_generate(commands: Any) -> None:
    parser = _add_command(commands, "generate", "generate text from a prompt in the terminal", generate)
    group = parser.add_argument_group("sampling")
    group.add_argument("--prompt", required=True, metavar="TEXT", help="the prompt")
    for name, (kind, metavar, help) in SAMPLING_OPTIONS.items():
        group.add_argument(flag(name), type=kind, metavar=metavar, help=help)
    group.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; may be repeated")
    group.add_argument("--ignore-eos", action="store_true", help="continue after the end-of-text token")
    for group_name in ENGINE_GROUPS:
        add_options(parser, group_name, own={"seed"})
    add_foreign_flags(parser)


def _add_explain(commands: Any) -> None:
    parser = _add_command(
        commands, "explain", "show the value of every option and the reason for it, without loading the model", explain
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    for group in ("server", *ENGINE_GROUPS):
        add_options(parser, group)
    add_foreign_flags(parser)


def _add_quantize(commands: Any) -> None:
    help = "write a quantised checkpoint, or report what quantisation costs"
    add_quantize_arguments(_add_command(commands, "quantize", help, quantize))


def _add_bench(commands: Any) -> None:
    usage = "sluice bench --url URL | --model MODEL [options]"
    parser = _add_plain_command(
        commands,
        "bench",
        "measure the latency and throughput of a server, or of the engine in this process",
        usage,
        bench,
    )
    add_bench_arguments(parser)
    for group in ENGINE_GROUPS:
        add_options(parser, group, own=NOT_OF_BENCH)
    add_foreign_flags(parser)


def _add_compare(commands: Any) -> None:
    usage = "sluice compare FILE FILE | --url URL --url URL [options]"
    parser = _add_plain_command(commands, "compare", "compare two measurements, or two servers", usage, compare)
    add_compare_arguments(parser)


def _add_simulate(commands: Any) -> None:
    usage = "sluice simulate [TRACE] [options]"
    help = "run traffic through the scheduler on a model of a machine"
    add_simulate_arguments(_add_plain_command(commands, "simulate", help, usage, simulate))


def _add_tune(commands: Any) -> None:
    usage = "sluice tune TRACE --slo LIST [options]"
    help = "search for the settings that meet latency objectives, by simulation"
    add_tune_arguments(_add_plain_command(commands, "tune", help, usage, tune))


def _add_trace(commands: Any) -> None:
    usage = "sluice trace FILE [options]"
    add_trace_arguments(_add_plain_command(commands, "trace", "summarize a trace file", usage, trace))


def _add_replay(commands: Any) -> None:
    usage = "sluice replay FILE"
    help = "plan the steps of a trace again and compare the plans"
    add_replay_arguments(_add_plain_command(commands, "replay", help, usage, replay))


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
        _add_plain_command(verbs, "inspect", "show the contents of a file of --kv-disk", usage, cache_inspect)
    )


def serve(given: dict[str, Any]) -> int:
    """`sluice serve`."""
    try:
        server, engine, names = _configs(given)
    except ConfigError as error:
        return fail("serve", error, EXIT_USAGE)
    from sluice.http.serve import run

    return run(server, engine, given=names)


def explain(given: dict[str, Any]) -> int:
    """`sluice explain`."""
    from sluice.assembly.devices import resolve_here
    from sluice.assembly.explain import explain, table

    as_json = given.pop("as_json", False)
    try:
        server, engine, names = _configs(given)
        resolution, _ = resolve_here(engine)
    except ConfigError as error:
        return fail("explain", error, EXIT_USAGE)
    settings = explain(server, resolution.config, resolution.reasons, names)
    print(json.dumps({item.name: item.as_json() for item in settings}, indent=2) if as_json else table(settings))
    return 0


def _configs(given: dict[str, Any]) -> tuple[ServerConfig, EngineConfig, frozenset[str]]:
    """Return the configs of server and engine, and the names of the options that were given.

    Raises:
        ConfigError: a bad name or value.
    """
    from sluice.http.options import check_server

    own = {name for name, _ in options_of(ServerConfig)} & given.keys()
    server = ServerConfig(**{name: given[name] for name in own})
    check_server(server)
    options = {name: value for name, value in given.items() if name not in own}
    return server, EngineConfig.from_options(options), frozenset([*own, *canonical(options)])


def generate(given: dict[str, Any]) -> int:
    """`sluice generate`."""
    prompt = given.pop("prompt")
    names = {item.name for item in fields(SamplingParams)}
    asked = {"max_tokens": GENERATE_MAX_TOKENS} | {name: given.pop(name) for name in names & given.keys()}
    try:
        if not prompt:
            raise ValueError("--prompt must not be empty")
        sampling = SamplingParams(**asked)
        EngineConfig.from_options(given)
    except ValueError as error:
        return fail("generate", error, EXIT_USAGE)
    from sluice.http.announcement import own_command
    from sluice.llm import LLM

    try:
        with LLM(progress=True, **given) as llm:
            if llm.info.is_bundled:
                print(BUNDLED.format(own_command(sys.argv[0], sys.executable)), file=sys.stderr)
            for piece in llm.stream(prompt, llm.info.sampling_defaults.fill(sampling, asked)):
                print(piece.text, end="", flush=True)
            print()
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        return fail("generate", error, EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)
    return 0


def bench(given: dict[str, Any]) -> int:
    """`sluice bench`."""
    from sluice.bench.command import run_bench

    return _run("bench", run_bench, given)


def compare(given: dict[str, Any]) -> int:
    """`sluice compare`."""
    from sluice.bench.command import run_compare

    return _run("compare", run_compare, given)


def simulate(given: dict[str, Any]) -> int:
    """`sluice simulate`."""
    from sluice.sim.command import run_simulate

    return _run("simulate", run_simulate, given)


def tune(given: dict[str, Any]) -> int:
    """`sluice tune`."""
    from sluice.sim.tune_command import run_tune

    return _run("tune", run_tune, given)


def quantize(given: dict[str, Any]) -> int:
    """`sluice quantize`."""
    from sluice.quantize.command import run_quantize

    return _run("quantize", run_quantize, given)


def trace(given: dict[str, Any]) -> int:
    """`sluice trace`."""
    from sluice.tracing.command import run_trace

    return _run("trace", run_trace, given)


def replay(given: dict[str, Any]) -> int:
    """`sluice replay`."""
    from sluice.tracing.command import run_replay

    return _run("replay", run_replay, given)


def cache_inspect(given: dict[str, Any]) -> int:
    """`sluice cache inspect`."""
    from sluice.tiers.inspect import run_inspect

    return _run("cache inspect", run_inspect, given)


def _run(command: str, work: Callable[[dict[str, Any]], int], given: dict[str, Any]) -> int:
    """Run a command and report its errors."""
    try:
        return work(given)
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        return fail(command, error, EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)


def fail(command: str, error: Exception, status: int) -> int:
    """Report an error in one line and return the exit status."""
    print(f"sluice {command}: error: {' '.join(str(error).split())}", file=sys.stderr)
    return status
