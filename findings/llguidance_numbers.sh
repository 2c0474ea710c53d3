#!/usr/bin/env bash
# llguidance changes numbers of a schema: const and enum force another integer beyond 2**53, and another double.
#
# Version:  llguidance 1.9.1 (package index, 2026), numpy 2.4.1
# Expected: the only answer that {"const": N} allows is N, as JSON numbers have no limits and doubles have 17 digits.
# Seen:     1234567890123456789, an identifier of the kind that several services give out, comes out as
#           1234567890123456768. Of 1,000 doubles drawn from 0 to 1, 104 come out as a neighbour; those of six decimals
#           all come out right. 1.602176634e-19 (the charge of an electron) comes out as another double, too. The bounds
#           of a float of 32 bits, {"maximum": 3.4028235e38}, and the least integer of 64 bits as a minimum make no
#           grammar.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check llguidance==1.9.1 numpy==2.4.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
import random

from llguidance import LLMatcher, LLTokenizer

TOKENS = LLTokenizer("byte")


def matcher(schema):
    return LLMatcher(TOKENS, LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)


def forced(number):
    return json.loads(bytes(matcher({"const": number}).compute_ff_tokens()))


draw = random.Random(1)
doubles = [draw.random() for _ in range(1000)]
changed = sum(forced(number) != number for number in doubles)
rounded = [round(number, 6) for number in doubles]
seen = {
    "identifier": forced(1234567890123456789),
    "2**53 + 1": forced(2**53 + 1),
    "doubles that change": changed,
    "rounded ones that change": sum(forced(number) != number for number in rounded),
    "charge of an electron is kept": forced(1.602176634e-19) == 1.602176634e-19,
    "no grammar of a float's bound": matcher({"type": "number", "maximum": 3.4028235e38}).is_error(),
    "no grammar of the least int64": matcher({"type": "integer", "minimum": -(2**63)}).is_error(),
}
print(json.dumps(seen, indent=1))
assert seen == {
    "identifier": 1234567890123456768,
    "2**53 + 1": 2**53,
    "doubles that change": 104,
    "rounded ones that change": 0,
    "charge of an electron is kept": False,
    "no grammar of a float's bound": True,
    "no grammar of the least int64": True,
}, "llguidance behaves otherwise now"
PYTHON
