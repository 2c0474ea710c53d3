"""`sluice chat`: from the command line to a conversation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluice.cli.chat.answers import AnswerSource
from sluice.cli.chat.chat import COMMANDS, Chat, answer_once
from sluice.cli.chat.conversation import ChatHistory
from sluice.cli.chat.keys import Keys, key_for
from sluice.cli.chat.screen import Screen
from sluice.config import ConfigError, EngineConfig, flag
from sluice.types import SamplingParams

DEFAULT = "No model was named: this is a small one, which is often wrong. A larger one: sluice chat MODEL"
SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop")


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `sluice chat`, without those of sampling and of the engine."""
    group = parser.add_argument_group("conversation")
    group.add_argument(
        "--url",
        metavar="URL",
        help="talk to a server with OpenAI's API, like http://localhost:8000, not to an engine in this process; MODEL"
        " is then its name there (default: the server's only one)",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="key for --url (default: SLUICE_API_KEY of the environment, which other users of the machine cannot see;"
        " or OPENAI_API_KEY, which is not sent over plain http to other machines)",
    )
    group.add_argument("--adapter", metavar="NAME", help="adapter of --lora-modules that answers (default: none)")
    group.add_argument("--system", metavar="TEXT", help="system prompt (default: none)")
    group.add_argument(
        "--history",
        action=argparse.BooleanOptionalAction,
        help="keep messages for the arrow keys, in a file of your own (default: on)",
    )


def run_chat(given: dict[str, Any], *, keys: Keys, history: Path) -> int:
    """Talk in the terminal, or answer the one message that comes from a pipe. Returns the exit status.

    Args:
        given: the flags that were given, by name.
        keys: those of the environment.
        history: file of earlier messages.

    Raises:
        ConfigError: the command line is wrong.
        AnswerError: the server cannot be reached, or there is no answer to the one message.
        ValueError, OSError, RuntimeError: the model cannot be loaded.
    """
    keeps = given.pop("history", True)
    system = given.pop("system", "")
    asked = {name: given.pop(name) for name in SAMPLING if name in given}
    try:
        SamplingParams(**asked)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    is_conversation = sys.stdin.isatty() and sys.stdout.isatty()
    open_source = _source(given, asked, keys)
    piped = "" if is_conversation else sys.stdin.read()
    with closing(open_source()) as source:
        talk = ChatHistory(source, Screen(sys.stdout, is_conversation), system)
        if not is_conversation:
            answer_once(talk, piped)
            return 0
        from sluice.cli.chat.lines import History, reader

        kept = History(history if keeps else None)
        try:
            Chat(talk, reader(kept, COMMANDS)).run()
        finally:
            if (problem := kept.save()) is not None:
                print(f"sluice chat: {problem}", file=sys.stderr)
    return 0


def _source(given: dict[str, Any], asked: Mapping[str, Any], keys: Keys) -> Callable[[], AnswerSource]:
    """Return what opens the source of answers, after a check of the command line.

    Raises:
        ConfigError: options that do not go together, or a bad one.
    """
    url, api_key = given.pop("url", None), given.pop("api_key", None)
    adapter = given.pop("adapter", "")
    if url is None:
        if api_key is not None:
            raise ConfigError("--api-key is for --url, which is not given")
        check_adapter(adapter, EngineConfig.from_options(given))
        return lambda: _local(given, asked, adapter)
    if adapter:
        raise ConfigError(f"--adapter {adapter} is of an engine in this process; name it as MODEL beside --url")
    from sluice.cli.chat.remote import Address, RemoteSource, served_model

    names = {given.pop(name) for name in ("model", "model_path") if name in given}
    if len(names) > 1:
        raise ConfigError(f"two models are named: {' and '.join(sorted(names))}")
    if given:
        raise ConfigError(f"{flag(next(iter(given)))} is of an engine in this process; the one of --url has its own")
    address = Address.parse(url)
    chosen = key_for(address.host, keys._replace(given=api_key), is_tls=address.is_tls)
    if chosen.warning is not None:
        print(f"sluice chat: {chosen.warning}", file=sys.stderr)
    address = replace(address, api_key=chosen.key)
    return lambda: RemoteSource(address, served_model(address, next(iter(names), None)), asked)


def check_adapter(adapter: str, config: EngineConfig) -> None:
    """
    Raises:
        ConfigError: no adapter has the name.
    """
    names = [module.name for module in config.lora.modules()]
    if adapter and adapter not in names:
        known = f"one of {', '.join(names)}" if names else "one of --lora-modules, which is not given"
        raise ConfigError(f"--adapter must be {known}, got {adapter!r}")


def _local(given: Mapping[str, Any], asked: Mapping[str, Any], adapter: str) -> AnswerSource:
    """Load a model.

    Raises:
        ValueError, OSError, RuntimeError: it cannot be loaded, or has no chat template.
    """
    from sluice.cli.chat.local import LocalSource
    from sluice.llm.llm import LLM

    llm = LLM(progress=sys.stderr.isatty(), **given)
    try:
        source = LocalSource(llm, asked, adapter)
    except BaseException:
        llm.close()
        raise
    if llm.info.is_default and sys.stderr.isatty():
        print(DEFAULT, file=sys.stderr)
    return source
