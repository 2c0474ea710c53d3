"""What each command does. Its imports are made when it runs: `--help` loads neither torch nor the server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from sluice.cli.chat.command import check_adapter
from sluice.cli.parsing import EXIT_FAILED, EXIT_USAGE
from sluice.config import ConfigError, EngineConfig, ServerConfig, canonical, options_of
from sluice.http.start import EarlyEngine, start_serving
from sluice.types import SamplingParams

GENERATE_MAX_TOKENS = 128
DEFAULT = "No model was named: this is a small one, which is often wrong. A larger one: {} generate MODEL --prompt TEXT"


def serve(given: dict[str, Any], early: EarlyEngine | None = None) -> int:
    """`sluice serve`. `early` is a process for its first engine."""
    _warn_of_namesakes()
    try:
        server, engine, names = configs(given)
    except ConfigError as error:
        return fail("serve", error, EXIT_USAGE)
    return start_serving(server, engine, names, early)


def fleet(given: dict[str, Any]) -> int:
    """`sluice fleet`."""
    _warn_of_namesakes()
    from sluice.fleet.command import run_fleet

    return _run("fleet", run_fleet, given)


def explain(given: dict[str, Any]) -> int:
    """`sluice explain`."""
    from sluice.assembly.devices import resolve_here
    from sluice.assembly.explain import explain, table
    from sluice.cli.models.explained import facts_json, facts_table, model_facts

    as_json = given.pop("as_json", False)
    try:
        server, engine, names = configs(given)
        resolution, _ = resolve_here(engine)
    except ConfigError as error:
        return fail("explain", error, EXIT_USAGE)
    settings = explain(server, resolution.config, resolution.reasons, names)
    facts = model_facts(resolution.config)
    if as_json:
        print(json.dumps({**{item.name: item.as_json() for item in settings}, **facts_json(facts)}, indent=2))
    else:
        print(f"{table(settings)}\n\n{facts_table(facts)}")
    return 0


def configs(given: dict[str, Any]) -> tuple[ServerConfig, EngineConfig, frozenset[str]]:
    """Return the configs of server and engine, and the names of the options that were given.

    Raises:
        ConfigError: a bad name or value.
    """
    from sluice.http.base.options import check_server

    own = {name for name, _ in options_of(ServerConfig)} & given.keys()
    server = ServerConfig(**{name: given[name] for name in own})
    check_server(server)
    options = {name: value for name, value in given.items() if name not in own}
    return server, EngineConfig.from_options(options), frozenset([*own, *canonical(options)])


def generate(given: dict[str, Any]) -> int:
    """`sluice generate`."""
    _warn_of_namesakes()
    prompt, adapter = given.pop("prompt"), given.pop("adapter", "")
    names = {item.name for item in fields(SamplingParams)}
    asked = {"max_tokens": GENERATE_MAX_TOKENS} | {name: given.pop(name) for name in names & given.keys()}
    try:
        if not prompt:
            raise ValueError("--prompt must not be empty")
        sampling = SamplingParams(**asked)
        check_adapter(adapter, EngineConfig.from_options(given))
    except ValueError as error:
        return fail("generate", error, EXIT_USAGE)
    from sluice.cli.chat.progress import PromptBar
    from sluice.cli.chat.screen import Screen
    from sluice.http.observe.announcement import own_command
    from sluice.llm.llm import LLM

    screen = Screen(sys.stdout, is_conversation=False)
    try:
        with LLM(progress=True, **given) as llm:
            if llm.info.is_default:
                print(DEFAULT.format(own_command(sys.argv[0], sys.executable)), file=sys.stderr)
            params = llm.info.sampling_defaults.fill(sampling, asked)
            with PromptBar() as bar:
                for piece in llm.stream(prompt, params, adapter=adapter, on_prefill=bar.show):
                    bar.close()
                    screen.write(piece.text)
            screen.end()
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        return fail("generate", error, EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)
    return 0


def chat(given: dict[str, Any]) -> int:
    """`sluice chat`."""
    _warn_of_namesakes()
    from sluice.cli.chat.command import run_chat
    from sluice.cli.chat.keys import Keys

    keys = Keys(None, os.environ.get("SLUICE_API_KEY") or None, os.environ.get("OPENAI_API_KEY") or None)
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    work = partial(run_chat, keys=keys, history=state / "sluice" / "chat_history")
    return _run("chat", work, given)


def models(given: dict[str, Any]) -> int:
    """`sluice models`."""
    from sluice.cli.models.command import run_models
    from sluice.http.observe.announcement import own_command

    return _run("models", partial(run_models, command=own_command(sys.argv[0], sys.executable)), given)


def bench(given: dict[str, Any]) -> int:
    """`sluice bench`."""
    from sluice.bench.command import run_bench

    return _run("bench", run_bench, given)


def compare(given: dict[str, Any]) -> int:
    """`sluice compare`."""
    from sluice.bench.command import run_compare

    return _run("compare", run_compare, given)


def _warn_of_namesakes() -> None:
    """Say so if another distribution has installed a package `sluice` over this one, or under it."""
    from sluice_namesakes import warning

    if (line := warning()) is not None:
        print(line, file=sys.stderr)


def reporting(command: str, work: Callable[[dict[str, Any]], int]) -> Callable[[dict[str, Any]], int]:
    """Return a command that reports its errors, made of one that raises them."""
    return partial(_run, command, work)


def _run(command: str, work: Callable[[dict[str, Any]], int], given: dict[str, Any]) -> int:
    """Run a command and report its errors."""
    try:
        return work(given)
    except BrokenPipeError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        return fail(command, error, EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)


def fail(command: str, error: Exception, status: int) -> int:
    """Report an error in one line and return the exit status. Its text may be a server's."""
    from sluice.cli.chat.screen import harmless

    print(f"sluice {command}: error: {harmless(' '.join(str(error).split()))}", file=sys.stderr)
    return status
