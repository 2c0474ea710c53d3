"""openai's responses: whole, streamed, parsed by a schema, continued, listed and deleted; calls of functions."""

import asyncio
import json
import sys
from typing import Any

import openai
from pydantic import BaseModel, Field

url, key, prompt, max_tokens = sys.argv[1:]
ASKED: Any = {"model": "sluice", "max_output_tokens": int(max_tokens), "temperature": 0}
NOTE: Any = {
    "type": "function",
    "name": "note",
    "description": "Write a sentence into the notebook.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "strict": False,
}


class Fact(BaseModel):
    """What an answer must be."""

    name: str = Field(max_length=20)
    is_old: bool


async def streamed() -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        stream = await client.responses.create(**ASKED, input=prompt, stream=True)
        events = [event async for event in stream]
    assert events[0].type == "response.created"
    assert [event.sequence_number for event in events] == [*range(len(events))]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].response.output_text == text
    return text


def use_a_tool(client: openai.OpenAI) -> None:
    """Two turns: the model calls the function, which it must, and answers its result."""
    asked = ASKED | {"max_output_tokens": 256, "tools": [NOTE]}
    said = "Note this sentence: The gate is shut."
    with client.responses.stream(**asked, input=said, tool_choice="required") as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (response.status, call.name) == ("completed", "note")
    assert isinstance(json.loads(call.arguments)["text"], str)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "It is written down."}
    answer = client.responses.create(**asked, input=[output], previous_response_id=response.id)
    assert answer.status in ("completed", "incomplete")


with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
    response = client.responses.create(**ASKED, input=prompt)
    text = response.output_text
    assert client.responses.retrieve(response.id).output_text == text
    more = client.responses.create(**ASKED, input="Why?", previous_response_id=response.id)
    items = client.responses.input_items.list(more.id, order="asc", limit=2)
    assert [item.role for item in items] == ["user", "assistant", "user"], "over two pages"
    client.responses.delete(response.id)
    try:
        client.responses.retrieve(response.id)
        raise SystemExit("a deleted response is still there")
    except openai.NotFoundError:
        pass
    parsed = client.responses.parse(**ASKED | {"max_output_tokens": 256}, input=prompt, text_format=Fact, store=False)
    assert isinstance(parsed.output_parsed, Fact)
    use_a_tool(client)
assert asyncio.run(streamed()) == text, "streamed otherwise"
print(text)
