"""The name of an option of transformers' continuous batching, which changed between versions."""

from __future__ import annotations

from dataclasses import fields


def pages_option() -> str:
    """Return the option of `ContinuousBatchingConfig` that sets the tokens of a page."""
    from transformers import ContinuousBatchingConfig

    names = {field.name for field in fields(ContinuousBatchingConfig)}
    return "page_size" if "page_size" in names else "block_size"
