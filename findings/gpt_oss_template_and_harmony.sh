#!/usr/bin/env bash
# The published chat template of gpt-oss and the model's reference renderer write half of all tool schemas differently.
#
# Version:  openai-harmony 0.0.8; the template openai-gpt-oss-120b.jinja in the sources of llama-cpp-python 0.3.36;
#           the vocabulary o200k_base of js-tiktoken 1.0.21 (npm), which openai-harmony accepts by its hash
# Expected: both write the same prompt for the same conversation, as the template was published with the weights, for
#           servers that render templates.
# Seen:     of 24 small functions with one parameter, 11 come out alike and 13 differ: nested objects (the template
#           breaks the line before each type), arrays without items (any[] against Array<any>), a default (a comma
#           behind the comment), unions of integer (a type that TypeScript has not), no parameters, free objects, titles,
#           descriptions of two lines (the second one leaves the comment). Instructions of a developer end in two more
#           line breaks. In the history the template writes a call as "commentary json" where the renderer and the
#           model write "commentary <|constrain|>json", and puts the text of a tool's answer into quotes. So behind each
#           call the next turn's prompt is another one than what the model wrote, and what is cached is not found.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check openai-harmony==0.0.8 jinja2==3.1.6
venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    llama-cpp-python==0.3.36
tar xzf llama_cpp_python-0.3.36.tar.gz --wildcards --strip-components=5 '*/models/templates/openai-gpt-oss-120b.jinja'
npm pack --silent js-tiktoken@1.0.21 > /dev/null
tar xzf js-tiktoken-1.0.21.tgz package/dist/ranks/o200k_base.js
TIKTOKEN_ENCODINGS_BASE=$folder venv/bin/python - <<'PYTHON'
import json
from datetime import datetime
from pathlib import Path

import jinja2.sandbox

# A line of js-tiktoken is: a name, the rank of the first token, the tokens in order.
source = Path("package/dist/ranks/o200k_base.js").read_text()
lines = json.JSONDecoder().raw_decode(source, source.index("{"))[0]["bpe_ranks"].split("\n")
ranked = [
    f"{token} {int(first) + place}\n"
    for _, first, *tokens in (line.split(" ") for line in lines if line)
    for place, token in enumerate(tokens)
]
Path("o200k_base.tiktoken").write_text("".join(ranked))

import openai_harmony as harmony  # noqa: E402

TODAY = datetime.now().strftime("%Y-%m-%d")
environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
environment.globals["strftime_now"] = lambda form: TODAY
template = environment.from_string(Path("openai-gpt-oss-120b.jinja").read_text())
encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
Message, Role = harmony.Message, harmony.Role
ASKED = Message.from_role_and_content(Role.USER, "Go")


def by_template(messages, tools=None):
    return template.render(messages=messages, tools=tools, add_generation_prompt=True)


def by_harmony(*messages):
    system = harmony.SystemContent.new().with_conversation_start_date(TODAY)
    chat = harmony.Conversation.from_messages([Message.from_role_and_content(Role.SYSTEM, system), *messages])
    return encoding.decode_utf8(encoding.render_conversation_for_completion(chat, Role.ASSISTANT))


def developer(instructions=None, parameters=None, description="Does it."):
    content = harmony.DeveloperContent.new()
    if instructions:
        content = content.with_instructions(instructions)
    if parameters:
        content = content.with_function_tools([harmony.ToolDescription.new("f", description, parameters=parameters)])
    return Message.from_role_and_content(Role.DEVELOPER, content)


def of(**properties):
    return {"type": "object", "properties": properties}


TEXT = {"type": "string"}
SCHEMAS = {
    "text": of(a=TEXT),
    "described": of(a={**TEXT, "description": "the a"}),
    "enum": of(a={**TEXT, "enum": ["x", "y"]}),
    "enum with default": of(a={**TEXT, "enum": ["x", "y"], "default": "x"}),
    "required": {**of(a=TEXT, b={"type": "integer"}), "required": ["a"]},
    "array": of(a={"type": "array", "items": TEXT}),
    "array of objects": of(a={"type": "array", "items": of(x=TEXT)}),
    "array of anything": of(a={"type": "array"}),
    "nested": of(a=of(x=TEXT, y={"type": "number"})),
    "nested and required": of(a={**of(x=TEXT), "required": ["x"]}),
    "text or null": of(a={"type": ["string", "null"]}),
    "nullable": of(a={**TEXT, "nullable": True}),
    "text or integer": of(a={"type": ["string", "integer"]}),
    "anyOf": of(a={"anyOf": [TEXT, {"type": "null"}]}),
    "oneOf with default": of(a={"oneOf": [{**TEXT, "default": "q"}, {"type": "integer"}]}),
    "default": of(a={"type": "integer", "default": 5}),
    "boolean": of(a={"type": "boolean"}),
    "anything": of(a={}),
    "const": of(a={"const": "x"}),
    "no parameters": of(),
    "title": of(a={**TEXT, "title": "A"}),
    "free object": of(a={"type": "object"}),
    "examples": of(a={**TEXT, "examples": ["p", "q"]}),
}


def differs(parameters, description="Does it."):
    function = {"name": "f", "description": description, "parameters": parameters}
    asked = by_template([{"role": "user", "content": "Go"}], [{"type": "function", "function": function}])
    return asked != by_harmony(developer(None, parameters, description), ASKED)


different = {name for name, parameters in SCHEMAS.items() if differs(parameters)}
different |= {"two lines"} if differs(of(a=TEXT), "First.\nSecond.") else set()
print(f"{len(different)} of {len(SCHEMAS) + 1} schemas differ: {sorted(different)}")
assert different == {
    "enum with default", "array of objects", "array of anything", "nested", "nested and required", "text or integer",
    "oneOf with default", "default", "no parameters", "title", "free object", "examples", "two lines",
}, "one of them writes schemas otherwise now"

brief = by_template([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Go"}])
assert "Be brief.\n\n<|end|>" in brief and "Be brief.<|end|>" in by_harmony(developer("Be brief."), ASKED)

call = Message.from_role_and_content(Role.ASSISTANT, '{"a": "x"}').with_channel("commentary")
call = call.with_recipient("functions.f").with_content_type("<|constrain|>json")
answer = Message.from_author_and_content(harmony.Author.new(Role.TOOL, "functions.f"), "ok")
answer = answer.with_channel("commentary").with_recipient("assistant")
called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "x"}}}
turns = [
    {"role": "user", "content": "Go"},
    {"role": "assistant", "content": "", "tool_calls": [called]},
    {"role": "tool", "tool_call_id": "1", "name": "f", "content": "ok"},
]
history = by_template(turns), by_harmony(ASKED, call, answer)
for text in history:
    print(text[text.index("<|start|>assistant") :])
assert 'commentary json<|message|>{"a": "x"}' in history[0] and '<|message|>"ok"<|end|>' in history[0]
assert 'commentary <|constrain|>json<|message|>{"a": "x"}' in history[1] and "<|message|>ok<|end|>" in history[1]
PYTHON
