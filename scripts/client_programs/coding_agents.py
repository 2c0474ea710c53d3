"""The calls of Claude Code and of Codex in two turns of a conversation, by their documentation and issues.

Claude Code asks for a token first, puts a line that changes with each call in front of its instructions, and names more
tokens than a small context has. Codex stores nothing, and repeats what it was answered. Its `web_search` is disabled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Send = Callable[[str, str, dict[str, Any]], tuple[int, bytes]]
"""Sends method, path and body. Returns status and body of the answer."""
SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
RESULT = "gate.txt"


def claude_code(send: Send, model: str, prompt: str) -> None:
    """Send the calls of Claude Code, and check that the second turn finds the prefix of the first."""

    def body(cch: str, turns: list[Any], **more: Any) -> dict[str, Any]:
        header = f"x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={cch};"
        texts = (header, "You are a program that edits code.", "Use the tools. Be short. " * 20)
        system = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in texts]
        tool = {"name": "Bash", "description": "Run a command.", "input_schema": SHELL, "eager_input_streaming": True}
        return {
            "model": model,
            "max_tokens": 32000,
            "system": system,
            "messages": turns,
            "tools": [tool],
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "medium"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "metadata": {"user_id": '{"device_id":"d","session_id":"s"}'},
            "stop_sequences": ["\n\n"],
            "stream": True,
        } | more

    quota = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
    assert send("POST", "/v1/messages?beta=true", quota)[0] == 200
    said = [{"role": "user", "content": [{"type": "text", "text": prompt, "cache_control": {"type": "ephemeral"}}]}]
    first = _message(send, body("fa690", said))
    use = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "Bash",
        "input": {"command": "ls"},
        "caller": {"type": "direct"},
    }
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": RESULT, "is_error": False}
    turns = [*said, {"role": "assistant", "content": [*first["content"], use]}, {"role": "user", "content": [result]}]
    second = _message(send, body("0aaa9", turns))
    read = second["usage"]["cache_read_input_tokens"]
    assert read > second["usage"]["input_tokens"], f"the second turn found {read} tokens of the first"
    status, counted = send("POST", "/v1/messages/count_tokens?beta=true", {"model": model, "messages": said})
    assert (status, json.loads(counted)["input_tokens"] > 0) == (200, True)


def _message(send: Send, body: dict[str, Any]) -> dict[str, Any]:
    status, answer = send("POST", "/v1/messages?beta=true", body)
    assert status == 200, answer
    events = _events(answer)
    assert events[-1]["type"] == "message_stop"
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    usage = next(event["usage"] for event in events if event["type"] == "message_delta")
    return {"content": [{"type": "text", "text": text}] if text else [], "usage": usage}


def codex(send: Send, model: str, prompt: str) -> None:
    """Send the calls of Codex."""
    names = {"exec_command": SHELL, "update_plan": {"type": "object", "properties": {}}}
    tools = [
        {"type": "function", "name": name, "description": name, "strict": False, "parameters": parameters}
        for name, parameters in names.items()
    ]
    said = [
        _said("developer", "<permissions instructions>You may read files.</permissions instructions>"),
        _said("user", "<environment_context>\n  <cwd>/work</cwd>\n</environment_context>"),
        _said("user", prompt),
    ]
    body = {
        "model": model,
        "instructions": "You are a program that edits code.",
        "input": said,
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-session",
        "client_metadata": {"installation_id": "i"},
    }
    first = _response(send, body)
    call = {"type": "function_call", "name": "exec_command", "arguments": '{"command": "ls"}', "call_id": "call_1"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": RESULT}
    thoughts = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}
    _response(send, body | {"input": [*said, thoughts, *first, call, output]})


def _said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _response(send: Send, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items of an answer as Codex repeats them."""
    status, answer = send("POST", "/v1/responses", body)
    assert status == 200, answer
    events = _events(answer)
    assert events[-1]["type"] in ("response.completed", "response.incomplete"), events[-1]
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    return [{name: value for name, value in item.items() if name not in ("id", "status")} for item in items]


def _events(answer: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(b"data: ")) for line in answer.splitlines() if line.startswith(b"data: ")]
