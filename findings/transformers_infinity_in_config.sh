#!/usr/bin/env bash
# transformers 5 writes an infinite limit into config.json as an object, which other readers take for no number.
#
# Version:  transformers 5.23.0 (package index, 2026)
# Expected: the bounds (0, infinity) of a Mamba-2 time step, the default of Granite 4, are saved as two numbers: as
#           [0.0, Infinity], which Python's json writes and reads back.
# Seen:     [0.0, {"__float__": "Infinity"}]. The file is strict JSON now, and only transformers 5 knows what it means:
#           a reader that takes the field as two floats fails on every Granite 4 that was saved again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check transformers==5.23.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON' 2>/dev/null
import json
import sys
from pathlib import Path

from transformers import GraniteMoeHybridConfig

folder = Path(sys.argv[1])
config = GraniteMoeHybridConfig()
config.save_pretrained(folder)
seen = json.loads((folder / "config.json").read_text())["time_step_limit"]
print("time_step_limit in config.json:", seen)
again = tuple(GraniteMoeHybridConfig.from_pretrained(folder).time_step_limit)
assert again == (0.0, float("inf")), again
assert seen == [0.0, {"__float__": "Infinity"}], seen
PYTHON
