"""The log on standard error, of the server and of the engine's process: text for people or JSON, a line a message."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

REQUEST_ID: ContextVar[str | None] = ContextVar("sluice_request_id", default=None)
"""The id of the HTTP call that the running task answers: every line that is logged meanwhile carries it."""
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "request_id"}
"""Attributes that every record has; the others were passed as `extra`."""


def one_line(text: str) -> str:
    """Return a text in which every character that is not printable is escaped, as in Python's `repr`.

    What clients and checkpoints choose can then neither begin a line nor send commands to a terminal.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class TextFormatter(logging.Formatter):
    """Formats a message as time, level, logger, message and the id of the call, in one line.

    The lines of an exception follow, each indented: what a client wrote into it cannot look like a message.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.message, record.asctime = record.getMessage(), self.formatTime(record)
        text, request_id = one_line(self.formatMessage(record)), _request_id(record)
        if request_id is not None:
            text += f" [{one_line(request_id)}]"
        # Not `record.exc_text`, in which another handler's formatter may have left what it made.
        if record.exc_info:
            text += _indented(self.formatException(record.exc_info))
        if record.stack_info:
            text += _indented(self.formatStack(record.stack_info))
        return text


def _indented(text: str) -> str:
    return "".join(f"\n    {one_line(line)}" for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """Formats a line as one object: time (UTC), level, logger, message, request_id, and the record's `extra` fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := _request_id(record)) is not None:
            line["request_id"] = request_id
        line |= {name: value for name, value in vars(record).items() if name not in STANDARD}
        if record.exc_info is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _request_id(record: logging.LogRecord) -> str | None:
    """Return the id that the record was given, or that of the call being answered."""
    own = vars(record).get("request_id")
    return REQUEST_ID.get() if own is None else own


def configure_logging(level: str, style: str) -> None:
    """Send Sluice's messages from `level` up to standard error; other packages log warnings and above.

    Args:
        level: a level of `logging`, in lower case.
        style: "text" or "json".
    """
    handler = logging.StreamHandler()
    handler.setFormatter({"text": TextFormatter, "json": JsonFormatter}[style]())
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("sluice").setLevel(level.upper())
