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

NOWHERE: Mapping[str, Accepted] = dict.fromkeys(
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
_CONSTRAINTS = frozenset(
    (
        *("ebnf", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "regex"),
        *("structural_tag", "structured_outputs"),
    )
)
"""Those of them that completions and chats implement."""
_NATIVE_CONSTRAINTS = frozenset(("ebnf", "json_schema", "regex", "structural_tag"))
"""Those of them that SGLang's `sampling_params` implement."""
SAMPLING: Mapping[str, Accepted] = {
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
LABELS: Mapping[str, Accepted] = {
    "cache_prompt": bool,
    "chat_id": str,
    "id_slot": int,
    "keep_alive": object,
    "metadata": dict,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "request_id": str,
    "safety_identifier": str,
    "session_id": str,
    "user": str,
}
DECODING: Mapping[str, Accepted] = {"spaces_between_special_tokens": bool}
"""Means tokenizers without the `tokenizers` library, of which none is served. With it, vLLM and SGLang put no spaces
between special tokens either, whatever the field says."""
_OPENAI: Mapping[str, Accepted] = {
    **{name: accepted for name, accepted in NOWHERE.items() if name not in _CONSTRAINTS},
    **SAMPLING,
    **LABELS,
    **DECODING,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "guided_decoding_backend": str,
    "input_ids": (),
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
    **{name: accepted for name, accepted in _OPENAI.items() if name not in ("tools", "tool_choice")},
    "add_special_tokens": (False,),
    "audio": (),
    "echo": (False,),
    "modalities": (["text"],),
    "prompt": (),
}
GENERATE: Mapping[str, Accepted] = {
    **{name: accepted for name, accepted in NOWHERE.items() if name != "sampling_params"},
    **LABELS,
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
    **{
        name: accepted
        for name, accepted in NOWHERE.items()
        if name != "max_new_tokens" and name not in _NATIVE_CONSTRAINTS
    },
    **SAMPLING,
    **DECODING,
    "custom_params": ({},),
    "max_tokens": (),
    "response_format": ({"type": "text"},),
    "stream_interval": (1,),
}
TOKENIZE: Mapping[str, Accepted] = {"chat_template": (), "mm_processor_kwargs": (), "text": ()}
DETOKENIZE: Mapping[str, Accepted] = {"ids": (), "text": ()}
_OLLAMA: Mapping[str, Accepted] = {
    **{name: accepted for name, accepted in NOWHERE.items() if name not in ("format", "options", "raw", "system")},
    **LABELS,
    "_debug_render_only": (False,),
    "frequency_penalty": (),
    "images": ([],),
    "max_tokens": (),
    "min_p": (),
    "num_ctx": (),
    "presence_penalty": (),
    "repeat_penalty": (),
    "response_format": ({"type": "text"},),
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
    **{name: accepted for name, accepted in NOWHERE.items() if name not in ("max_length", "max_new_tokens")},
    **LABELS,
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
_OLLAMA_EMBEDDING: Mapping[str, Accepted] = {
    **{name: accepted for name, accepted in EMBEDDING.items() if name not in ("options", "prompt")},
    "truncate": bool,
}
OLLAMA_EMBED: Mapping[str, Accepted] = {**_OLLAMA_EMBEDDING, "prompt": ()}
OLLAMA_EMBEDDING: Mapping[str, Accepted] = {**_OLLAMA_EMBEDDING, "input": ()}
MESSAGE: Mapping[str, Accepted] = {
    "annotations": list,
    "audio": ({}, []),
    "function_call": ({}, []),
    "refusal": ("", []),
}
"""Of messages that clients repeat from answers."""
SEND_INSTEAD: Mapping[str, str] = {
    "format": "response_format",
    "enable_thinking": 'chat_template_kwargs: {"enable_thinking": ...}',
    "function_call": "tool_choice",
    "functions": "tools",
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
    "format": "response_format",
    **{name: f"options.{name}" for name in _OF_OPTIONS},
    **dict.fromkeys(("max_length", "max_new_tokens", "max_tokens", "n_predict"), "options.num_predict"),
    "context": "the conversation so far to /api/chat",
    "enable_thinking": "think",
    "prompt": "a message with role user",
    **dict.fromkeys(("guided_json", "json_schema", "response_format"), "format"),
    "raw": "the text to /api/generate",
    "system": "a message with role system",
    "thinking": "think",
}
"""The same for bodies of Ollama's API."""
