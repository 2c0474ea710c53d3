"""The chat template of `--chat-template`, read and compiled before the model is loaded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from sluice.config import ConfigError, ServerConfig
from sluice.text.chat_template import ChatTemplate, ChatTemplateError

MAX_BYTES = 1 << 20


def read_chat_template(config: ServerConfig) -> str | None:
    """Return the source of the template that the options name; None if they name none.

    Raises:
        ConfigError: the file cannot be read, or holds no template.
    """
    if config.chat_template is None:
        return None
    path = Path(config.chat_template)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"--chat-template {path} has more than {MAX_BYTES} bytes")
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--chat-template {path} cannot be read: {error.strerror}; it must name a file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--chat-template {path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    if not source.strip():
        raise ConfigError(f"--chat-template {path} is empty")
    try:
        with closing(ChatTemplate(source, {})) as template:
            template.start()
    except ChatTemplateError as error:
        raise ConfigError(f"--chat-template {path}: {error}") from error
    return source
