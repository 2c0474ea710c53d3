"""Fields of Anthropic's API that Sluice does not implement (see `unsupported_fields`)."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.http.base.unsupported_fields import DECODING, LABELS, NOWHERE, SAMPLING, SEND_INSTEAD, Accepted

MESSAGES: Mapping[str, Accepted] = {
    **{name: accepted for name, accepted in NOWHERE.items() if name not in ("system", "thinking")},
    **SAMPLING,
    **LABELS,
    **DECODING,
    "betas": list,
    "cache_control": dict,
    "container": (),
    "inference_geo": str,
    "input": (),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "mcp_servers": ([],),
    "output_format": (),
    "prompt": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "stop": (),
    "top_logprobs": (),
}
"""Of Anthropic's `POST /v1/messages`. Prefixes are always cached, so `cache_control` asks for nothing more."""
MESSAGES_BLOCK: Mapping[str, Accepted] = {"cache_control": dict, "caller": dict, "citations": list}
"""Of blocks that clients repeat from answers."""
MESSAGES_TOOL: Mapping[str, Accepted] = {
    "allowed_callers": list,
    "cache_control": dict,
    "defer_loading": (False,),
    "eager_input_streaming": bool,
    "input_examples": list,
}
"""Of tools. Arguments are always streamed as they come; a chat template has no place for examples."""
THINKING: Mapping[str, Accepted] = {"display": str}
OUTPUT_CONFIG: Mapping[str, Accepted] = {"task_budget": ()}
MESSAGES_SEND_INSTEAD: Mapping[str, str] = {
    **SEND_INSTEAD,
    "enable_thinking": "thinking",
    "input": "messages",
    "max_completion_tokens": "max_tokens",
    "prompt": "messages",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
}
"""The same for bodies of Anthropic's API."""
