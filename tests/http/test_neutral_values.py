"""Values that ask for nothing are accepted everywhere, and names that other servers know are no misspellings."""

from __future__ import annotations

from typing import Any

import pytest

from scripted import scripted
from serving import run

HEADER = "x-sluice-ignored-fields"
SAID = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"model": "scripted", "max_tokens": 9, "messages": SAID},
    "/generate": {"text": "hi"},
    "/api/chat": {"model": "scripted", "messages": SAID},
    "/api/generate": {"model": "scripted", "prompt": "hi"},
}
EVERYWHERE: tuple[dict[str, Any], ...] = (
    {"image_data": [], "lora_path": "", "use_beam_search": False, "length_penalty": 0, "typical_p": 0},
    {"mirostat": 0, "tfs_z": 1, "dry_multiplier": 0.0, "xtc_probability": 0, "top_a": 0, "samplers": []},
    {"allowed_token_ids": [], "bad_words": [], "logits_processors": [], "prediction": {}, "audio": {}},
    {"truncate_prompt_tokens": -1, "n_predict": -1, "num_predict": -1, "max_length": -1, "repeat_penalty": 1},
    {"template": "", "system": "", "raw": False, "suffix": "", "enable_thinking": False, "documents": []},
    {"thinking": {"type": "disabled"}, "chat_template": "", "images": [], "custom_logit_processor": ""},
    {"web_search_options": {}, "function_call": "auto", "functions": [], "modalities": ["text"]},
    {"safety_identifier": 5, "client_metadata": [], "cache_prompt": 1, "keep_alive": "5m", "num_thread": "all"},
)
OF_OTHERS = (
    *("typical", "return_tokens", "reasoning_format", "models", "repetition_penalty_range", "stop_sequence", "steps"),
    *("repetition_penalty_slope", "frequency_penalty_range", "presence_penalty_range", "min_new_tokens", "task"),
    *("parse_tool_calls", "conversation_id", "mode", "inputs", "search_options", "top_logprobs_num", "ids", "pooling"),
    *("n_probs", "n_keep", "min_keep", "timings_per_token", "dry_base", "xtc_threshold", "rep_pen", "do_sample"),
    *("safe_prompt", "provider", "transforms", "include_reasoning", "separate_reasoning", "top_n_sigma", "tfs"),
)


@pytest.mark.parametrize("path", BODIES)
def test_what_asks_for_nothing_is_accepted(path: str) -> None:
    async def test() -> None:
        async with scripted("yes") as server:
            for fields in EVERYWHERE:
                for name, value in fields.items():
                    answer = await server.post(path, **BODIES[path], **({} if name in BODIES[path] else {name: value}))
                    assert answer.status_code == 200, (name, value, answer.text)

    run(test)


@pytest.mark.parametrize("path", BODIES)
def test_names_of_other_servers_are_ignored_and_named(path: str) -> None:
    """llama.cpp's page always sends `reasoning_format`, which was taken for a misspelt `reasoning_effort`."""

    async def test() -> None:
        async with scripted("yes") as server:
            for name in OF_OTHERS:
                if (path, name) == ("/generate", "top_logprobs_num"):
                    continue
                answer = await server.post(path, **BODIES[path], **{name: 3})
                assert answer.status_code == 200, (name, answer.text)
                assert answer.headers[HEADER] == name
            many = {f"zz{index}": index for index in range(200)}
            answer = await server.post(path, **BODIES[path], **many)
            assert (answer.status_code, answer.headers[HEADER].count(",")) == (200, 16)
            answer = await server.post(path, **BODIES[path], temprature=1)
            assert answer.status_code == 400

    run(test)


