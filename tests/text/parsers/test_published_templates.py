"""Calls as the published chat templates write them are read back equal.

Templates of Llama 4, Olmo 3 and Phi-4-mini are in no package; theirs are written here in the few lines that matter.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from drawn_tools import DrawnCall, ToolSet, drawn_tool_set
from published import published
from sluice.text.chat_template import RenderOptions
from sluice.text.parsers.choosing import choose
from sluice.text.parsers.events import Event, Reply, whole_of
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import ToolUse
from sluice.text.render_process import Renderer

DRAWS, FEW, CUTS = 30, 4, 20
ASKED = "The question of all questions?"
TURN_END = re.compile(
    r"\s*(?:(?:<\|(?:im_end|end_of_text|eot_id|eom_id|tool_response|call|observation|user|eot|end|role_end)\|?>|</s>|"
    r"<\uff5cend\u2581of\u2581sentence\uff5c>|<\uff5cAssistant\uff5c>|\[e~\[|<sep>|<SPECIAL_12>|<seed:eos>|<turn\|>|"
    r"</assistant>|<\|start_header_id\|>assistant<\|end_header_id\|>)\s*)+$"
)
"""What templates write behind a message. Servers never see it: it ends the answer."""


@dataclass(frozen=True)
class Written:
    """How a template writes calls."""

    format: str
    most: int = 3
    """Calls in a message."""
    escapes: bool = True
    """Texts may hold backslashes. One template writes them, and quotes, as they are, so they cannot be told."""
    tags: tuple[str, ...] = ()
    """Texts that the format gives a meaning, besides its markers."""


FUNCTION_TAGS = ("<function=f>", "<parameter=x>", "</parameter>", "</function>")
INVOKE_TAGS = ('<invoke name="f">', '<parameter name="x">', "</parameter>", "</invoke>")
DSML = "\uff5cDSML\uff5c"
DSML_TAGS = (f'<{DSML}invoke name="f">', f"</{DSML}parameter>", f"</{DSML}invoke>")
PYTHON_TAGS = ("')", "']", '")', ")]", "', 'x', ")
TEMPLATES = {
    "ByteDance-Seed-OSS": Written("seed_oss", tags=FUNCTION_TAGS),
    "GLM-4.6": Written("glm45"),
    "GLM-4.7-Flash": Written("glm47"),
    "inclusionai-ling-3.0-flash": Written("glm47"),
    "poolside-Laguna-XS.2": Written("glm47"),
    "Spark2.5": Written("glm47"),
    "moonshotai-Kimi-K2": Written("kimi_k2"),
    "LFM2.5-8B-A1B": Written("lfm2", escapes=False, tags=PYTHON_TAGS),
    "MiMo-VL": Written("hermes"),
    "MiniMax-M2": Written("minimax_m2", tags=INVOKE_TAGS),
    "Mistral-Small-3.2-24B-Instruct-2506": Written("mistral"),
    "mistralai-Ministral-3-14B-Reasoning-2512": Written("mistral"),
    "mistralai-Mistral-Nemo-Instruct-2407": Written("mistral"),
    "unsloth-mistral-Devstral-Small-2507": Written("mistral"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Written("qwen3_coder", tags=FUNCTION_TAGS),
    "NVIDIA-Nemotron-Nano-v2": Written("nemotron_v2"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": Written("hermes"),
    "Qwen-Qwen2.5-7B-Instruct": Written("hermes"),
    "Qwen-Qwen3-0.6B": Written("hermes"),
    "Qwen3-Coder": Written("qwen3_coder", tags=FUNCTION_TAGS),
    "Qwen3.5-4B": Written("qwen3_coder", tags=FUNCTION_TAGS),
    "StepFun3.5-Flash": Written("qwen3_coder", tags=FUNCTION_TAGS),
    "Reka-Edge": Written("hermes"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": Written("deepseek_v3"),
    "deepseek-ai-DeepSeek-V3.1": Written("deepseek_v31"),
    "deepseek-ai-DeepSeek-V3.2": Written("deepseek_v32", tags=DSML_TAGS),
    "deepseek-ai-DeepSeek-V4": Written("deepseek_v4", tags=DSML_TAGS),
    "fireworks-ai-llama-3-firefunction-v2": Written("phi4_mini"),
    "google-gemma-4-31B-it": Written("gemma4", tags=("}<", "{", "call:f{")),
    "google-gemma-4-31B-it-interleaved": Written("gemma4", tags=("}<", "{", "call:f{")),
    "ibm-granite-granite-4.0": Written("hermes"),
    "ibm-granite-granite-4.1": Written("hermes"),
    "meta-llama-Llama-3.1-8B-Instruct": Written("llama3_json", most=1),
    "meta-llama-Llama-3.3-70B-Instruct": Written("llama3_json", most=1),
    "openai-gpt-oss-120b": Written("openai", most=1),
    "unsloth-Apriel-1.5": Written("apriel"),
}


def _python(calls: tuple[DrawnCall, ...], begin: str, separator: str, end: str) -> str:
    def spelled(call: DrawnCall) -> str:
        given = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
        return f"{call.name}({', '.join(given)})"

    return begin + separator.join(map(spelled, calls)) + end


def _as_python(calls: tuple[DrawnCall, ...]) -> str:
    """As Python's `repr` writes them."""
    spelled = (", ".join(f"{name}={value!r}" for name, value in call.arguments.items()) for call in calls)
    return f"[{', '.join(f'{call.name}({each})' for call, each in zip(calls, spelled, strict=True))}]"


