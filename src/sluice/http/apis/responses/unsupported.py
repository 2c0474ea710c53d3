"""Fields of OpenAI's Responses API that Sluice does not implement (see `unsupported_fields`)."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.http.base.unsupported_fields import DECODING, LABELS, NOWHERE, SAMPLING, SEND_INSTEAD, Accepted

RESPONSES: Mapping[str, Accepted] = {
    **{name: accepted for name, accepted in NOWHERE.items() if name not in ("text", "truncation")},
    **SAMPLING,
    **{name: accepted for name, accepted in LABELS.items() if name not in ("metadata", "user")},
    **DECODING,
    "background": (False,),
    "client_metadata": dict,
    "context_management": ([],),
    "conversation": (),
    "input_ids": (),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_tokens": (),
    "max_tool_calls": int,
    "messages": (),
    "prompt": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "truncation": ("disabled",),
    "verbosity": (),
}
"""Of `POST /v1/responses`. There are no hosted tools, whose calls `max_tool_calls` would count."""
RESPONSES_TOOL: Mapping[str, Accepted] = {"allowed_callers": list, "defer_loading": (False,)}
RESPONSES_PART: Mapping[str, Accepted] = {"annotations": list, "logprobs": list, "prompt_cache_breakpoint": dict}
RESPONSES_ITEM: Mapping[str, Accepted] = {
    "created_by": str,
    "encrypted_content": str,
    "id": str,
    "namespace": str,
    "phase": str,
    "status": str,
}
"""Of items of `input` and their parts, which clients repeat from answers."""
RESPONSES_SEND_INSTEAD: Mapping[str, str] = {
    **SEND_INSTEAD,
    **dict.fromkeys(
        ("max_length", "max_new_tokens", "max_tokens", "max_completion_tokens", "n_predict", "num_predict"),
        "max_output_tokens",
    ),
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "system": "instructions",
    "verbosity": "text.verbosity",
}
"""The same for bodies of OpenAI's Responses API."""
