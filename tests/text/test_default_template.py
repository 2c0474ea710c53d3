"""The chat template that Sluice gives the default model: its own one's text, and tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from real_model import needs_real_model
from sluice.models.default_model import default_checkpoint
from sluice.text.chat_template import RenderOptions
from sluice.text.tokenizer_files import load_tokenizer

pytestmark = needs_real_model
HELLO = [{"role": "user", "content": "Hello"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello "},
    {"role": "assistant", "content": " Good day.\n"},
    {"role": "user", "content": "Who are you?"},
]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def written(place: Path, talk: Sequence[Mapping[str, Any]], **options: Any) -> tuple[list[int], str]:
    """Return the prompt of a conversation."""
    with closing(load_tokenizer(place)) as tokenizer:
        text = tokenizer.rendered_chat(talk, RenderOptions(options))
        ids = tokenizer.encode(text, add_special_tokens=False)
        return ids, tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("talk", [HELLO, TALK])
def test_without_tools_it_writes_what_the_models_own_does(talk: list[dict[str, str]]) -> None:
    folder = default_checkpoint(None)
    assert written(folder, talk) == written(folder / "model.gguf", talk)


def test_tools_their_calls_and_results_are_shown() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": {"zone": "UTC"}}}
    talk = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    _, prompt = written(default_checkpoint(None), talk, tools=[TOOL])
    system, _, rest = prompt.partition("<|im_end|>\n")
    assert json.dumps(TOOL) in system
    assert rest == (
        "<|im_start|>user\nHello<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
