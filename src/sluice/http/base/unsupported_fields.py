"""Fields of other APIs that Sluice does not implement: those that change no answer, and those that would.

There is one table for all routes: a route's own fields come first, and the table is asked for the rest. It maps a field
to what is accepted of it. A JSON type: the field is harmless, it only labels the request, hints at how to serve it or
concerns what is not served, so every value of the type is accepted and has no effect. A tuple: the field would change
the answer, and only these values, which ask for nothing, and null are accepted. Fields that are neither in the table
nor a route's own are unknown (see `unknown_fields`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

Accepted = tuple[Any, ...] | type
KINDS: Mapping[type, str] = {str: "a text", dict: "an object", bool: "true or false", list: "a list", int: "an integer"}
"""What a refusal calls a type; `object` takes every value."""
_REFUSED = (
    *(
        "allowed_token_ids",
        "audio",
        "bad_words",
        "chat_template",
        "container",
        "conversation",
        "custom_logit_processor",
    ),
    *("ebnf", "enable_thinking", "format", "frequency_penalty", "grammar", "guided_choice"),
    *("guided_grammar", "guided_json", "guided_regex", "ids", "image_data", "input", "input_embeds", "input_ids"),
    *("input_type", "json_schema", "kv_transfer_params", "logits_processors", "lora_path", "max_completion_tokens"),
    *("max_length", "max_new_tokens", "max_tokens", "max_tokens_per_doc", "messages", "min_p", "mm_processor_kwargs"),
    *(
        "n_predict",
        "num_ctx",
        "num_predict",
        "options",
        "output_format",
        "prediction",
        "presence_penalty",
        "prompt_embeds",
    ),
    *("reasoning_effort", "regex", "repetition_penalty", "samplers", "sampling_params", "seed", "stop"),
    *("structural_tag", "structured_outputs", "task", "temperature", "text", "texts", "thinking", "top_k"),
    *("top_logprobs", "top_p", "truncate_prompt_tokens", "verbosity", "web_search_options"),
)
"""Fields that are refused with any value but null."""
UNSUPPORTED: Mapping[str, Accepted] = {
    **dict.fromkeys(_REFUSED, ()),
    **dict.fromkeys(("dry_multiplier", "dynatemp_range", "mirostat", "top_a", "xtc_probability"), (0,)),
    **dict.fromkeys(("height", "steps", "width"), (0,)),
    **dict.fromkeys(("length_penalty", "repeat_penalty", "stream_interval", "tfs_z", "typical_p"), (1,)),
    **dict.fromkeys(("_debug_render_only", "add_special_tokens", "background", "continue_final_message"), (False,)),
    **dict.fromkeys(("echo", "embedding_only", "logits_all", "logprobs", "raw", "return_hidden_states"), (False,)),
    **dict.fromkeys(("return_routed_experts", "use_beam_search", "vocab_only"), (False,)),
    **dict.fromkeys(("normalize", "penalize_newline", "use_activation"), (True,)),
    **dict.fromkeys(("prompt", "suffix", "system", "template"), ("",)),
    **dict.fromkeys(("context", "context_management", "documents", "functions", "images"), ([],)),
    **dict.fromkeys(("mcp_servers", "tools"), ([],)),
    **dict.fromkeys(("chat_template_kwargs", "custom_params"), ({},)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    **dict.fromkeys(("modalities", "rank_fields"), ([], ["text"])),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "pooling": ("last", "lasttoken"),
    "response_format": ({"type": "text"},),
    "truncation": ("disabled",),
    **dict.fromkeys(("cache_prompt", "f16_kv", "log_metrics", "low_vram", "numa", "shift"), bool),
    **dict.fromkeys(("spaces_between_special_tokens", "use_mlock", "use_mmap", "verbose"), bool),
    **dict.fromkeys(("chat_id", "guided_decoding_backend", "inference_geo", "prompt_cache_key"), str),
    **dict.fromkeys(("prompt_cache_retention", "request_id", "routing_key", "safety_identifier"), str),
    **dict.fromkeys(("session_id", "user"), str),
    **dict.fromkeys(("draft_num_predict", "id_slot", "main_gpu", "max_tool_calls", "num_batch", "num_gpu"), int),
    **dict.fromkeys(("num_keep", "num_thread"), int),
    **dict.fromkeys(("cache_control", "client_metadata", "metadata"), dict),
    **dict.fromkeys(("keep_alive", "mirostat_eta", "mirostat_tau", "truncate"), object),
    "betas": list,
}
"""Fields of bodies, and of `options` and `sampling_params` in them.

