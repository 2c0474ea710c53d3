"""What goes to standard error: as lines for people or as JSON, and the line on every call. Nothing that was said."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from sluice.http.calls import CALL, Call

REQUESTS = logging.getLogger("sluice.requests")
FORMATS = ("text", "json")
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "request_id"}
"""Attributes of every record; what else one has was given to it."""


class TextFormatter(logging.Formatter):
    """Time, level, logger, message, and the id of the call that it is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text, request_id = super().format(record), _request_id(record)
        return text if request_id is None else f"{text} [{request_id}]"


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, request_id, and whatever the record carries."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at,
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
    """Its own, or that of the call being answered."""
    own = vars(record).get("request_id")
    call = CALL.get()
    return own if own is not None else None if call is None else call.request_id


def show_log(level: str, style: str) -> None:
    """Our own messages on standard error, from this level up; other packages keep to warnings.

    Args:
        style: one of `FORMATS`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter({"text": TextFormatter, "json": JsonFormatter}[style]())
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("sluice").setLevel(level.upper())


class RequestLog:
    """Writes a line on every call, at level info."""

    def answered(self, call: Call) -> None:
        """See `calls.Listener`."""
        if not REQUESTS.isEnabledFor(logging.INFO):
            return
        facts = facts_of(call)
        words = [f"{name} {value}" for name, value in facts.items() if name not in ("method", "path", "status")]
        message = f"{call.method} {call.path} {call.status or 'client left'}: {', '.join(words)}"
        REQUESTS.info("%s", message, extra={"request_id": call.request_id, **facts})


def facts_of(call: Call) -> dict[str, Any]:
    """What a line says of a call: sizes, times and ends."""
    ended = call.began if call.ended is None else call.ended
    facts: dict[str, Any] = {
        "method": call.method,
        "path": call.path,
        "status": call.status,
        "seconds": round(ended - call.began, 6),
    }
    if not call.engine_ids:
        return facts
    first = {} if call.first_chunk is None else {"first_chunk_seconds": round(call.first_chunk - call.began, 6)}
    return (
        facts
        | first
        | {
            "prompt_tokens": call.prompt_tokens,
            "cached_tokens": call.cached_tokens,
            "output_tokens": call.output_tokens,
            "finish_reasons": [reason.value for reason in call.finish_reasons],
            "engine_requests": call.engine_ids,
        }
    )
