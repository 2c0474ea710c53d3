"""The calls of Open WebUI, in the order of its start and of one conversation, as its documentation describes them.

It lists the models, streams a chat whose body has fields of its own, and asks for a title, tags and questions to ask
next, each by a chat that is not streamed. With Ollama's API it asks for the version and the tags first.
"""

from __future__ import annotations

from typing import Any

TASK = '### Task:\nGenerate a concise title of 3 words.\n### Output:\nJSON: { "title": "..." }\n### Chat History:\n'


def calls(model: str, prompt: str, max_tokens: int) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Return method, path and body of each call."""
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": prompt}]
    features = {"image_generation": False, "code_interpreter": False, "web_search": False, "memory": False}
    chat = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": max_tokens,
        "params": {},
        "features": features,
        "variables": {"{{USER_NAME}}": "a"},
        "session_id": "s-1",
        "chat_id": "c-1",
        "id": "m-1",
        "background_tasks": {"title_generation": True, "tags_generation": True, "follow_up_generation": True},
    }
    task = {"model": model, "messages": [{"role": "user", "content": TASK + prompt}], "stream": False}
    task |= {"max_completion_tokens": max_tokens, "temperature": 0}
    ollama = {"model": model, "messages": messages, "stream": True, "keep_alive": "5m"}
    return [
        ("GET", "/v1/models", None),
        ("POST", "/v1/chat/completions", chat),
        *[("POST", "/v1/chat/completions", task | {"metadata": {"task": name}}) for name in ("title", "tags")],
        ("GET", "/api/version", None),
        ("GET", "/api/tags", None),
        ("POST", "/api/chat", ollama | {"options": {"temperature": 0, "num_predict": max_tokens}}),
    ]
