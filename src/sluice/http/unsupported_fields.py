"""Fields of OpenAI's, vLLM's and SGLang's APIs that Sluice does not implement.

A request may carry one as long as its value asks for nothing: null, or what the tables below accept. Any other value is
refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Accepted = tuple[Any, ...] | type
"""The accepted values, or a JSON type of which every value is: the field only labels the request, or hints at how to
serve it."""
KINDS: Mapping[type, str] = {str: "a text", dict: "an object", bool: "true or false"}

_OPENAI: Mapping[str, Accepted] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "return_token_ids": (False,),
    "tools": ([],),
    "response_format": ({"type": "text"},),
    "user": str,
    "metadata": dict,
    "service_tier": str,
    "prompt_cache_key": str,
    "safety_identifier": str,
}
COMPLETION: Mapping[str, Accepted] = {**_OPENAI, "suffix": ("",), "add_special_tokens": (True,)}
CHAT: Mapping[str, Accepted] = {
    **_OPENAI,
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
GENERATE: Mapping[str, Accepted] = {
    "log_metrics": bool,
    "routing_key": str,
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "modalities": ([], ["text"]),
}
GENERATE_SAMPLING: Mapping[str, Accepted] = {
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "no_stop_trim": (False,),
    "custom_params": ({},),
    "stream_interval": (1,),
}
TOKENIZE: Mapping[str, Accepted] = {
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
    "tools": ([],),
}
DETOKENIZE: Mapping[str, Accepted] = {"skip_special_tokens": (False,)}
