"""The formats in which models write calls of tools: one file for each, in `FORMATS` by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sluice.chat.formats.base import ToolFormat
from sluice.chat.formats.deepseek import DeepseekV3, DeepseekV31
from sluice.chat.formats.harmony import Harmony
from sluice.chat.formats.hermes import Hermes
from sluice.chat.formats.llama3 import Llama3
from sluice.chat.formats.mistral import Mistral
from sluice.chat.formats.plain_json import PlainJson
from sluice.chat.formats.qwen3_coder import Qwen3Coder

_ALL: tuple[ToolFormat, ...] = (
    Hermes(),
    Llama3(),
    Mistral(),
    Qwen3Coder(),
    DeepseekV3(),
    DeepseekV31(),
    Harmony(),
    PlainJson(),
)
FORMATS: Mapping[str, ToolFormat] = MappingProxyType({each.name: each for each in _ALL})
"""Format by the name that `--tool-call-parser` takes."""