OWN: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("/v1/chat/completions", {name: ""}) for name in ("grammar", "regex", "ebnf", "guided_json", "json_schema")),
    *(("/v1/completions", {name: ""}) for name in ("guided_regex", "guided_grammar", "structural_tag", "stop")),
    ("/v1/chat/completions", {"guided_choice": [], "logit_bias": [], "response_format": {}, "stop": [""]}),
    ("/v1/chat/completions", {"max_tokens": -1, "seed": -1, "repetition_penalty": 0, "top_k": 0}),
    (
        "/v1/chat/completions",
        {"max_tokens": 100, "max_new_tokens": 100, "repetition_penalty": 1.2, "repeat_penalty": 1.2},
    ),
    ("/v1/chat/completions", {"stream_options": {"include_usage": True}, "tool_choice": "", "model": ""}),
    ("/v1/chat/completions", {"stream": True, "stream_options": {"include_obfuscation": True}}),
    ("/v1/completions", {"logprobs": None, "top_logprobs": 0, "max_tokens": -1, "n_predict": -1}),
    (
        "/v1/responses",
        {"structured_outputs": {}, "background": False, "max_output_tokens": -1, "truncation": "disabled"},
    ),
    ("/v1/messages", {"stop": [], "tool_choice": "auto", "container": "", "mcp_servers": [], "speed": "standard"}),
    ("/generate", {"sampling_params": {"regex": "", "json_schema": "", "max_new_tokens": -1, "sampling_seed": -1}}),
    ("/api/chat", {"stop": [], "repeat_penalty": 1, "format": "", "options": {"mirostat": 0, "seed": -1}}),
)


@pytest.mark.parametrize(("path", "fields"), OWN)
def test_values_of_fields_with_an_effect_that_ask_for_nothing(path: str, fields: dict[str, Any]) -> None:
    async def test() -> None:
        async with scripted("yes") as server:
            answer = await server.post(path, **(BODIES[path] | fields))
            assert answer.status_code == 200, answer.text
            assert server.submitted[-1].grammar == ""

    run(test)


@pytest.mark.parametrize("count", [0, -1, 8, 10**6])
def test_a_context_of_any_length_may_be_asked_for(count: int) -> None:
    """Ollama's clients send what their settings say, and Ollama gives them what there is."""

    async def test() -> None:
        async with scripted("yes") as server:
            chat = {"options": {"num_ctx": count}, "stream": False}
            for answer in (
                await server.post("/api/chat", **BODIES["/api/chat"], **chat),
                await server.post("/v1/chat/completions", messages=SAID, num_ctx=count),
            ):
                assert answer.status_code == 200, answer.text
                assert answer.headers.get(HEADER, "").endswith("num_ctx") == (count > 8192)

    run(test)


def test_what_asks_for_something_is_still_refused() -> None:
    asking: tuple[dict[str, Any], ...] = (
        {"bad_words": ["x"]},
        {"top_a": 0.5},
        {"max_tokens": 5, "max_new_tokens": 6},
        {"use_beam_search": True},
        {"penalize_newline": False},
        {"n_predict": 0},
        {"custom_logit_processor": "code"},
    )

    async def test() -> None:
        async with scripted("yes") as server:
            for fields in asking:
                assert (await server.post("/v1/chat/completions", messages=SAID, **fields)).status_code == 400, fields
            answer = await server.post("/v1/responses", input="hi", background=True)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "background")

    run(test)


def test_switches_of_reasoning_in_other_apis() -> None:
    """DeepSeek's, Z.ai's and Moonshot's `thinking`, and Qwen's `enable_thinking`, beside a chat."""
    cases: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled", "clear_thinking": False}}, True),
        ({"enable_thinking": False}, False),
        ({"enable_thinking": True}, True),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, False),
    )

    async def test() -> None:
        async with scripted("yes") as server:
            for fields, thinks in cases:
                await server.chat(messages=SAID, **fields)
                assert server.prompts()[-1].endswith("<think>\n") == thinks, fields
            answer = await server.post("/v1/chat/completions", messages=SAID, thinking={"type": "perhaps"})
            assert answer.json()["error"]["param"] == "thinking.type"

    run(test)
