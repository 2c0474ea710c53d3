"""OpenAI's Agents SDK over chat completions: the loop of an agent that must call a tool, and answers then."""

import asyncio
import sys
from typing import Annotated

from agents import (
    Agent,
    AsyncOpenAI,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from pydantic import Field

url, key, _, max_tokens = sys.argv[1:]
set_tracing_disabled(True)
QUESTION = "Prelia is 11 years old. The heavy clock is near the boathouse.\n\nHow old is Prelia?"
notebook: list[str] = []


@function_tool
def note(sentence: Annotated[str, Field(pattern="^Prelia is [0-9]+ years old$")]) -> str:
    """Write a sentence into the notebook."""
    notebook.append(sentence)
    return "It is written down."


async def main() -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        agent = Agent(
            name="clerk",
            model=OpenAIChatCompletionsModel("sluice", client),
            tools=[note],
            model_settings=ModelSettings(tool_choice="required", temperature=0, max_tokens=4 * int(max_tokens)),
        )
        result = await Runner.run(agent, QUESTION, max_turns=3)
        assert notebook == ["Prelia is 11 years old"], notebook
        assert result.final_output, "the loop ended without an answer"
        streamed = Runner.run_streamed(agent, QUESTION, max_turns=3)
        kinds = [
            event.item.type
            for event in [e async for e in streamed.stream_events()]
            if event.type == "run_item_stream_event"
        ]
        assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"], kinds
        assert streamed.final_output == result.final_output, "streamed otherwise"


asyncio.run(main())
