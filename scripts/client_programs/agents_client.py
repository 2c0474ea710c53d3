"""openai-agents: an agent over the Responses API, whose loop calls a function and answers with its result."""

import asyncio
import sys

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

url, key, prompt, _ = sys.argv[1:]
written: list[str] = []


@function_tool
def note(text: str) -> str:
    """Write a sentence into the notebook.

    Args:
        text: the sentence.
    """
    written.append(text)
    return "It is written down."


async def main() -> None:
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        model = OpenAIResponsesModel("sluice", client)
        plain = Agent("plain", model=model, model_settings=ModelSettings(temperature=0, max_tokens=512))
        assert (await Runner.run(plain, prompt)).final_output  # an answer that is cut off is an error to the SDK
        settings = ModelSettings(temperature=0, max_tokens=256, tool_choice="required")
        secretary = Agent("secretary", model=model, tools=[note], model_settings=settings)
        run = Runner.run_streamed(secretary, "Note this sentence: The gate is shut.")
        kinds = [event.item.type async for event in run.stream_events() if event.type == "run_item_stream_event"]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"], kinds
    assert len(written) == 1


asyncio.run(main())
