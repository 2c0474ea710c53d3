"""Fields of other APIs that Sluice does not implement: those that change no answer, and those that would.

There is one table for all routes: a route's own fields come first, and the table is asked for the rest. It maps a field
to what is accepted of it. A JSON type: the field is harmless, it only labels the request, hints at how to serve it or
concerns what is not served, so it has no effect. A tuple: the field would change the answer, and only these values are
accepted, and those that ask for nothing anywhere (`is_neutral`). Fields that a route's part of the table does not have
are unknown (see `unknown_fields`), also those that mean something to another route.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

Accepted = tuple[Any, ...] | type
_LENGTHS = ("max_length", "max_new_tokens", "max_tokens", "max_completion_tokens", "n_predict", "num_predict")
_FORMATS = ("format", "guided_json", "json_schema", "response_format")
_OF_ANSWERS = (
    *(*_LENGTHS, *_FORMATS, "allowed_token_ids", "audio", "bad_words", "chat_template", "custom_logit_processor"),
    *("custom_params", "documents", "dry_multiplier", "dynatemp_range", "ebnf", "echo", "enable_thinking"),
    *("frequency_penalty", "function_call", "functions", "grammar", "guided_choice", "guided_grammar", "guided_regex"),
    *("image_data", "images", "input_embeds", "input_ids", "kv_transfer_params", "length_penalty", "logits_processors"),
    *("logprobs", "messages", "min_p", "mirostat", "mm_processor_kwargs", "num_ctx", "options"),
    *("prediction", "presence_penalty", "prompt", "prompt_embeds", "raw", "reasoning_effort", "regex"),
    *("repeat_penalty", "repetition_penalty", "return_hidden_states", "return_routed_experts"),
    *("sampling_params", "seed", "stop", "stream_interval", "structural_tag", "structured_outputs", "suffix", "system"),
    *("temperature", "template", "text", "tfs_z", "thinking", "tool_choice", "tools", "top_a", "top_k"),
    *("top_logprobs", "top_p", "truncate_prompt_tokens", "typical_p", "use_beam_search", "verbosity"),
    *("web_search_options", "xtc_probability", "context", "continue_final_message", "add_special_tokens"),
    *("_debug_render_only", "chat_template_kwargs", "modalities", "penalize_newline", "logits_all", "vocab_only"),
)
"""Fields that change an answer."""
_SPECIAL: Mapping[str, Accepted] = {
    **dict.fromkeys(("length_penalty", "repeat_penalty", "repetition_penalty", "stream_interval"), (1,)),
    **dict.fromkeys(("tfs_z", "top_p", "typical_p"), (1,)),
    **dict.fromkeys(("normalize", "penalize_newline", "use_activation"), (True,)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    **dict.fromkeys(("modalities", "rank_fields"), (["text"],)),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "pooling": ("last", "lasttoken"),
    "response_format": ({"type": "text"},),
    "thinking": ({"type": "disabled"},),
    "truncation": ("disabled",),
}
"""Values beside those that ask for nothing anywhere."""
_HARMLESS: Mapping[str, Accepted] = {
    **dict.fromkeys(("cache_prompt", "f16_kv", "log_metrics", "low_vram", "numa", "shift"), bool),
    **dict.fromkeys(("spaces_between_special_tokens", "use_mlock", "use_mmap", "verbose"), bool),
    **dict.fromkeys(("chat_id", "guided_decoding_backend", "inference_geo", "prompt_cache_key"), str),
    **dict.fromkeys(("prompt_cache_retention", "request_id", "routing_key", "safety_identifier"), str),
    **dict.fromkeys(("session_id", "speed", "user"), str),
    **dict.fromkeys(("draft_num_predict", "id_slot", "main_gpu", "max_tool_calls", "num_batch", "num_gpu"), int),
    **dict.fromkeys(("num_keep", "num_thread"), int),
    **dict.fromkeys(("cache_control", "client_metadata", "metadata"), dict),
    **dict.fromkeys(("keep_alive", "mirostat_eta", "mirostat_tau", "truncate"), object),
    "betas": list,
}
"""`spaces_between_special_tokens` means tokenizers without the `tokenizers` library, of which none is served. Nothing
is ever shifted out of a context, so `num_keep` keeps nothing. Prefixes are always cached, so `cache_control` asks for
nothing more. All answers come at one `speed`. Of another type, a value is named as those of unknown fields are.
"""


def _table(*names: str) -> dict[str, Accepted]:
    return {**{name: _SPECIAL.get(name, ()) for name in names}, **_HARMLESS}


UNSUPPORTED: dict[str, Accepted] = _table(*_OF_ANSWERS)
"""Fields of bodies that ask for an answer, and of `options` and `sampling_params` in them."""
OF_RESPONSES: Mapping[str, Accepted] = UNSUPPORTED | _table("background", "conversation", "truncation")
OF_MESSAGES: Mapping[str, Accepted] = UNSUPPORTED | _table("container", "context_management", "mcp_servers")
_OF_PROMPTS = ("chat_template", "ids", "input", "input_ids", "mm_processor_kwargs", "text")
OF_TEXTS: Mapping[str, Accepted] = dict.fromkeys(_OF_PROMPTS, ())
"""Fields of calls that only count or spell tokens. Clients send them the body of a chat, most of which concerns
none."""
OF_EMBEDDINGS: Mapping[str, Accepted] = _table(
    *("chat_template", "embed_dtype", "embedding_only", "endianness", "ids", "image_data", "images", "input"),
    *("input_embeds", "input_ids", "input_type", "instruction", "max_tokens_per_doc", "messages"),
    *("mm_processor_kwargs", "normalize", "output_format", "pooling", "prompt", "prompt_embeds", "rank_fields", "task"),
    *("text", "texts", "truncate_prompt_tokens", "truncation", "use_activation"),
)
"""Fields of calls that embed texts. Settings of generation change no embedding, and clients send them to all routes."""
_OF_OTHERS = (
    *("conversation_id", "frequency_penalty_range", "inputs", "min_new_tokens", "mode", "models", "parse_tool_calls"),
    *("presence_penalty_range", "reasoning_format", "repetition_penalty_range", "repetition_penalty_slope"),
    *("return_tokens", "samplers", "search_options", "stop_sequence", "top_logprobs_num", "typical"),
)
"""Fields of other servers whose names are like those of fields here."""


IN_PARTS: Mapping[str, Accepted] = {
    **dict.fromkeys(("created_by", "display", "encrypted_content", "id", "namespace", "phase", "status"), str),
    **dict.fromkeys(("allowed_callers", "annotations", "citations", "input_examples", "logprobs"), list),
    **dict.fromkeys(("cache_control", "caller", "prompt_cache_breakpoint"), dict),
    "defer_loading": bool,
    "eager_input_streaming": bool,
    **dict.fromkeys(("images", "task_budget"), ()),
}
"""Fields of messages, items, blocks and tools, which clients repeat from answers, and of objects that set one thing.

