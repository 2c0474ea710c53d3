#!/usr/bin/env bash
# Two published chat templates cannot show a model its own earlier calls as the model writes them.
#
# Version:  transformers 5.23.0; the templates LFM2.5-8B-A1B.jinja, Kimi-K2-Instruct.jinja and Kimi-K2-Thinking.jinja in
#           the sources of llama-cpp-python 0.3.36
# Expected: a conversation with a call, which a client sends back with the tool's answer, is rendered to a prompt that has
#           the call as a model is meant to write it.
# Seen:     LFM2.5 writes texts between single quotes without escapes, so the calls of a text with an apostrophe or a
#           backslash are no Python (note='it's'), and a text may end its own call. Both templates of Kimi K2 collect ids
#           by list.append, which the sandbox of transformers refuses: no conversation with a call can be rendered there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check transformers==5.23.0 jinja2==3.1.6
venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    llama-cpp-python==0.3.36
tar xzf llama_cpp_python-0.3.36.tar.gz --wildcards --strip-components=5 '*/models/templates/*.jinja'
venv/bin/python - <<'PYTHON'
import ast
from pathlib import Path

from jinja2.exceptions import SecurityError
from transformers.utils.chat_template_utils import render_jinja_template


def rendered(name, text):
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": {"note": text}}}
    turns = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "ok"},
    ]
    return render_jinja_template([turns], chat_template=Path(f"{name}.jinja").read_text())[0][0]


def call_of(text):
    prompt = rendered("LFM2.5-8B-A1B", text)
    return prompt.split("<|tool_call_start|>")[1].rsplit("<|tool_call_end|>")[0]


def is_the_call(text):
    try:
        (call,) = ast.parse(call_of(text), mode="eval").body.elts
        return ast.literal_eval(call.keywords[0].value) == text
    except (SyntaxError, ValueError):
        return False


TEXTS = ["plain", "it's", "C:\\new", "two\nlines", "'), g(x='"]
for text in TEXTS:
    print("LFM2.5:", call_of(text), "" if is_the_call(text) else "<- another call, or none")
assert [text for text in TEXTS if is_the_call(text)] == ["plain"], "it writes texts otherwise now"

for name in ("Kimi-K2-Instruct", "Kimi-K2-Thinking"):
    try:
        rendered(name, "plain")
    except SecurityError as error:
        print(f"{name}: {error}")
    else:
        raise AssertionError(f"{name} can be rendered now")
PYTHON
