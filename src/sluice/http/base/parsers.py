"""The parsers of answers that the options name, or that the chat template shows."""

from __future__ import annotations

from sluice.config import ConfigError, ServerConfig
from sluice.text.parsers.choosing import Chosen, UnknownParser, check_reasoning_parser, check_tool_parser, choose


def check_parsers(config: ServerConfig) -> None:
    """Refuse names of parsers that there are not, before the model is loaded.

    Raises:
        ConfigError: naming the option, and what it accepts.
    """
    try:
        check_tool_parser(config.tool_call_parser)
        check_reasoning_parser(config.reasoning_parser)
        choose(None, config.tool_call_parser, config.reasoning_parser)
    except UnknownParser as error:
        raise ConfigError(str(error)) from error


def choose_replies(config: ServerConfig, template: str | None) -> Chosen:
    """Return how the served model writes calls and reasoning.

    Args:
        template: the source of its chat template.

    Raises:
        ConfigError: as `check_parsers`.
    """
    try:
        return choose(template, config.tool_call_parser, config.reasoning_parser, lone_calls=config.lone_tool_calls)
    except UnknownParser as error:
        raise ConfigError(str(error)) from error
