"""A server whose model follows a script: it calls a tool first, and answers from the result then.

Small models do not do the work of agents. Here the requests, the templates, the parsers and the answers are real, and
only the tokens are written beforehand.

    python scripts/client_programs/scripted_model.py --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from typing import Any

import uvicorn

from sluice.engine.messages import Message, Submit
from sluice.http.app import create_app
from sluice.http.base.backend import Backend, Service
from sluice.models.default_model import default_file
from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState
from sluice.process.wire import Outputs
from sluice.text.parsers.choosing import choose
from sluice.text.tokenizer_files import load_tokenizer
from sluice.types import FinishReason, Output
from sluice.types.footprint import Footprint
from sluice.types.request_limits import Limits

NAME = "sluice"
FILE, SECRET = "gate.txt", "the north gate is open"
"""A file that the agent is to read, and what is in it."""
CHANGED = "the north gate is shut"
"""What a program that has no tools, and applies edits in texts, is to write into the file."""
ANSWER, NOT_SEEN = "The file says that the north gate is open.", "I see no such file."
CALLS: dict[str, dict[str, Any]] = {
    "exec_command": {"cmd": f"cat {FILE}"},
    "shell": {"command": ["cat", FILE]},
    "shell_command": {"command": f"cat {FILE}"},
    "Bash": {"command": f"cat {FILE}", "description": "Read the file"},
    "bash": {"command": f"cat {FILE}", "description": "Read the file"},
    "read_file": {"path": FILE},
}
"""Tools of agents, the preferred ones first, and how each reads the file."""
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    '{% for c in m.tool_calls or [] %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
CONTEXT = 1 << 18
AT_ONCE = 8
"""Tokens of an output."""


def reply_to(prompt: str) -> str:
    """Return what the model says to a prompt."""
    *_, last = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
    role, content = last
    if role == "tool":
        return ANSWER if SECRET in content else NOT_SEEN
    name = next((each for each in CALLS if f'"name": "{each}"' in prompt), None)
    if name is None:
        return f"{FILE}\n```\n{CHANGED}\n```\n"
    return f"I will look.\n<tool_call>\n{json.dumps({'name': name, 'arguments': CALLS[name]})}\n</tool_call>"


async def serve(port: int) -> None:
    """Serve until the process ends; print a line when requests are taken."""
    place = default_file(None)
    assert place is not None, "the default model is not on this machine: make setup downloads it"
    tokenizer = load_tokenizer(place, chat_template=TEMPLATE)
    (end,) = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    loop = asyncio.get_running_loop()

    def send(message: Message) -> None:
        if not isinstance(message, Submit):
            return
        prompt = tokenizer.decode(message.prompt, skip_special_tokens=False)
        ids = [*tokenizer.encode(reply_to(prompt), add_special_tokens=False), end]
        for start in range(0, len(ids), AT_ONCE):
            reason = FinishReason.STOP if start + AT_ONCE >= len(ids) else None
            output = Output(message.request_id, start, tuple(ids[start : start + AT_ONCE]), 0, reason)
            loop.call_soon(client.deliver, Outputs((output,)))

    client = EngineClient(send)
    backend = Backend(EngineState())
    backend.engine.serving(os.getpid(), {})
    limits = Limits(vocab_size=tokenizer.vocab_size, max_model_len=CONTEXT, max_total_tokens=CONTEXT)
    memory = Footprint(weights_bytes=0, device_kv_bytes=0, pool_bytes=0)
    replies = choose(TEMPLATE, None, None).format
    backend.open(Service((NAME,), tokenizer, limits, frozenset({end}), client, [], memory, replies=replies))
    server = uvicorn.Server(uvicorn.Config(create_app(backend), host="127.0.0.1", port=port, log_level="warning"))
    print(f"curl http://127.0.0.1:{port}", flush=True)
    await server.serve()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(serve(parser.parse_args().port))
