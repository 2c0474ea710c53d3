"""The formats in which models write calls of tools: one file for each, in `FORMATS` by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sluice.text.parsers.formats.base import ToolFormat
from sluice.text.parsers.formats.deepseek import DeepseekV3, DeepseekV31
from sluice.text.parsers.formats.gemma4 import Gemma4
from sluice.text.parsers.formats.glm import Glm45, Glm47
from sluice.text.parsers.formats.harmony import Harmony
from sluice.text.parsers.formats.hermes import Hermes
from sluice.text.parsers.formats.invoke import DeepseekV4, DeepseekV32, MinimaxM2
from sluice.text.parsers.formats.json_list import JsonList
from sluice.text.parsers.formats.kimi import KimiK2
from sluice.text.parsers.formats.llama3 import Llama3
from sluice.text.parsers.formats.mistral import Mistral
from sluice.text.parsers.formats.plain_json import PlainJson
from sluice.text.parsers.formats.pythonic import Lfm2, Olmo3, Pythonic
from sluice.text.parsers.formats.qwen3_coder import Qwen3Coder, SeedOss

_ALL: tuple[ToolFormat, ...] = (
    Hermes(),
    Llama3(),
    Mistral(),
    Qwen3Coder(),
    DeepseekV3(),
    DeepseekV31(),
    DeepseekV32(),
    DeepseekV4(),
    KimiK2(),
    Glm45(),
    Glm47(),
    SeedOss(),
    MinimaxM2(),
    Gemma4(),
    Pythonic(),
    Lfm2(),
    Olmo3(),
    JsonList("phi4_mini", ("functools", ""), ("<|tool_call|>", "<|/tool_call|>")),
    JsonList("granite", ("<|tool_call|>", "")),
    JsonList("nemotron_v2", ("<TOOLCALL>", "</TOOLCALL>")),
    JsonList("apriel", ("<tool_calls>", "</tool_calls>")),
    Harmony(),
    PlainJson(),
)
FORMATS: Mapping[str, ToolFormat] = MappingProxyType({each.name: each for each in _ALL})
"""Format by the name that `--tool-call-parser` takes."""
