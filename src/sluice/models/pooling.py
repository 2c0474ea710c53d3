"""Reads how a checkpoint makes embeddings: `modules.json` of sentence-transformers, and a folder for each module.

Sluice embeds a text as the hidden state of its last token, normalised. A checkpoint that asks for something else is
refused for embeddings: the vectors would have the right form and the wrong content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.models.checkpoint import CheckpointError, Fields

MODULES = "modules.json"
LAST_TOKEN = "lasttoken"
WITHOUT_SETTINGS = ("Transformer", "Normalize")
"""Modules that do what is done anyway."""
MODE = "pooling_mode"
POOLING = "gguf_pooling_type"
"""Field of the `config.json` that is made of a GGUF file, with its `pooling_type`."""
POOLINGS: Mapping[int, str] = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
LAST_POOLINGS = (0, 3)


def why_no_embeddings(folder: Path) -> str | None:
    """Return why a checkpoint cannot be served for embeddings; None if it can, or says nothing about them.

    Raises:
        CheckpointError: a file of the description cannot be read.
    """
    config = folder / "config.json"
    pooling = Fields.read(config).integer(POOLING, 0, minimum=0) if config.is_file() else 0
    if pooling not in LAST_POOLINGS:
        return (
            f"its GGUF file asks for pooling by {POOLINGS.get(pooling, pooling)} (pooling_type {pooling}), and only"
            " pooling by the last token is supported"
        )
    for kind, path in _modules(folder):
        if kind in WITHOUT_SETTINGS:
            continue
        if kind != "Pooling":
            return f"{MODULES} asks for a module {kind}, which is not supported"
        fields = Fields.read(folder / path / "config.json")
        if (mode := _mode(fields)) != LAST_TOKEN:
            return f"{path}/config.json asks for pooling by {mode}, and only {LAST_TOKEN} is supported"
        if not fields.flag("include_prompt", True):
            return f"{path}/config.json leaves the prompt out of the pooling (include_prompt), which is not supported"
    return None


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module."""
    path = folder / MODULES
    if not path.is_file():
        return []
    try:
        modules: Any = json.loads(path.read_text(encoding="utf-8"))
        return [(str(each["type"]).rpartition(".")[2], str(each["path"])) for each in modules]
    except (ValueError, TypeError, LookupError) as error:
        raise CheckpointError(f"{path} must hold a list of modules with type and path: {error!r}") from None


def _mode(fields: Fields) -> str:
    """Return the mode of pooling: given by name, or by a flag for each mode."""
    if fields.get(MODE) is not None:
        return fields.text(MODE)
    prefix = f"{MODE}_"
    modes = [name.removeprefix(prefix) for name in fields if name.startswith(prefix) and fields.flag(name)]
    return " and ".join(modes) or "mean_tokens"
