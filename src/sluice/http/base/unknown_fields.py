"""Fields that no table knows: ignored, and named in the answer and the log, unless they misspell a known one."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from urllib.parse import quote

from sluice.http.base.calls import CALL, Call
from sluice.http.base.errors import bad_request, require
from sluice.http.base.unsupported_fields import FOREIGN
from sluice.process.log_limiter import LogLimiter

LOGGER = logging.getLogger("sluice.server")
MAX_NOTED, MAX_COMPARED = 32, 64
"""Unknown fields of a body that are noted, and that are compared with all known names."""
SIMILAR = 0.85
"""Share of common letters from which a name is a misspelling: `max_token`, `temprature`."""
LONGEST_COMPARED, LONGEST_NAMED = 40, 64
"""Characters of a name that is compared with others, and of one in the header and the log."""
NAMELESS = '""'
"""The empty name, in the header and the log: a header's value must not end with a space."""
LOG_NAMES = 16
LOG_SECONDS = 60.0


def ignore_unknown(names: Iterable[str], known: Collection[str], place: str = "") -> None:
    """Note the unknown fields of the present call's body, whose values are ignored.

    Args:
        known: names with an effect, for one of which a client may have meant another.
        place: where the fields stand in the body, as a path.

    Raises:
        ApiError: 400, a field is a misspelling of a known one.
    """
    call = CALL.get()
    ignored = [] if call is None else call.ignored_fields
    prefix = re.sub(r"\[\d+\]", "[]", f"{place}." if place else "")
    for count, name in enumerate(names):
        shown = quote(prefix + name[:LONGEST_NAMED], safe=".[]", errors="replace")[:LONGEST_NAMED] or NAMELESS
        if shown in ignored:
            continue
        meant = misspelt(name, known) if count < MAX_COMPARED and name not in FOREIGN else None
        param = f"{place}.{name}" if place else name
        message = f"{param} is not a field of this API; did you mean {meant}?"
        require(meant is None, message, param=param)
        if len(ignored) < MAX_NOTED:
            ignored.append(shown)


def ignore(places: Iterable[str]) -> None:
    """Note that what stands at some places of the present call's body is ignored, as far as the list has room."""
    call = CALL.get()
    ignored = [] if call is None else call.ignored_fields
    for place in places:
        shown = quote(place, safe=".[]$", errors="replace")[-LONGEST_NAMED:]
        if shown not in ignored and len(ignored) < MAX_NOTED:
            ignored.append(shown)


def misspelt(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a name misspells; None if it is like none of them."""
    if len(name) > LONGEST_COMPARED:
        return None
    folded = {_folded(each): each for each in known}
    if _folded(name) in folded:
        return folded[_folded(name)]
    return next(iter(get_close_matches(name.lower(), known, 1, SIMILAR)), None)


def _folded(name: str) -> str:
    return re.sub(r"[_\-. ]", "", name).lower()


def check_strict(call: Call | None) -> None:
    """Refuse unknown fields (`--strict-fields`).

    Raises:
        ApiError: 400.
    """
    if call is not None and call.ignored_fields:
        name = call.ignored_fields[0]
        message = f"{name} is not a field of this API, and the server was started with --strict-fields; leave it out"
        raise bad_request(message, param=name)


class IgnoredFieldsLog:
    """Logs at level info which fields were ignored, one line a minute for all together. It is a `calls.Listener`.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limiter = LogLimiter(LOG_SECONDS, clock)
        self._names: set[str] = set()

    def answered(self, call: Call) -> None:
        if not call.ignored_fields:
            return
        self._names.update(call.ignored_fields[: LOG_NAMES - len(self._names)])
        count = self._limiter.count()
        if not count:
            return
        names = ", ".join(map(repr, sorted(self._names)))
        LOGGER.info("requests with unknown fields, which were ignored: %d; fields: %s", count, names)
        self._names.clear()