Arguments are always streamed as they come; a chat template has no place for examples.
"""
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
_CONSTRAINTS = ("ebnf", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema")
_OWN: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys((*_CONSTRAINTS, "guided_whitespace_pattern", "regex", "structural_tag"), ("", [])),
    **dict.fromkeys(("model", "reasoning_effort", "service_tier", "tool_choice", "verbosity"), ("",)),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens", "seed"), (-1,)),
    **dict.fromkeys(("repetition_penalty", "repeat_penalty"), (0,)),
    **dict.fromkeys(("response_format", "stream_options", "thinking"), ({},)),
    **dict.fromkeys(("stop", "stop_sequences"), ("",)),
    **dict.fromkeys(("guided_json", "json_schema"), ("", [], {})),
    "logit_bias": ([],),
    "lora_path": ("", []),
    "num_ctx": (0, -1),
    "sampling_seed": (-1,),
    "truncate_prompt_tokens": (-1,),
}
"""Values of fields with an effect by which other servers' clients say that they ask for nothing."""
FOREIGN = frozenset((*UNSUPPORTED, *OF_RESPONSES, *OF_MESSAGES, *OF_EMBEDDINGS, *OF_TEXTS, *_OF_OTHERS, *_INSTEAD))
"""Names that other servers or routes know: they misspell none."""


ZERO_ASKS = frozenset((*_LENGTHS, "seed", "temperature"))
"""Fields of which 0 asks for something. Elsewhere it turns off what is not implemented."""


def is_neutral(name: str, value: Any, accepted: tuple[Any, ...] = ()) -> bool:
    """Return whether a value of a field that is not implemented asks for nothing.

    Args:
        accepted: values that do for this field. Where true is one of them, false asks for something.
    """
    # In JSON a number is no boolean, while in Python 0 equals False.
    if isinstance(value, bool):
        return any(value is other for other in accepted) or (not value and True not in accepted)
    if isinstance(value, int | float):
        return value == -1 or (value == 0 and name not in ZERO_ASKS) or value in accepted
    return value in ("", [], {}) or value in accepted


def asks_for_nothing(name: str, value: Any) -> bool:
    """Return whether a value of a field with an effect is the same as leaving it out."""
    return not isinstance(value, bool) and value in _OWN.get(name, ())


def instead_of(name: str, known: Collection[str]) -> str | None:
    """Return what says the same as a field where these fields are known; None if nothing does."""
    return next((other for other in _INSTEAD.get(name, ()) if re.split(r"\W", other)[0] in known), None)
