"""Finds the chat template of a checkpoint, or its templates for different chats, in the files that may hold it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from sluice.text.named_templates import DEFAULT, WITH_TOOLS, combined
from sluice.text.tokenizer import TokenizerError

LOGGER = logging.getLogger("sluice.text")
FILE = "chat_template.jinja"
FOLDER = "additional_chat_templates"
"""Holds a file `NAME.jinja` for each further template."""
OLD_FILE = "chat_template.json"
"""Holds an object with the field `chat_template`, as `tokenizer_config.json` does."""


def template_source(folder: Path, configured: object) -> str | None:
    """Return the source of a checkpoint's chat template; None if it has none.

    Args:
        folder: the checkpoint's. Its files `*.jinja` precede `configured`, and `chat_template.json` is the last.
        configured: `chat_template` of `tokenizer_config.json`: a text, named ones as an object or a list, or None.

    Raises:
        TokenizerError: a file cannot be read, or holds no template; the message names the file and the entry.
    """
    named = {file.stem: _text(file) for file in sorted((folder / FOLDER).glob("*.jinja"))}
    if (folder / FILE).is_file():
        return _chosen({**named, DEFAULT: _text(folder / FILE)}, folder)
    where = f"{folder / 'tokenizer_config.json'}: chat_template"
    if configured is None and (folder / OLD_FILE).is_file():
        configured, where = _old_template(folder / OLD_FILE), f"{folder / OLD_FILE}: chat_template"
    return _chosen({**_named(configured, where), **named}, folder)


def _chosen(named: Mapping[str, str], folder: Path) -> str | None:
    """Return the template that is used: one alone is, under any name."""
    if len(named) == 1:
        return next(iter(named.values()))
    source = combined(named)
    if source is None and named:
        LOGGER.warning(
            "%s: none of its chat templates %s is named %s or %s, so there are no chats; --chat-template gives one",
            folder,
            ", ".join(named),
            DEFAULT,
            WITH_TOOLS,
        )
    return source


def _named(configured: object, where: str) -> dict[str, str]:
    """Return templates by name, from any of the spellings."""
    match configured:
        case None:
            return {}
        case str():
            return {DEFAULT: configured}
        case dict():
            for name, source in configured.items():
                if not isinstance(source, str):
                    raise TokenizerError(f"{where}.{name} must be a text, got {type(source).__name__}")
            return configured
        case list():
            return dict(_entry(entry, f"{where}[{number}]") for number, entry in enumerate(configured))
    raise TokenizerError(
        f"{where} must be a text, or templates by name as an object or a list, got {type(configured).__name__}"
    )


def _entry(entry: object, where: str) -> tuple[str, str]:
    """Return name and template of an entry of a list."""
    match entry:
        case {"name": str(name), "template": str(source)}:
            return name, source
    given = ", ".join(entry) if isinstance(entry, dict) else type(entry).__name__
    raise TokenizerError(f"{where} must be an object with the texts name and template, got {given}")


def _old_template(file: Path) -> object:
    try:
        content = json.loads(_text(file))
    except ValueError as error:
        raise TokenizerError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("chat_template") is None:
        raise TokenizerError(f"{file} must hold an object with chat_template")
    return content["chat_template"]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{file} cannot be read: {error}") from error
