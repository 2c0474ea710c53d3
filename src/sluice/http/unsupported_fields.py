"""Fields of other APIs that Sluice does not implement: those that change no answer, and those that would.

A table maps a field to what is accepted of it. A JSON type: the field is harmless, it only labels the request, hints
at how to serve it or concerns what is not served, so every value of the type is accepted and has no effect. A tuple:
the field would change the answer, and only these values, which ask for nothing, and null are accepted. Fields that are
in no table and no struct are unknown (see `unknown_fields`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Accepted = tuple[Any, ...] | type
KINDS: Mapping[type, str] = {str: "a text", dict: "an object", bool: "true or false", list: "a list", int: "an integer"}
"""What a refusal calls a type; `object` takes every value."""

_NOWHERE: Mapping[str, Accepted] = dict.fromkeys(
    (
        "allowed_token_ids",
        "bad_words",
        "chat_template",
        "custom_logit_processor",
        "ebnf",
        "enable_thinking",
        "format",
        "grammar",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "image_data",
        "images",
        "input_embeds",
        "json_schema",
        "kv_transfer_params",
        "logits_processors",
        "lora_path",
        "max_length",
        "max_new_tokens",
        "mirostat",
        "mm_processor_kwargs",
        "n_predict",
        "num_predict",
        "options",
        "prediction",
        "prompt_embeds",
        "raw",
        "regex",
        "sampling_params",
        "samplers",
        "structural_tag",
        "structured_outputs",
        "system",
        "template",
        "thinking",
        "truncate_prompt_tokens",
        "truncation",
        "web_search_options",
    ),
    (),
)
"""Refused on every route that does not implement them: without them, the answer would be another one."""
_SAMPLING: Mapping[str, Accepted] = {
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "length_penalty": (1,),
    "repeat_penalty": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "xtc_probability": (0,),
}
_LABELS: Mapping[str, Accepted] = {
    "cache_prompt": bool,
    "chat_id": str,
    "id_slot": int,
    "keep_alive": object,
    "metadata": dict,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "request_id": str,
    "safety_identifier": str,
    "service_tier": str,
    "session_id": str,
    "user": str,
}
_DECODING: Mapping[str, Accepted] = {"spaces_between_special_tokens": bool}
"""Means tokenizers without the `tokenizers` library, of which none is served. With it, vLLM and SGLang put no spaces
between special tokens either, whatever the field says."""
_OPENAI: Mapping[str, Accepted] = {
    **_NOWHERE,
    **_SAMPLING,
    **_LABELS,
    **_DECODING,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "input_ids": (),
    "response_format": ({"type": "text"},),
    "text": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
}
COMPLETION: Mapping[str, Accepted] = {
    **_OPENAI,
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "messages": (),
    "suffix": ("",),
    "top_logprobs": (),
}
CHAT: Mapping[str, Accepted] = {
    **_OPENAI,
    "add_special_tokens": (False,),
    "audio": (),
    "echo": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": bool,
    "prompt": (),
}
GENERATE: Mapping[str, Accepted] = {
    **{name: accepted for name, accepted in _NOWHERE.items() if name != "sampling_params"},
    **_LABELS,
    "log_metrics": bool,
    "max_tokens": (),
    "messages": (),
    "modalities": ([], ["text"]),
    "prompt": (),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "routing_key": str,
    "temperature": (),
}
GENERATE_SAMPLING: Mapping[str, Accepted] = {
    **{name: accepted for name, accepted in _NOWHERE.items() if name != "max_new_tokens"},
    **_SAMPLING,
    **_DECODING,
    "custom_params": ({},),
    "max_tokens": (),
    "stream_interval": (1,),
}
TOKENIZE: Mapping[str, Accepted] = {"chat_template": (), "mm_processor_kwargs": (), "text": (), "tools": ([],)}
DETOKENIZE: Mapping[str, Accepted] = {"ids": (), "text": ()}
_OLLAMA: Mapping[str, Accepted] = {
    **{name: accepted for name, accepted in _NOWHERE.items() if name not in ("options", "raw", "system")},
    **_LABELS,
    "_debug_render_only": (False,),
    "format": ("",),
    "frequency_penalty": (),
    "images": ([],),
    "max_tokens": (),
    "min_p": (),
    "num_ctx": (),
    "presence_penalty": (),
    "repeat_penalty": (),
    "seed": (),
    "shift": bool,
    "stop": (),
    "temperature": (),
    "template": ("",),
    "top_k": (),
    "top_p": (),
    "truncate": bool,
}
OLLAMA_CHAT: Mapping[str, Accepted] = {
    **_OLLAMA,
    "prompt": ("",),
    "raw": (False,),
    "system": ("",),
    "tools": ([],),
}
OLLAMA_GENERATE: Mapping[str, Accepted] = {
    **_OLLAMA,
    "context": ([],),
    "height": (0,),
    "messages": (),
    "steps": (0,),
    "suffix": ("",),
    "width": (0,),
}
OLLAMA_OPTIONS: Mapping[str, Accepted] = {
    "draft_num_predict": int,
    "embedding_only": (False,),
    "f16_kv": bool,
    "logits_all": (False,),
    "low_vram": bool,
    "main_gpu": int,
    "max_tokens": (),
    "mirostat": (0,),
    "mirostat_eta": object,
    "mirostat_tau": object,
    "num_batch": int,
    "num_gpu": int,
    "num_keep": int,
    "num_thread": int,
    "numa": bool,
    "penalize_newline": (True,),
    "repetition_penalty": (),
    "tfs_z": (1,),
    "typical_p": (1,),
    "use_mlock": bool,
    "use_mmap": bool,
    "vocab_only": (False,),
}
"""Of Ollama's `options`. Nothing is ever shifted out of a context, so `num_keep` keeps nothing."""
OLLAMA_MESSAGE: Mapping[str, Accepted] = {"images": ([],)}
OLLAMA_SHOW: Mapping[str, Accepted] = {"options": dict, "system": ("",), "template": ("",), "verbose": bool}
_EMBEDDING: Mapping[str, Accepted] = {
    **{name: accepted for name, accepted in _NOWHERE.items() if name not in ("max_length", "max_new_tokens")},
    **_LABELS,
    "embed_dtype": ("float32",),
    "input_type": (),
    "max_tokens_per_doc": (),
    "messages": (),
    "normalize": (True,),
    "pooling": ("last", "lasttoken"),
    "prompt": (),
    "task": (),
    "use_activation": (True,),
}
"""Of calls that embed texts."""
EMBEDDING: Mapping[str, Accepted] = {**_EMBEDDING, "endianness": ("native", "little"), "input_ids": (), "texts": ()}
RERANK: Mapping[str, Accepted] = {**_EMBEDDING, "input": (), "rank_fields": ([], ["text"])}
SCORE: Mapping[str, Accepted] = {**_EMBEDDING, "input": ()}
MESSAGE: Mapping[str, Accepted] = {
    "annotations": list,
    "audio": ({}, []),
    "function_call": ({}, []),
    "refusal": ("", []),
}
"""Of messages that clients repeat from answers."""
TABLES: Mapping[str, Mapping[str, Accepted]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "messages": MESSAGE,
    "/generate": GENERATE,
    "sampling_params": GENERATE_SAMPLING,
    "/v1/embeddings": EMBEDDING,
    "/rerank": RERANK,
    "/score": SCORE,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
    "/api/chat": OLLAMA_CHAT,
    "/api/generate": OLLAMA_GENERATE,
    "options": OLLAMA_OPTIONS,
    "/api/chat messages": OLLAMA_MESSAGE,
    "/api/show": OLLAMA_SHOW,
}
SEND_INSTEAD: Mapping[str, str] = {
    "enable_thinking": 'chat_template_kwargs: {"enable_thinking": ...}',
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "system": "a message with role system",
    "thinking": 'chat_template_kwargs: {"enable_thinking": ...}',
}
"""Fields by which other APIs say the same."""
_OF_OPTIONS = (
    *("frequency_penalty", "min_p", "num_ctx", "num_predict", "presence_penalty", "repeat_penalty", "seed", "stop"),
    *("temperature", "top_k", "top_p"),
)
OLLAMA_SEND_INSTEAD: Mapping[str, str] = {
    **{name: f"options.{name}" for name in _OF_OPTIONS},
    **dict.fromkeys(("max_length", "max_new_tokens", "max_tokens", "n_predict"), "options.num_predict"),
    "context": "the conversation so far to /api/chat",
    "enable_thinking": "think",
    "prompt": "a message with role user",
    "raw": "the text to /api/generate",
    "system": "a message with role system",
    "thinking": "think",
}
"""The same for bodies of Ollama's API."""
