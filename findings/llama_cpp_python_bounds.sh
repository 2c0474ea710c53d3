#!/usr/bin/env bash
# llama-cpp-python: its grammar of a JSON schema leaves out the bounds of integers.
#
# Version:  llama-cpp-python 0.3.36
# Expected: {"type": "integer", "minimum": 1, "maximum": 31} allows the numbers 1 to 31, as the converter of llama.cpp
#           itself does (`common/json-schema-to-grammar.cpp`, in the same sources).
# Seen:     `LlamaGrammar.from_json_schema` gives the rule of any integer of up to 16 digits, with a sign, and no warning.
#           The bounds of texts and arrays (maxLength, maxItems) are kept. SmolLM2-135M-Instruct, asked for a date,
#           writes a day 2025. An answer has to be checked against its schema once more.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    llama-cpp-python==0.3.36
tar xzf llama_cpp_python-0.3.36.tar.gz
sources=llama_cpp_python-0.3.36
grep -q build_min_max_int $sources/vendor/llama.cpp/common/json-schema-to-grammar.cpp # the one of llama.cpp has the bounds
cp $sources/llama_cpp/llama_grammar.py . # it imports the standard library alone
python3 - <<'PYTHON'
import json

from llama_grammar import json_schema_to_gbnf

bounded = json_schema_to_gbnf(json.dumps({"type": "integer", "minimum": 1, "maximum": 31}))
plain = json_schema_to_gbnf(json.dumps({"type": "integer"}))
short = json_schema_to_gbnf(json.dumps({"type": "string", "maxLength": 3}))
assert bounded == plain, bounded
assert short != json_schema_to_gbnf(json.dumps({"type": "string"})), short
print("as seen: an integer of 1 to 31 has the rule of any integer:", bounded.splitlines()[1])
PYTHON
