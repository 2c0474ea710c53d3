"""The format of a model's answers, by what its chat template shows."""

from __future__ import annotations

import pytest

from sluice.text.parsers.choosing import REASONING_ALIASES, TOOL_ALIASES, UnknownParser, choose
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.reasoning import REASONING_FORMATS

DEEPSEEK = (
    "{{ '<\uff5cAssistant\uff5c>' }}<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>"
)
TEMPLATES: list[tuple[str, str | None, str | None]] = [
    ("{{ messages[0].content }}", None, None),
    ('<tool_call>\n{"name": {{ c.name }}, "arguments": {{ c.arguments | tojson }}}</tool_call>', "hermes", None),
    ('<tool_call>\n{"name": .., "arguments": ..}</tool_call>{{ content.split("</think>") }}', "hermes", "qwen3"),
    ("<tool_call>\n<function={{ f }}>\n<parameter={{ p }}>", "qwen3_coder", None),
    ("<tool_call>{{ name }}<invoke>arguments</invoke></tool_call><think></think>", None, "qwen3"),
    ("<tool_call>{{ n }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value><think></think>", "glm45", "qwen3"),
    ("<tool_call>{{ n }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value></tool_call>", "glm47", None),
    ("[TOOL_CALLS]{{ name }}[ARGS]", "mistral", None),
    ("[TOOL_CALLS]{{ name }}[ARGS][THINK]{{ thoughts }}[/THINK]", "mistral", "mistral"),
    ("<|python_tag|>{{ call }}", "llama3_json", None),
    ('{% set role = \'ipython\' %}{"name": .., "parameters": ..}', "llama3_json", None),
    (f"{DEEPSEEK}function```json{{{{ a }}}}```", "deepseek_v3", None),
    (f"{DEEPSEEK}function```json{{{{ a }}}}```{{{{ content.split('</think>') }}}}", "deepseek_v3", "deepseek_r1"),
    (f"{DEEPSEEK}{{% if thinking %}}<think>{{% else %}}</think>{{% endif %}}", "deepseek_v31", "qwen3"),
    ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ arguments }}<|tool_call_end|>", "kimi_k2", None),
    ("<|start|>assistant<|channel|>final<|message|>", "openai", "gpt_oss"),
    ('<minimax:tool_call>\n<invoke name="{{ f }}">\n</invoke></minimax:tool_call>', "minimax_m2", None),
    ("{% set t = '\uff5cDSML\uff5c' %}{{ '<' + t + 'function_calls>' }}<think></think>", "deepseek_v32", "qwen3"),
    ("{% set t = '\uff5cDSML\uff5c' %}{{ '<' + t + 'tool_calls>' }}", "deepseek_v4", None),
    ("{{ '<|channel>thought\\n' }}<|tool_call>call:{{ name }}<channel|>", "gemma4", "gemma4"),
    ("<|tool_call_start|>[{{ calls }}]<|tool_call_end|>", "lfm2", None),
    ('"List of tools: <|tool_list_start|>["', "lfm2", None),
    ('"List of tools: ["<|im_start|></think>', "lfm2", "qwen3"),
    ("<functions>{{ f }}</functions><function_calls>{{ '<|im_start|>assistant\\n<think>' }}", "olmo3", "qwen3"),
    ("Use exact format: [func_name1(param1=value1), func_name2(...)]", "llama4_pythonic", None),
    ('formatted as functools[{"name": [function name]}]', "phi4_mini", None),
    ("<|tool|>{{ tools }}<|/tool|><|end|>", "phi4_mini", None),
    ("<|start_of_role|>respond only with <|tool_call|>", "granite", None),
    ("{{ '<TOOLCALL>[' }}", "nemotron_v2", None),
    ("<tool_call></tool_call><tool_calls>[{arguments}]</tool_calls>", "apriel", None),
    ("<seed:think>", None, "seed_oss"),
    ("<seed:think><seed:tool_call>\n<function={{ f }}>\n<parameter={{ p }}>", "seed_oss", "seed_oss"),
]
"""Parts of templates as those of model families have them, and the formats."""


@pytest.mark.parametrize(("template", "tools", "reasoning"), TEMPLATES)
def test_the_template_shows_the_format(template: str, tools: str | None, reasoning: str | None) -> None:
    """Calls would come back as text, or reasoning as the answer, unless the user knows the option."""
    chosen = choose(template)
    assert (chosen.tool_name, chosen.reasoning_name) == (tools, reasoning)
    assert all("chat template" in reason for reason in chosen.reasons.values())


def test_options_go_before_the_template() -> None:
    template = '<tool_call>{"name": .., "arguments": ..}</tool_call><think></think>'
    assert choose(template, "mistral").tool_name == "mistral"
    assert choose(template, "none", "none").format == choose(None).format
    assert choose(template, "none").reasoning_name == "qwen3"
    for tools, reasoning in (("openai", None), (None, "gpt_oss"), ("harmony", "gpt-oss")):
        chosen = choose(template, tools, reasoning)
        assert (chosen.tool_name, chosen.reasoning_name) == ("openai", "gpt_oss")
    assert choose("<|channel|><|message|>", "hermes").reasoning_name is None


def test_other_names_mean_formats_that_there_are() -> None:
    """An alias would end in a KeyError when the server is ready."""
    assert {*TOOL_ALIASES.values()} <= {*FORMATS}
    assert {*REASONING_ALIASES.values()} <= {*REASONING_FORMATS, "gpt_oss"}
    assert not {*TOOL_ALIASES} & {*FORMATS}
    for name in (*TOOL_ALIASES, *FORMATS):
        choose(None, name)
    for name in (*REASONING_ALIASES, *REASONING_FORMATS):
        choose(None, None, name)


def test_formats_that_do_not_belong_together() -> None:
    """gpt-oss reads reasoning and calls in one; half of it would be read as another format."""
    for tools, reasoning in (("openai", "qwen3"), ("hermes", "gpt_oss"), ("none", "gpt_oss"), ("openai", "none")):
        with pytest.raises(UnknownParser, match="without the other"):
            choose(None, tools, reasoning)
