"""Thoughts and answers, told apart by tags of the answer or of the prompt."""

from __future__ import annotations

import pytest

from sluice.text.parsers.events import Call, Reply, whole_of
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.reasoning import REASONING_FORMATS
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import Tool, ToolUse

USE = ToolUse((Tool("now"),))
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nHm, 5 < 7.\n</think>\n\nYes.", Reply("Yes.", "Hm, 5 < 7.")),
        ("<think>\nnever ends\n", Reply("", "never ends\n")),
        ("<think>\n\n</think>\n\nYes.", Reply("Yes.")),
        ("No thought at all.", Reply("No thought at all.")),
        (f"<think>a</think>{CALL}", Reply("", "a", (Call("1", "now", "{}"),))),
    ],
)
def test_reasoning_is_told_from_the_answer(text: str, expected: Reply) -> None:
    """Thoughts would be shown as the answer, or the answer as thoughts."""
    parser = ReplyFormat(FORMATS["hermes"], REASONING_FORMATS["qwen3"]).parser(USE, new_id=lambda: "1")
    assert whole_of([*parser.push(text), *parser.finish()]) == expected


@pytest.mark.parametrize(
    ("name", "prompt", "text", "expected"),
    [
        ("qwen3", "assistant\n<think>\n", "Hm.\n</think>\n\nYes.", Reply("Yes.", "Hm.")),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", "Yes.</think>", Reply("Yes.</think>")),
        ("deepseek_r1", "assistant", "Hm.</think>Yes.", Reply("Yes.", "Hm.")),
        ("deepseek_r1", "assistant", "<think>\nHm.</think>Yes.", Reply("Yes.", "Hm.")),
        ("gemma4", "<|turn>model\n", "<|channel>thought\nHm.\n<channel|>Yes.", Reply("Yes.", "Hm.")),
        ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", "Yes.", Reply("Yes.")),
        ("mistral", "[/INST]", "[THINK]Hm.[/THINK]Yes.", Reply("Yes.", "Hm.")),
    ],
)
def test_the_prompt_may_begin_or_end_the_reasoning(name: str, prompt: str, text: str, expected: Reply) -> None:
    """Templates write the first tag themselves, or both if thinking is off: the whole answer would be on one side."""
    parser = ReplyFormat(reasoning=REASONING_FORMATS[name]).parser(prompt=prompt)
    assert whole_of([*parser.push(text), *parser.finish()]) == expected


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("Assistant: Sure, ", "it is.", Reply("it is.")),
        ("Assistant: <think>Hm, ", "yes.</think>It is.", Reply("It is.", "yes.")),
        ("Assistant: <think>Hm.</think>Sure, ", "it is.", Reply("it is.")),
    ],
)
def test_a_continued_answer_is_no_reasoning(prompt: str, text: str, expected: Reply) -> None:
    """A client that begins the answer itself would get the rest of it as thoughts."""
    parser = ReplyFormat(reasoning=REASONING_FORMATS["deepseek_r1"]).parser(prompt=prompt, continues=True)
    assert whole_of([*parser.push(text), *parser.finish()]) == expected
