"""Fields of OpenAI's API, and of its common extensions, that Sluice does not implement.

A request may carry one as long as its value asks for nothing; anything else is refused, never ignored. `null` asks
for nothing, whatever the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sluice.server.errors import bad_request


class _Anything:
    """Every value asks for nothing: the field only labels the request or hints at how to serve it."""


ANYTHING = _Anything()

_COMMON: dict[str, tuple[Any, ...] | _Anything] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "return_token_ids": (False,),
    "tools": ([],),
    "response_format": ({"type": "text"},),
    "user": ANYTHING,
    "metadata": ANYTHING,
    "service_tier": ANYTHING,
    "prompt_cache_key": ANYTHING,
    "safety_identifier": ANYTHING,
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

GENERATE_ASKS_NOTHING: Mapping[str, tuple[Any, ...] | _Anything] = MappingProxyType(
    {
        "log_metrics": ANYTHING,
        "routing_key": ANYTHING,
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
    asks_nothing: Mapping[str, tuple[Any, ...] | _Anything],
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


def _check(name: str, value: Any, accepted: tuple[Any, ...] | _Anything) -> None:
    if isinstance(accepted, _Anything) or any(_equal(value, other) for other in accepted):
        return
    choices = ["null", *(repr(other) for other in accepted)]
    what = "is not supported" if accepted else "is not a field of this API, or not one that is supported"
    raise bad_request(f"{name} {what}; leave it out, or send {' or '.join(choices)}", param=name)


def _equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: a number is no boolean."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
