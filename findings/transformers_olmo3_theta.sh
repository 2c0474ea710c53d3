#!/usr/bin/env bash
# transformers 5 reads the rope_theta of an OLMo 3 config for one in four layers only.
#
# Version:  transformers 5.23.0 (package index, 2026)
# Expected: rope_theta in config.json, the spelling of transformers 4, is the base of the rotation of all layers, as in
#           OLMo 2. Windows and a scaling for long texts differ between layers; nothing says that the base does.
# Seen:     the first reader takes rope_theta out of the fields, so that the layers with a window find none and get the
#           default, 500000. A model with another base loads without a word, and three of four layers are rotated
#           otherwise than in training. Configs with 500000 are right by chance.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check transformers==5.23.0
"$folder/venv/bin/python" - <<'PYTHON' 2>/dev/null
from transformers import Olmo2Config, Olmo3Config

ropes = Olmo3Config(rope_theta=1e6).rope_parameters
seen = {kind: rope["rope_theta"] for kind, rope in ropes.items()}
print("rope_theta 1000000 in config.json:", seen)
assert Olmo2Config(rope_theta=1e6).rope_parameters["rope_theta"] == 1e6, "OLMo 2 reads it"
assert seen == {"full_attention": 1e6, "sliding_attention": 5e5}, seen
PYTHON
