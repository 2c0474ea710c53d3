"""The demonstration of the documents: the bundled model calls a tool."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from processes import free_port, served_at

ROOT = Path(__file__).parent.parent.parent
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served_at(free_port(), "--max-total-tokens", "8192") as url:
        yield url


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_command_of_the_page(url: str) -> None:
    """The first thing that a reader tries would not work, or not say what the page says."""
    (command,) = [block.removeprefix("$ ") for block in blocks("docs/tools.md", "console") if "tool_choice" in block]
    answer = json.loads(subprocess.check_output(command.replace(ADDRESS, url), shell=True, stderr=subprocess.DEVNULL))
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    (said,) = blocks("docs/tools.md", "json")
    assert call["function"] == json.loads(said)


def test_the_program_of_the_page(url: str) -> None:
    (program,) = blocks("docs/tools.md", "python")
    printed = subprocess.check_output([sys.executable, "-c", program.replace(ADDRESS, url)], text=True).splitlines()
    assert printed[0] == "['The colour of the boat is green.']"
    assert printed[1].strip()


def test_a_streamed_call_is_the_whole_one(url: str) -> None:
    """The openai client adds up the deltas of a stream: a wrong index or a missing part would break its sum."""
    client = OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "is": {"type": "boolean"}},
        "required": ["n"],
    }
    with client.chat.completions.stream(
        model="sluice-nano",
        messages=[{"role": "user", "content": "How many?"}],
        tools=[{"type": "function", "function": {"name": "count", "parameters": schema, "strict": True}}],
        tool_choice={"type": "function", "function": {"name": "count"}},
        max_tokens=200,
        temperature=0,
    ) as stream:
        parts = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        choice = stream.get_final_completion().choices[0]
    (call,) = choice.message.tool_calls or []
    assert "".join(part.arguments_delta for part in parts) == call.function.arguments
    assert choice.finish_reason == "tool_calls"
    assert isinstance(json.loads(call.function.arguments)["n"], int)
