"""LangChain's ChatOpenAI: whole, streamed and as a batch; calls of tools, and output by a schema."""

import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

url, key, prompt, max_tokens = sys.argv[1:]
chat = ChatOpenAI(
    model="sluice", base_url=f"{url}/v1", api_key=key, temperature=0, max_tokens=int(max_tokens), max_retries=0
)
whole = chat.invoke(prompt)
assert "".join(part.content for part in chat.stream(prompt)) == whole.content, "streamed otherwise"
assert whole.usage_metadata["output_tokens"] <= int(max_tokens), whole.usage_metadata
assert [answer.content for answer in chat.batch([prompt, prompt])] == [whole.content] * 2, "in a batch otherwise"


@tool
def note(sentence: str = Field(pattern="^Prelia is [0-9]+ years old$")) -> str:
    """Write a sentence into the notebook."""
    return f"Written: {sentence}."


class Weather(BaseModel):
    """The weather of a day."""

    sky: Literal["clear", "cloudy"]


question = HumanMessage("Prelia is 11 years old. The heavy clock is near the boathouse.\n\nHow old is Prelia?")
patient = ChatOpenAI(model="sluice", base_url=f"{url}/v1", api_key=key, temperature=0, max_tokens=96, max_retries=0)
agent = patient.bind_tools([note], tool_choice="required")
called = agent.invoke([question])
(call,) = called.tool_calls
assert (call["name"], call["args"]) == ("note", {"sentence": "Prelia is 11 years old"}), call
free = patient.bind_tools([note], tool_choice="any").invoke([question])
assert free.response_metadata["finish_reason"] == "tool_calls", free
parts = list(agent.stream([question]))
summed = sum(parts[1:], start=parts[0])
assert [(each["name"], each["args"]) for each in summed.tool_calls] == [(call["name"], call["args"])], (
    "streamed otherwise"
)
assert len([part for part in parts if part.tool_call_chunks]) > 3, "the arguments did not stream"
assert patient.invoke([question, called, ToolMessage(note.invoke(call["args"]), tool_call_id=call["id"])]).content
for method in ("function_calling", "json_schema"):
    found = patient.with_structured_output(Weather, method=method).invoke("How is the sky?")
    assert isinstance(found, Weather), found
print(whole.content)
