"""Objects of a body that are told apart by their `type`: parts of messages, items of a conversation, tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.http.base.body import convert, fields_of, kind_of, known_fields
from sluice.http.base.errors import bad_request
from sluice.http.base.unsupported_fields import IN_PARTS
from sluice.types.shown import shown

Kinds = Mapping[str, type[msgspec.Struct]]


def tagged(content: Any, kinds: Kinds, place: str, *, default: str | None = None) -> Any:
    """Return an object as the struct that its `type` names. Unknown fields are noted as ignored (`unknown_fields`).

    Args:
        kinds: type -> its struct, whose fields do not name the type.
        place: where the object stands in the body, as a path.
        default: the type of objects without one.

    Raises:
        ApiError: 400, another type, or a field that is not accepted; both are named.
    """
    if not isinstance(content, dict):
        raise bad_request(f"{place} must be an object, got {kind_of(content)}", param=place)
    name = content["type"] if content.get("type") is not None else default
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        what = "is required" if name is None else f"{shown(name)} is not supported"
        raise bad_request(f"{place}.type {what}; accepted: {', '.join(kinds)}", param=f"{place}.type")
    given = {field: value for field, value in content.items() if field != "type"}
    return convert(known_fields(given, fields_of(kind), place, IN_PARTS), kind, place)
