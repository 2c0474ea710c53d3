"""Pydantic AI: a tool, an answer of a type (which it requires by a tool, or by a schema), whole and streamed."""

import asyncio
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

url, key, prompt, max_tokens = sys.argv[1:]
provider = OpenAIProvider(base_url=f"{url}/v1", api_key=key)
chat = OpenAIChatModel("sluice", provider=provider)


class Weather(BaseModel):
    """The weather of a day."""

    sky: Literal["clear", "cloudy"]


async def main() -> None:
    settings = {"temperature": 0, "max_tokens": int(max_tokens)}
    plain = Agent(chat, model_settings=settings)
    text = (await plain.run(prompt)).output
    async with plain.run_stream(prompt) as stream:
        assert await stream.get_output() == text, "streamed otherwise"
    patient = {"temperature": 0, "max_tokens": 256}
    for model in (chat, OpenAIResponsesModel("sluice", provider=provider)):
        for kind in (ToolOutput, NativeOutput):
            agent = Agent(model, output_type=kind(Weather), model_settings=patient, retries=0)
            result = await agent.run("How is the sky?")
            assert isinstance(result.output, Weather), result
            assert result.usage.output_tokens < 128, f"the call ran on: {result.usage}"
    print(text)


asyncio.run(main())
