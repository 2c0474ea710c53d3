"""The bodies that front ends send at their defaults, to the servers whose settings they show: all succeed at once."""

from __future__ import annotations

from typing import Any

import pytest

from scripted import scripted
from serving import run

SYSTEM = {"role": "system", "content": "You are kind."}
SAID = [SYSTEM, {"role": "user", "content": "hi"}]
SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
DRY = {"dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 0}
TEXT_SETTINGS: dict[str, Any] = {
    "prompt": "User: hi\nBot:",
    "model": "scripted",
    "stream": True,
    "stop": ["\nUser:"],
    "n": 1,
    "max_new_tokens": 200,
    "max_tokens": 200,
    "n_predict": 200,
    "num_predict": 200,
    "min_tokens": 0,
    "temperature": 1,
    "top_p": 1,
    "typical_p": 1,
    "typical": 1,
    "min_p": 0.1,
    "top_k": 0,
    "top_a": 0,
    "tfs": 1,
    "tfs_z": 1,
    "repetition_penalty": 1,
    "rep_pen": 1,
    "repeat_penalty": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty_range": 0,
    "rep_pen_range": 0,
    "repeat_last_n": 0,
    "skew": 0,
    "repetition_penalty_slope": 0,
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "length_penalty": 1,
    "num_beams": 1,
    "early_stopping": False,
    "penalty_alpha": 0,
    "guidance_scale": 1,
    "negative_prompt": "",
    "add_bos_token": True,
    "ban_eos_token": False,
    "skip_special_tokens": True,
    "truncation_length": 2048,
    "do_sample": True,
    "seed": -1,
    "sampler_seed": -1,
    "ignore_eos": False,
    "mirostat_mode": 0,
    "mirostat": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "dynamic_temperature": False,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "min_keep": 0,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "xtc_threshold": 0.1,
    "xtc_probability": 0,
    "nsigma": 0,
    "custom_token_bans": "",
    "banned_tokens": "",
    "banned_strings": [],
    "logit_bias": [],
    "grammar": "",
    "grammar_string": "",
    "json_schema": {},
    "guided_json": None,
    "guided_regex": "",
    "stopping_strings": ["\nUser:"],
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "samplers": SAMPLERS,
    "cache_prompt": True,
    "n_probs": 0,
    "spaces_between_special_tokens": True,
    "speculative_ngram": False,
    "include_reasoning": True,
    "dry_sequence_breakers": '["\\n"]',
    "api_type": "vllm",
    "logprobs": None,
    **DRY,
}
LLAMA: dict[str, Any] = {
    "messages": SAID,
    "stream": True,
    "return_progress": True,
    "model": "scripted",
    "reasoning_format": "auto",
    "temperature": 0.8,
    "max_tokens": -1,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "typ_p": 1,
    "repeat_last_n": 64,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "samplers": SAMPLERS,
    "timings_per_token": True,
    **DRY,
    "backend_sampling": False,
    "custom": {},
    "n_keep": 0,
    "cache_prompt": True,
    "reasoning_budget": -1,
}
LLAMA_OLDER = {name: value for name, value in LLAMA.items() if name != "reasoning_format"} | {
    "samplers": "edkypmxt",
    "stream": False,
    "grammar": "",
    "id_slot": -1,
    "post_sampling_probs": False,
}
OPEN_WEBUI: dict[str, Any] = {
    "stream": True,
    "model": "scripted",
    "messages": SAID,
    "stream_options": {"include_usage": True},
    "metadata": {"user_id": "1", "chat_id": "2", "features": {"web_search": False}},
    "features": {"image_generation": False, "code_interpreter": False},
    "variables": {"{{USER_NAME}}": "a"},
    "session_id": "s",
    "chat_id": "c",
    "id": "m",
    "background_tasks": {"title_generation": True},
    "tool_ids": None,
    "filter_ids": [],
    "files": [],
}
TITLE: dict[str, Any] = {
    "model": "scripted",
    "messages": SAID,
    "stream": False,
    "max_completion_tokens": 1000,
    "metadata": {"task": "t"},
}
OLLAMA: dict[str, Any] = {
    "model": "scripted:latest",
    "messages": [{"role": "user", "content": "hi", "images": []}],
    "stream": True,
    "options": {"num_ctx": 2048, "repeat_last_n": 64, "tfs_z": 1, "mirostat": 0, "num_keep": 24, "stop": []},
    "keep_alive": "5m",
    "format": "",
    "tools": [],
    "think": None,
}
LIBRE_CHAT: dict[str, Any] = {
    "model": "scripted",
    "temperature": 1,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "n": 1,
    "stream": True,
    "stream_options": {"include_usage": True},
    "stop": [],
    "user": "64f",
    "messages": [*SAID, {"role": "assistant", "content": "Hm", "name": None}, {"role": "user", "content": SAID[1:]}],
}
LIBRE_CHAT["messages"][3] = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
NAMED = {
    "name": "title",
    "description": "",
    "parameters": {"type": "object", "properties": {"title": {"type": "string"}}},
}
LIBRE_TITLE = LIBRE_CHAT | {
    "stream": False,
    "tools": [{"type": "function", "function": NAMED | {"strict": None}}],
    "tool_choice": {"type": "function", "function": {"name": "title"}},
    "parallel_tool_calls": False,
}
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/completions", TEXT_SETTINGS, id="SillyTavern, texts"),
        pytest.param(CHAT, {**TEXT_SETTINGS, "messages": SAID, "prompt": None}, id="SillyTavern, chats"),
        pytest.param(CHAT, LLAMA, id="llama.cpp"),
        pytest.param(CHAT, LLAMA_OLDER, id="llama.cpp, older"),
        pytest.param(CHAT, OPEN_WEBUI, id="Open WebUI"),
        pytest.param(CHAT, TITLE, id="Open WebUI, titles"),
        pytest.param("/api/chat", OLLAMA, id="Open WebUI, Ollama"),
        pytest.param(CHAT, LIBRE_CHAT, id="LibreChat"),
        pytest.param(CHAT, LIBRE_TITLE, id="LibreChat, titles"),
    ],
)
def test_defaults_succeed(path: str, body: dict[str, Any]) -> None:
    """Each met three to eleven refusals, one after the other."""

    async def test() -> None:
        async with scripted("Hello.") as server:
            answer = await server.post(path, **body)
            assert answer.status_code == 200, answer.text
            assert len(server.submitted) == 1

    run(test)
