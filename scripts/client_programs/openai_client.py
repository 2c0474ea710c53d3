"""openai: chats, tools, parsed answers, completions, embeddings, whole, streamed and as a batch; wrong keys; models."""

import asyncio
import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

url, key, prompt, max_tokens = sys.argv[1:]
LIMITS = {"model": "sluice", "temperature": 0, "max_tokens": int(max_tokens)}
CHAT = LIMITS | {"messages": [{"role": "user", "content": prompt}]}


class Gate(BaseModel):
    state: Literal["open", "shut"]
    is_old: bool


async def streamed() -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        stream = await client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
        parts = [part async for part in stream]
    assert parts[-1].usage.prompt_tokens_details.cached_tokens >= 0
    return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)


with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
    assert "sluice" in [model.id for model in client.models.list()]
    text = client.chat.completions.create(**CHAT).choices[0].message.content
    batch = client.completions.create(**LIMITS, prompt=["The water", "The mill"], logprobs=1)
    assert [choice.index for choice in batch.choices] == [0, 1]
    assert len(batch.choices[0].logprobs.tokens) <= int(max_tokens)
    pieces = client.completions.create(**LIMITS, prompt="The water", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == batch.choices[0].text
    message = client.chat.completions.parse(**CHAT, response_format=Gate).choices[0].message
    assert isinstance(message.parsed, Gate), message
    with client.chat.completions.stream(**CHAT, response_format=Gate) as gates:
        assert gates.get_final_completion().choices[0].message.parsed == message.parsed
    texts = ["The water rises.", "It is late."]
    vectors = [item.embedding for item in client.embeddings.create(model="sluice", input=texts).data]  # as base64
    floats = client.embeddings.create(model="sluice", input=texts[0], encoding_format="float", dimensions=8)
    assert len(floats.data[0].embedding) == 8 < len(vectors[0]) == len(vectors[1])
    assert abs(sum(value * value for value in vectors[0]) - 1) < 1e-3, "of length 1"
    schema = {"type": "object", "properties": {"day": {"enum": ["today", "tomorrow"]}}, "required": ["day"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    called = LIMITS | {"max_tokens": 96, "messages": CHAT["messages"], "tools": tools, "tool_choice": "required"}
    (call, *_) = client.chat.completions.create(**called).choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["day"] in ("today", "tomorrow"), call
    with client.chat.completions.stream(**called) as stream:
        stream.until_done()
        streamed_calls = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed_calls[0].function.arguments == call.function.arguments, "a streamed call is another one"
    try:
        client.with_options(api_key="wrong", max_retries=0).models.list()
        raise SystemExit("a wrong key was taken")
    except openai.AuthenticationError:
        pass
assert asyncio.run(streamed()) == text, "streamed otherwise"
print(text)
