"""smolagents' agent of tool calls, which requires a call in every step: each step ends with one, by itself."""

import sys

from smolagents import OpenAIModel, Tool, ToolCallingAgent

url, key, _, max_tokens = sys.argv[1:]
QUESTION = "Prelia is 11 years old. The heavy clock is near the boathouse.\n\nHow old is Prelia?"


class Note(Tool):
    """Writes into a notebook."""

    name = "note"
    description = "Write a sentence into the notebook."
    inputs = {"sentence": {"type": "string", "description": "A sentence."}}  # noqa: RUF012 - as its base has it
    output_type = "string"

    def forward(self, sentence: str) -> str:
        return f"Written: {sentence}"


LIMIT = 16 * int(max_tokens)
settings = {"temperature": 0, "frequency_penalty": 1, "max_tokens": LIMIT}  # a small model repeats itself in a text
model = OpenAIModel("sluice", api_base=f"{url}/v1", api_key=key, **settings)
agent = ToolCallingAgent(tools=[Note()], model=model, max_steps=3, verbosity_level=0)
agent.run(QUESTION)
steps = [step for step in agent.memory.steps if getattr(step, "model_output_message", None) is not None]
assert steps, "no step has an answer"
for step in steps:
    if step is steps[-1] and step.error is None and not step.tool_calls:
        continue  # the answer that it asks for after the last step
    assert step.tool_calls, step.model_output_message
    assert step.error is None, step.error
    assert step.token_usage.output_tokens < LIMIT, f"it ran to its end: {step.model_output_message}"
