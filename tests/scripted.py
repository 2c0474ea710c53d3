"""A server in this process whose engine answers every request with the same text: the real routes, and no model."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from serving import MEMORY, parse_events
from sluice.engine.messages import Message, Submit
from sluice.http.app import create_app
from sluice.http.base.backend import Backend, Service
from sluice.process.client import EngineClient
from sluice.process.engine_state import EngineState
from sluice.process.wire import Outputs
from sluice.text.chat_template import ChatTemplate
from sluice.text.parsers.choosing import choose
from sluice.text.tokenizer import Tokenizer
from sluice.types import FinishReason, Output, TokenLogprobs
from sluice.types.request_limits import Limits
from tokenizer_makers import byte_tokenizer

TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    '{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}\n{% endfor %}"
    "assistant: {% if enable_thinking is defined %}<think>\n{% if not enable_thinking %}\n</think>\n\n{% endif %}"
    "{% endif %}"
)
"""Shows the format of Hermes, and reasoning as Qwen's templates do."""
STOP = "<end>"
"""The token with which answers stop. Texts do not hold it."""
SPECIAL = (STOP, "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>")
CHAT_TEMPLATE = ChatTemplate(TEMPLATE, {})
"""The servers of all tests share its process, which the first chat starts."""
AT_ONCE = 3
"""Tokens of an output."""


@dataclass
class Scripted:
    """What a test may touch."""

    http: httpx.AsyncClient
    tokenizer: Tokenizer
    submitted: list[Submit] = field(default_factory=list)

    def prompts(self) -> list[str]:
        """What the model was shown, special tokens included."""
        return [self.tokenizer.decode(request.prompt, skip_special_tokens=False) for request in self.submitted]

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def chat(self, **body: Any) -> dict[str, Any]:
        """A chat that must succeed."""
        answer = await self.post("/v1/chat/completions", **body)
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    async def stream(self, **body: Any) -> list[dict[str, Any]]:
        """The events of a chat that must succeed."""
        answer = await self.post("/v1/chat/completions", stream=True, **body)
        assert answer.status_code == 200, answer.text
        *found, done = parse_events(answer.text)
        assert done == "[DONE]"
        return [json.loads(data) for data in found]


@asynccontextmanager
async def scripted(
    reply: str,
    *,
    ends: FinishReason = FinishReason.STOP,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    special: Sequence[str] = SPECIAL,
    write: Callable[[Submit], Sequence[int]] | None = None,
) -> AsyncIterator[Scripted]:
    """A server whose model answers `reply`, or the tokens that `write` returns for a request."""
    tokenizer = Tokenizer(byte_tokenizer(special), chat_template=CHAT_TEMPLATE)
    replies = choose(TEMPLATE, tool_parser, reasoning_parser).format
    ids = [*tokenizer.encode(reply), *(tokenizer.encode(STOP) if ends is FinishReason.STOP else ())]
    loop = asyncio.get_running_loop()

    def send(message: Message) -> None:
        if isinstance(message, Submit):
            server.submitted.append(message)
            written = ids if write is None else write(message)
            for start in range(0, len(written), AT_ONCE):
                tokens = tuple(written[start : start + AT_ONCE])
                reason = ends if start + AT_ONCE >= len(written) else None
                has_logprobs = message.sampling.logprobs is not None
                scores = tuple(TokenLogprobs(token, -1.0, ()) for token in tokens) if has_logprobs else ()
                frame = Outputs((Output(message.request_id, start, tokens, 0, reason, None, scores),))
                loop.call_soon(client.deliver, frame)

    client = EngineClient(send)
    backend = Backend(EngineState())
    backend.engine.serving(os.getpid(), {})
    limits = Limits(vocab_size=tokenizer.vocab_size, max_model_len=8192, max_total_tokens=8192)
    backend.open(Service(("scripted",), tokenizer, limits, frozenset(), client, [], MEMORY, replies=replies))
    transport = httpx.ASGITransport(create_app(backend), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        server = Scripted(http, tokenizer)
        yield server
    assert client.num_open == 0, "a request was left open"
