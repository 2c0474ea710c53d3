"""Clients that are requests: curl, and the recorded calls of SGLang's clients, Open WebUI, Claude Code and Codex."""

from __future__ import annotations

import json
from typing import Any

from client_programs import coding_agents
from client_programs.target import MAX_TOKENS, PROMPT, Target, output_of
from client_programs.webui import calls as webui_calls


def chat_body(**more: Any) -> dict[str, Any]:
    asked = {"model": "sluice", "messages": [{"role": "user", "content": PROMPT}], "temperature": 0}
    return asked | {"max_tokens": MAX_TOKENS} | more


def curl(target: Target) -> str:
    """Run curl whole and streamed, as the README shows it."""
    auth, kind = f"Authorization: Bearer {target.key}", "Content-Type: application/json"
    command = ["curl", "-sS", "-N", f"{target.url}/v1/chat/completions", "-H", auth, "-H", kind, "-d"]
    text = json.loads(output_of(*command, json.dumps(chat_body())))["choices"][0]["message"]["content"]
    streamed = output_of(*command, json.dumps(chat_body(stream=True)))
    *events, done = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert done == "[DONE]"
    parts = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(parts) == text, "streamed otherwise"
    return str(text)


def open_webui(target: Target) -> str:
    """Send the calls of Open WebUI."""
    for method, path, body in webui_calls("sluice", PROMPT, MAX_TOKENS):
        status, answer = target.send(method, path, body)
        assert status == 200, (method, path, answer)
        if body is not None and body["stream"]:
            lines = [line.removeprefix(b"data: ") for line in answer.splitlines() if line]
            assert lines[-1] == b"[DONE]" or json.loads(lines[-1])["done"], (path, lines[-1])
    return ""


def claude_code(target: Target) -> str:
    """Send the calls of Claude Code."""
    coding_agents.claude_code(target.send, "sluice", PROMPT)
    return ""


def codex(target: Target) -> str:
    """Send the calls of Codex."""
    coding_agents.codex(target.send, "sluice", PROMPT)
    return ""


def sglang(target: Target) -> str:
    """Send the requests of SGLang's documentation and benchmark: whole, streamed, as a batch, and the flush."""
    status, tokenized = target.send("POST", "/tokenize", {"messages": chat_body()["messages"]})
    assert status == 200, tokenized
    ids = json.loads(tokenized)["tokens"]
    sampling = {"temperature": 0, "max_new_tokens": MAX_TOKENS}
    status, answer = target.send("POST", "/generate", {"input_ids": ids, "sampling_params": sampling})
    assert status == 200, answer
    whole = json.loads(answer)
    benchmark = {"stream": True, "lora_path": None, "return_logprob": False, "logprob_start_len": -1}
    status, stream = target.send("POST", "/generate", {"input_ids": ids, "sampling_params": sampling} | benchmark)
    assert status == 200, stream
    *events, done = [line.removeprefix(b"data: ") for line in stream.splitlines() if line]
    assert done == b"[DONE]"
    last, ends = json.loads(events[-1]), "completion_tokens"
    assert (last["text"], last["meta_info"][ends]) == (whole["text"], whole["meta_info"][ends])
    status, batch = target.send("POST", "/generate", {"input_ids": [ids, ids], "sampling_params": sampling})
    assert [item["text"] for item in json.loads(batch)] == [whole["text"]] * 2
    status, text = target.send("POST", "/generate", {"text": "The water", "sampling_params": {"max_new_tokens": 4}})
    assert status == 200, text
    status, flushed = target.send("POST", "/flush_cache", {})
    assert (status, json.loads(flushed)["success"]) == (200, True)
    return str(whole["text"])