`spaces_between_special_tokens` means tokenizers without the `tokenizers` library, of which none is served. Nothing is
ever shifted out of a context, so `num_keep` keeps nothing. Prefixes are always cached, so `cache_control` asks for
nothing more.
"""
OF_TEXTS: Mapping[str, Accepted] = {
    name: UNSUPPORTED[name] for name in ("chat_template", "ids", "input", "input_ids", "mm_processor_kwargs", "text")
}
"""Fields of calls that only count or spell tokens. Clients send them the body of a chat, most of which concerns
none."""
_GENERATION = frozenset(
    (
        *("frequency_penalty", "max_completion_tokens", "max_tokens", "min_p", "presence_penalty", "reasoning_effort"),
        *("repetition_penalty", "seed", "stop", "temperature", "tool_choice", "tools", "top_k", "top_logprobs"),
        *("top_p", "verbosity"),
    )
)
OF_EMBEDDINGS: Mapping[str, Accepted] = {
    name: accepted for name, accepted in UNSUPPORTED.items() if name not in _GENERATION
}
"""Fields of calls that embed texts. Settings of generation change no embedding, and clients send them to all routes."""
IN_PARTS: Mapping[str, Accepted] = {
    **dict.fromkeys(("audio", "function_call"), ({}, [])),
    **dict.fromkeys(("created_by", "display", "encrypted_content", "id", "namespace", "phase", "status"), str),
    **dict.fromkeys(("allowed_callers", "annotations", "citations", "input_examples", "logprobs"), list),
    **dict.fromkeys(("cache_control", "caller", "prompt_cache_breakpoint"), dict),
    "defer_loading": (False,),
    "eager_input_streaming": bool,
    "images": ([],),
    "refusal": ("", []),
    "task_budget": (),
}
"""Fields of messages, items, blocks and tools, which clients repeat from answers, and of objects that set one thing.

Arguments are always streamed as they come; a chat template has no place for examples.
"""
_LENGTHS = ("max_length", "max_new_tokens", "max_tokens", "max_completion_tokens", "n_predict", "num_predict")
_FORMATS = ("format", "guided_json", "json_schema", "response_format")
_OPTIONS = ("frequency_penalty", "min_p", "num_ctx", "presence_penalty", "seed", "temperature", "top_k", "top_p")
_INSTEAD: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_LENGTHS, ("max_tokens", "max_output_tokens", "options.num_predict", "num_predict")),
    **dict.fromkeys(_FORMATS, ("response_format", "format", "text.format", "output_config.format")),
    **{name: (f"options.{name}",) for name in _OPTIONS},
    **dict.fromkeys(
        ("enable_thinking", "thinking"), ("think", "thinking", 'chat_template_kwargs: {"enable_thinking": ...}')
    ),
    "function_call": ("tool_choice",),
    "functions": ("tools",),
    "input": ("messages",),
    "messages": ("input",),
    "prompt": ("messages", "input"),
    "reasoning_effort": ("reasoning.effort", "output_config.effort"),
    "repeat_penalty": ("repetition_penalty", "options.repeat_penalty"),
    "repetition_penalty": ("repeat_penalty",),
    "stop": ("stop_sequences", "options.stop"),
    "system": ("instructions", "messages with one of role system"),
    "verbosity": ("text.verbosity",),
}
"""What says the same in one API or another. Each begins with the name of a field."""


def instead_of(name: str, known: Collection[str]) -> str | None:
    """Return what says the same as a field where these fields are known; None if nothing does."""
    return next((other for other in _INSTEAD.get(name, ()) if re.split(r"\W", other)[0] in known), None)
