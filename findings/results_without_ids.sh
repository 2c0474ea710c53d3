#!/usr/bin/env bash
# Most published chat templates write the results of tools without the ids of their calls.
#
# Version:  the 70 templates in the sources of llama-cpp-python 0.3.36 (vendor/llama.cpp/models/templates)
# Expected: about half of them write ids, as the id is what a client must send with each result.
# Seen:     of 57 templates that accept two calls and their results, 6 write ids, 1 (Kimi K3) writes the number of the
#           call that an id belongs to, and 50 go by the place of a result: most write no ids, and two of Kimi K2 write ids
#           of their own, which they give to the results one after the other. With these, a client that sends the results
#           in the order in which they came (which the API allows) tells the model Oslo's weather as Rome's, and nothing
#           reports it. A server has to put results into the order of their calls before it renders them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check jinja2==3.1.6
venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    llama-cpp-python==0.3.36
mkdir templates
tar xzf llama_cpp_python-0.3.36.tar.gz -C templates --wildcards --strip-components=5 '*/models/templates/*.jinja'
venv/bin/python - <<'PYTHON'
import collections
import datetime
import json
from pathlib import Path

import jinja2.sandbox

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": PARAMETERS}}
CITIES = {"abcdefgh1": ("Rome", "sun"), "abcdefgh2": ("Oslo", "snow")}
RESULTS = [
    {"role": "tool", "name": "weather", "tool_call_id": id, "content": weather} for id, (_, weather) in CITIES.items()
]


class Refused(Exception):
    """The template does not accept the conversation."""


def refuse(reason):
    raise Refused(reason)


environment = jinja2.sandbox.SandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
)
environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
environment.globals |= {
    "raise_exception": refuse,
    "strftime_now": lambda form: datetime.datetime.now().strftime(form),
}


def kind(source, spelled):
    arguments = ((id, spelled({"city": city})) for id, (city, _) in CITIES.items())
    calls = [{"id": id, "type": "function", "function": {"name": "weather", "arguments": each}} for id, each in arguments]
    start = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    template = environment.from_string(source)
    texts = [
        template.render(messages=start + results, tools=[TOOL], add_generation_prompt=True, bos_token="", eos_token="")
        for results in (RESULTS, RESULTS[::-1])
    ]
    if "snow" not in texts[0]:
        return "no results"
    if "abcdefgh2" in texts[0]:
        return "ids"
    return "numbers" if texts[0] == texts[1] else "places alone"


kinds = collections.defaultdict(list)
for path in sorted(Path("templates").glob("*.jinja")):
    for spelled in (dict, json.dumps):  # templates want arguments as an object or as text
        try:
            kinds[kind(path.read_text(), spelled)].append(path.stem)
            break
        except (Refused, jinja2.TemplateError, TypeError):
            continue
    else:
        kinds["not accepted"].append(path.stem)
for name, stems in kinds.items():
    print(f"{name}: {len(stems)}: {' '.join(stems)}")
counts = {name: len(kinds[name]) for name in ("ids", "numbers", "places alone")}
assert counts == {"ids": 6, "numbers": 1, "places alone": 50}, counts
PYTHON
