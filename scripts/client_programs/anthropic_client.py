"""anthropic: messages whole, streamed and counted, sync and async; a loop of calls of a tool; a wrong key."""

import asyncio
import sys
from typing import Any

import anthropic

url, key, prompt, max_tokens = sys.argv[1:]
ASKED: Any = {"model": "sluice", "max_tokens": int(max_tokens), "extra_body": {"temperature": 0}}
SAID: Any = [{"role": "user", "content": prompt}]
NOTE: Any = {
    "name": "note",
    "description": "Write a sentence into the notebook.",
    "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


async def streamed() -> str:
    async with (
        anthropic.AsyncAnthropic(base_url=url, auth_token=key) as client,
        client.messages.stream(**ASKED, messages=SAID) as stream,
    ):
        text = "".join([part async for part in stream.text_stream])
        message = await stream.get_final_message()
    assert message.content[0].text == text
    assert message.usage.output_tokens <= int(max_tokens)
    return text


def use_a_tool(client: anthropic.Anthropic) -> None:
    """Two turns: the model calls the tool, which it must, and answers its result."""
    turns: Any = [{"role": "user", "content": "Note this sentence: The gate is shut."}]
    asked = ASKED | {"max_tokens": 256, "tools": [NOTE]}
    with client.messages.stream(**asked, messages=turns, tool_choice={"type": "any"}) as stream:
        message = stream.get_final_message()
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert (message.stop_reason, call.name) == ("tool_use", "note")
    assert isinstance(call.input["text"], str)
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "It is written down."}]
    turns += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    answer = client.messages.create(**asked, messages=turns)
    assert answer.stop_reason in ("end_turn", "max_tokens")


with anthropic.Anthropic(base_url=url, api_key=key) as client:
    message = client.messages.create(**ASKED, messages=SAID)
    text = message.content[0].text
    once, again = message.usage, client.messages.create(**ASKED, messages=SAID).usage
    lengths = {usage.cache_read_input_tokens + usage.input_tokens for usage in (once, again)}
    assert len(lengths) == 1, (once, again)
    assert client.messages.count_tokens(model="sluice", messages=SAID).input_tokens in lengths
    use_a_tool(client)
    try:
        client.with_options(api_key="wrong", max_retries=0).messages.create(**ASKED, messages=SAID)
        raise SystemExit("a wrong key was taken")
    except anthropic.AuthenticationError:
        pass
    try:
        client.messages.create(**ASKED | {"model": "other"}, messages=SAID)
        raise SystemExit("another model answered")
    except anthropic.NotFoundError:
        pass
assert asyncio.run(streamed()) == text, "streamed otherwise"
print(text)
