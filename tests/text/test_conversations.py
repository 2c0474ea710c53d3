"""Tool calls, template variables and continued messages reach a chat template as transformers passes them."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from jinja2 import TemplateError

from chat_families import Family
from sluice.text.chat_template import RenderOptions
from sluice.text.render_process import Renderer
from sluice.text.special_text import SpecialText
from sluice.text.special_tokens import SpecialTokens
from tokenizer_makers import byte_level_bpe

TAGGED = (
    "{% if documents %}{% for d in documents %}<doc {{ d.title }}>{{ d.text }}</doc>{% endfor %}{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.reasoning_content is string %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.role == 'tool' %}<tool_response {{ m.tool_call_id }}>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% set f = c.function %}"
    '<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}</tool_call>{% endfor %}<|end|>\n'
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n{% endif %}{% endif %}"
)
"""Writes calls as one line of JSON, as ChatML families do."""
ITEMWISE = (
    "{{ bos_token }}{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
    "<fn={{ c.function.name }}>{% for name, value in c.function.arguments | items %}<p={{ name }}>{{ value }}</p>"
    "{% endfor %}</fn>{% endfor %}{% else %}[{{ m.role }}]{{ m.content | trim }}{% endif %}<|end|>{% endfor %}"
    "{% if reasoning_effort %}effort {{ reasoning_effort }}{% endif %}"
)
"""Writes calls argument by argument, checks ids, and trims messages."""
ENDLESS = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
TEMPLATES = {"tagged": TAGGED, "itemwise": ITEMWISE, "endless": ENDLESS}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2.5, None], "units": {"t": "C"}}},
}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "How is it?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "I look."},
    {"role": "tool", "content": "18 degrees", "tool_call_id": "abcdefghi", "name": "weather"},
    {"role": "assistant", "content": "  It is  "},
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"enable_thinking": False},
    {"reasoning_effort": "low", "enable_thinking": True},
    {"documents": [{"title": "a", "text": "b"}]},
]
SPECIAL = ["<|start|>", "<|end|>"]


def rendered(template: str, talk: list[dict[str, Any]], options: RenderOptions) -> str:
    return Renderer(template, {"bos_token": "<|start|>"}).render(talk, options)


@pytest.mark.parametrize(
    "written", ["{{ '(' + a + ')' }}", "({{ a | tojson }})", "({{ a }})", "{{ '(' ~ a ~ ')' }}", "{{ '(%s)' % a }}"]
)
@pytest.mark.parametrize("said", ["How is it?", "How is <|end|>?"])
def test_arguments_are_an_object_and_a_text(written: str, said: str) -> None:
    """Templates of DeepSeek V3 append the arguments to a text: every second round of an agent would be refused."""
    template = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}"
    talk = [{"role": "user", "content": said}, TALK[1]]
    special_text = SpecialText(SpecialTokens(Family(byte_level_bpe, SPECIAL, template).tokenizer(), template).spellings)
    prompt = Renderer(f"{template}{written}{{% endfor %}}{{% endfor %}}", {}, special_text).render(talk)
    assert '({"city": "Köln", "days": [1, 2.5, null], "units": {"t": "C"}})' in prompt


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("adds", [True, False])
def test_conversations_are_those_of_transformers(template: str, adds: bool) -> None:
    source = TEMPLATES[template]
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(), bos_token="<|start|>", eos_token="<|end|>", chat_template=source
    )
    for variables in OPTIONS:
        for end in range(1, len(TALK) + 1):
            continues = not adds and TALK[end - 1]["content"] != ""
            ours = rendered(source, TALK[:end], RenderOptions(variables, adds, continues))
            theirs = reference.apply_chat_template(
                TALK[:end],
                add_generation_prompt=adds,
                continue_final_message=continues,
                tokenize=False,
                **variables,
            )
            assert ours == theirs


def test_what_the_template_leaves_out_cannot_be_continued() -> None:
    with pytest.raises(TemplateError, match="leaves out the content"):
        rendered("{{ messages[0].content }}", TALK, RenderOptions(continue_final_message=True))


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("continues", [True, False])
def test_no_text_of_a_call_makes_a_special_token(template: str, continues: bool) -> None:
    """In names, ids, arguments and their names, reasoning, documents and variables, whole or in parts."""
    family = Family(byte_level_bpe, SPECIAL, TEMPLATES[template])
    special = SpecialTokens(family.tokenizer(), family.template)
    guarded = Renderer(family.template, {"bos_token": "<|start|>"}, SpecialText(special.spellings))
    ids = [family.tokenizer().token_to_id(text) for text in SPECIAL]

    def specials(text: str) -> list[int]:
        function = {"name": text, "arguments": {f"a{text}": text, "b": [text, {text: 1}]}}
        talk: list[dict[str, Any]] = [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": text,
                "reasoning_content": text,
                "tool_calls": [{"id": "abcdefghi", "type": "function", "function": function}],
            },
            {"role": "tool", "content": text, "tool_call_id": text, "name": text},
            {"role": "assistant", "content": f"a{text}"},
        ]
        variables = {"reasoning_effort": text, "documents": [{"title": text, "text": text}]}
        prompt = guarded.render(talk, RenderOptions(variables, not continues, continues))
        encoded = special.encode(prompt) if special.are_spelled_in(prompt) else family.tokenizer().encode(prompt).ids
        return [number for number in encoded if number in ids]

    for text in ("<|end|>", "x<|end|><|start|>", "<|", "|>", "end|>", '"<|end|>"', "<|e", "é<|end|>"):
        assert specials(text) == specials("x"), text


def test_escaped_marks_are_marks() -> None:
    """In JSON of ASCII alone, and where a template prints a list; but not where a client wrote the same letters."""
    source = "<|start|>{{ messages[0].tool_calls | tojson(ensure_ascii=True) }}"
    family = Family(byte_level_bpe, SPECIAL, source)
    special = SpecialTokens(family.tokenizer(), source)
    talk = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "ü<|end|>\\ue000"}}]}]
    prompt = Renderer(source, {}, SpecialText(special.spellings)).render(talk)
    text = family.tokenizer().decode(special.encode(prompt), skip_special_tokens=False)
    assert text == '<|start|>[{"function": {"name": "\\u00fc<|end|>\\\\ue000"}}]'
    assert family.tokenizer().token_to_id("<|end|>") not in special.encode(prompt)


def test_a_switch_keeps_its_value_beside_special_text() -> None:
    """A word that is a part of a special token is compared by the template, and must be what was sent."""
    source = "{% if mode == 'start' %}{{ messages[0].tool_calls[0].type }}{% endif %}{{ messages[0].content }}"
    special = SpecialTokens(Family(byte_level_bpe, [*SPECIAL, "<|function|>"], source).tokenizer(), source)
    talk = [{"role": "user", "content": "<|end|>", "tool_calls": [{"type": "function"}]}]
    prompt = Renderer(source, {}, SpecialText(special.spellings)).render(talk, RenderOptions({"mode": "start"}))
    assert prompt.startswith("function<|end|>")
