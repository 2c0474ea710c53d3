"""What prompts for the bundled model may hold, for benchmarks that send token ids."""

from __future__ import annotations

import json

from sluice.models.hub import BUNDLED

VOCAB_SIZE: int = json.loads((BUNDLED / "config.json").read_text())["vocab_size"]
"""Its token ids are below this."""