def _listed(calls: tuple[DrawnCall, ...], begin: str) -> str:
    return begin + json.dumps([call._asdict() for call in calls], ensure_ascii=False)


OTHERS: dict[str, tuple[Written, Callable[[tuple[DrawnCall, ...]], str]]] = {
    "Olmo 3": (Written("olmo3"), lambda calls: _python(calls, "<function_calls>", "\n", "</function_calls>")),
    "Llama 4": (Written("llama4_pythonic", tags=PYTHON_TAGS), lambda calls: _python(calls, "[", ", ", "]")),
    "Llama 4, repr": (Written("llama4_pythonic", tags=PYTHON_TAGS), _as_python),
    "LFM2, repr": (
        Written("lfm2", tags=PYTHON_TAGS),
        lambda calls: f"<|tool_call_start|>{_as_python(calls)}<|tool_call_end|>",
    ),
    "Phi-4-mini": (Written("phi4_mini"), lambda calls: _listed(calls, "functools")),
    "Granite 3": (Written("granite"), lambda calls: _listed(calls, "<|tool_call|>")),
    "none": (Written("json"), lambda calls: _listed(calls, "")),
}


@cache
def templates(*, fetches: bool) -> Path:
    return published("templates", lambda name: name.startswith("templates/"), fetches=fetches)


def rendered(template: str, drawn: ToolSet, format: ReplyFormat) -> str:
    """Return the calls of a message as a template writes them, and what the message has behind them."""
    assert format.tools is not None
    renderer = Renderer(template, {"bos_token": "<bos>", "eos_token": "</s>"})
    calls: list[dict[str, Any]] = []
    for number, call in enumerate(drawn.calls):
        id = f"functions.{call.name}:{number}" if format.tools.name == "kimi_k2" else f"abcdefgh{number}"
        calls.append({"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
    said = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "", "tool_calls": calls}]
    variables = {"tools": ToolUse(drawn.tools).as_json(), "functions": "[]", "datetime": "today"}
    text = renderer.render(said, RenderOptions(variables, add_generation_prompt=False))
    behind = text[text.rindex(ASKED) + len(ASKED) :] if text.count(ASKED) == 1 else ""
    begins = [
        at for begin in (*format.tools.begins, '{"name"', "<|start|>assistant to=") if (at := behind.find(begin)) >= 0
    ]
    assert begins, text
    return behind[min(begins) :].removeprefix("<|start|>assistant")


def read(format: ReplyFormat, drawn: ToolSet, text: str, cuts: list[int]) -> Reply:
    parser = format.parser(ToolUse(drawn.tools), new_id=lambda: "1")
    events: list[Event] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        events += parser.push(text[begin:end])
    return whole_of([*events, *parser.finish()])


def check(format: ReplyFormat, drawn: ToolSet, text: str, seed: int) -> None:
    draw = random.Random(seed)
    text = TURN_END.sub("", text)
    for cuts in ([], sorted(draw.randint(0, len(text)) for _ in range(CUTS))):
        reply = read(format, drawn, text, cuts)
        found = [(call.name, call.is_complete and json.loads(call.arguments)) for call in reply.calls]
        assert json.dumps(found, sort_keys=True) == json.dumps([*map(tuple, drawn.calls)], sort_keys=True), text
        assert not reply.text.strip()


def drawn_for(written: Written, seed: int) -> ToolSet:
    tags = (*FORMATS[written.format].markers, *written.tags)
    return drawn_tool_set(seed, tags, calls=written.most, escapes=written.escapes)


@pytest.mark.parametrize("draws", [FEW, pytest.param(DRAWS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_published_template_writes_is_read_back(name: str, draws: int) -> None:
    """Calls of a model would come back as text, or with other arguments than it wrote."""
    source = (templates(fetches=draws == DRAWS) / f"{name}.jinja").read_text(encoding="utf-8")
    written, format = TEMPLATES[name], ReplyFormat(choose(source).format.tools)
    assert format.tools is not None
    assert format.tools.name == written.format
    for seed in range(draws):
        drawn = drawn_for(written, seed)
        check(format, drawn, rendered(source, drawn, format), seed)


@pytest.mark.parametrize("draws", [FEW, pytest.param(DRAWS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OTHERS)
def test_what_other_models_write_is_read_back(name: str, draws: int) -> None:
    written, write = OTHERS[name]
    for seed in range(draws):
        drawn = drawn_for(written, seed)
        check(ReplyFormat(FORMATS[written.format]), drawn, write(drawn.calls), seed)


def test_every_format_is_written_by_a_template() -> None:
    written = {each.format for each in TEMPLATES.values()} | {each.format for each, _ in OTHERS.values()}
    assert written == FORMATS.keys()
