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


class TextFormatter(logging.Formatter):
    """Formats a line as time, level, logger, message and the id of the call."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text, request_id = super().format(record), _request_id(record)
        return text if request_id is None else f"{text} [{request_id}]"


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
