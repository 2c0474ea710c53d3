"""Fields of OpenAI's API, and of its common extensions, that Sluice does not implement.

A request may carry one as long as its value asks for nothing; anything else is refused, never ignored. `null` asks
for nothing, whatever the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sluice.http.errors import bad_request
from sluice.http.json_body import kind_of


class _Any(NamedTuple):
    """Every value of a type asks for nothing: the field only labels the request or hints at how to serve it."""

    kind: type
    called: str


TEXT, OBJECT, BOOLEAN = _Any(str, "a text"), _Any(dict, "an object"), _Any(bool, "true or false")

_COMMON: dict[str, tuple[Any, ...] | _Any] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "return_token_ids": (False,),
    "tools": ([],),
    "response_format": ({"type": "text"},),
    "user": TEXT,
    "metadata": OBJECT,
    "service_tier": TEXT,
    "prompt_cache_key": TEXT,
    "safety_identifier": TEXT,
}

COMPLETION_ASKS_NOTHING = MappingProxyType(_COMMON | {"suffix": ("",), "add_special_tokens": (True,)})
CHAT_ASKS_NOTHING = MappingProxyType(
    _COMMON
    | {
        "echo": (False,),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "modalities": (["text"],),
        "store": (False,),
        "reasoning_effort": ("none",),
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),
        "chat_template_kwargs": ({},),
    }
)

GENERATE_ASKS_NOTHING: Mapping[str, tuple[Any, ...] | _Any] = MappingProxyType(
    {
        "log_metrics": BOOLEAN,
        "routing_key": TEXT,
        "return_hidden_states": (False,),
        "return_routed_experts": (False,),
        "modalities": ([], ["text"]),
    }
)
GENERATE_SAMPLING_ASKS_NOTHING = MappingProxyType(
    {
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "no_stop_trim": (False,),
        "custom_params": ({},),
        "stream_interval": (1,),
    }
)
TOKENIZE_ASKS_NOTHING = MappingProxyType(
    {
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "chat_template_kwargs": ({},),
        "tools": ([],),
    }
)
DETOKENIZE_ASKS_NOTHING = MappingProxyType({"skip_special_tokens": (False,)})


def without_inert(
    body: Mapping[str, Any],
    known: frozenset[str],
    asks_nothing: Mapping[str, tuple[Any, ...] | _Any],
    place: str = "",
) -> dict[str, Any]:
    """The known fields of a request body that say something.

    Args:
        place: where the fields stand in the body.

    Raises:
        ApiError: 400, naming a field that asks for what Sluice does not do.
    """
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        if name in known:
            kept[name] = value
        else:
            _check(f"{place}.{name}" if place else name, value, asks_nothing.get(name, ()))
    return kept


def _check(name: str, value: Any, accepted: tuple[Any, ...] | _Any) -> None:
    if isinstance(accepted, _Any):
        if not isinstance(value, accepted.kind):
            raise bad_request(f"{name} must be {accepted.called}, got {kind_of(value)}", param=name)
        return
    if any(_equal(value, other) for other in accepted):
        return
    choices = ["null", *(repr(other) for other in accepted)]
    what = "is not supported" if accepted else "is not a field of this API, or not one that is supported"
    raise bad_request(f"{name} {what}; leave it out, or send {' or '.join(choices)}", param=name)


def _equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: a number is no boolean."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
