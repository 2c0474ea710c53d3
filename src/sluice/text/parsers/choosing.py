"""Which formats the served model writes: those that the options name, else those that its chat template shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sluice.text.parsers.formats import (
    FORMATS,
    deepseek,
    gemma4,
    glm,
    harmony,
    hermes,
    invoke,
    kimi,
    llama3,
    mistral,
    pythonic,
    qwen3_coder,
)
from sluice.text.parsers.formats.base import ToolFormat
from sluice.text.parsers.reasoning import REASONING_FORMATS, ReasoningFormat
from sluice.text.parsers.replies import ReplyFormat

NO_PARSER = "none"
HARMONY = "openai"
GPT_OSS = "gpt_oss"
"""The name of reasoning that Harmony tells from text by itself."""
TOOL_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "deepseekv3": "deepseek_v3",
        "deepseekv31": "deepseek_v31",
        "deepseekv32": "deepseek_v32",
        "deepseekv4": "deepseek_v4",
        "glm": "glm45",
        "gpt-oss": HARMONY,
        "gpt_oss": HARMONY,
        "harmony": HARMONY,
        "llama3": "llama3_json",
        "llama4_json": "llama3_json",
        "minimax-m2": "minimax_m2",
        "phi4_mini_json": "phi4_mini",
        "pythonic": "llama4_pythonic",
        "qwen": "hermes",
        "qwen25": "hermes",
        "qwen3_xml": "qwen3_coder",
    }
)
"""Names that vLLM and SGLang have for the same formats."""
REASONING_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "deepseek-r1": "deepseek_r1",
        "deepseek-v3": "qwen3",
        "deepseek_v3": "qwen3",
        "glm45": "qwen3",
        "gpt-oss": GPT_OSS,
        "openai_gptoss": GPT_OSS,
        "qwen3-thinking": "deepseek_r1",
    }
)
TOOL_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (HARMONY, (harmony.CHANNEL, harmony.MESSAGE)),
    ("deepseek_v3", (deepseek.BEGIN, "```json")),
    ("deepseek_v31", (deepseek.BEGIN,)),
    ("kimi_k2", (kimi.BEGIN, kimi.ARGUMENTS)),
    ("minimax_m2", (invoke.MINIMAX[0], invoke.MinimaxM2.invoke)),
    ("deepseek_v32", (invoke.DSML, "function_calls>")),
    ("deepseek_v4", (invoke.DSML, "tool_calls>")),
    ("gemma4", (f"{gemma4.BEGIN}call:",)),
    ("lfm2", (pythonic.Lfm2.begin,)),
    ("lfm2", ("List of tools: <|tool_list_start|>[",)),
    ("lfm2", ('"List of tools: ["',)),
    ("olmo3", (pythonic.Olmo3.begin, "<functions>")),
    ("llama4_pythonic", ("[func_name1(",)),
    ("phi4_mini", ("functools[",)),
    ("phi4_mini", ("<|/tool|>",)),
    ("granite", ("<|tool_call|>", "<|start_of_role|>")),
    ("nemotron_v2", ("<TOOLCALL>[",)),
    ("apriel", ("<tool_calls>[",)),
    ("seed_oss", (qwen3_coder.SEED_BEGIN,)),
    ("glm45", (glm.KEY, f"{glm.KEY_END}\n{glm.VALUE}")),
    ("glm47", (glm.KEY, glm.VALUE)),
    ("qwen3_coder", (qwen3_coder.BEGIN, qwen3_coder.FUNCTION)),
    ("hermes", (hermes.BEGIN, hermes.END, "arguments")),
    ("mistral", (mistral.TAG,)),
    ("llama3_json", (llama3.TAG,)),
    ("llama3_json", ("ipython", '"parameters"')),
)
"""Format -> texts that all stand in the chat templates of its models. The first that fits is chosen."""
NOT_HERMES = ("<invoke",)
"""Templates with these have the tags of Hermes, and something else between them."""
BEGINS_THOUGHT = re.compile(r"assistant(?:\\n|\n)<think>")
"""The end of a prompt, in a template that nowhere else has tags of reasoning."""
SWITCHES = ("enable_thinking", "thinking")
"""Variables of templates by which requests turn reasoning off."""


class UnknownParser(ValueError):
    """There is no parser of this name; the message lists all."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The formats of a model, and why."""

    format: ReplyFormat
    tool_name: str | None
    reasoning_name: str | None
    tool_reason: str = ""
    """Reason for the name; empty if the user gave it."""
    reasoning_reason: str = ""

    @property
    def reasons(self) -> dict[str, str]:
        """Return why the options are so, by name."""
        reasons = {"tool_call_parser": self.tool_reason, "reasoning_parser": self.reasoning_reason}
        return {name: reason for name, reason in reasons.items() if reason}


def check_tool_parser(name: str | None) -> None:
    """Refuse the name of a parser of calls that there is not.

    Raises:
        UnknownParser: there is none.
    """
    _known(name, FORMATS, TOOL_ALIASES, "--tool-call-parser")


def check_reasoning_parser(name: str | None) -> None:
    """Refuse the name of a parser of reasoning that there is not.

    Raises:
        UnknownParser: there is none.
    """
    _known(name, {**REASONING_FORMATS, GPT_OSS: None}, REASONING_ALIASES, "--reasoning-parser")


def choose(
    template: str | None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    *,
    lone_calls: bool = True,
) -> Chosen:
    """Return the formats of a model.

    Args:
        template: the source of its chat template.
        tool_parser: the name that the user gave; None: as the template shows.
        reasoning_parser: the same for reasoning.
        lone_calls: an answer that is nothing but the JSON of a call is one.

    Raises:
        UnknownParser: there is no parser of a name, or the two do not belong together.
    """
    check_tool_parser(tool_parser)
    check_reasoning_parser(reasoning_parser)
    tools = _named(tool_parser, TOOL_ALIASES, _tools_of(template))
    reasoning = _named(reasoning_parser, REASONING_ALIASES, _reasoning_of(template))
    if tool_parser is None and reasoning_parser is not None and (reasoning == GPT_OSS) != (tools == HARMONY):
        tools = HARMONY if reasoning == GPT_OSS else None
    elif reasoning_parser is None and tool_parser is not None and (reasoning == GPT_OSS) != (tools == HARMONY):
        reasoning = GPT_OSS if tools == HARMONY else None
    if (reasoning == GPT_OSS) != (tools == HARMONY):
        raise UnknownParser(
            f"--tool-call-parser {HARMONY} and --reasoning-parser {GPT_OSS} read the same format, so one cannot be used"
            " without the other; leave one of the options out"
        )
    thoughts = None if reasoning is None else REASONING_FORMATS.get(reasoning)
    format = ReplyFormat(_tool_format(tools), thoughts, lone_calls)
    return Chosen(format, tools, reasoning, _why(tool_parser, tools), _why(reasoning_parser, reasoning))


def _tool_format(name: str | None) -> ToolFormat | None:
    return None if name is None else FORMATS[name]


def _known(name: str | None, known: Mapping[str, object], aliases: Mapping[str, str], option: str) -> None:
    if name is None or name == NO_PARSER or name in known or name in aliases:
        return
    names = ", ".join([*known, NO_PARSER])
    raise UnknownParser(f"{option} {name!r} is unknown; accepted: {names}; or by other names: {', '.join(aliases)}")


def _named(name: str | None, aliases: Mapping[str, str], shown: str | None) -> str | None:
    """Return the format that the user named, or that the template shows."""
    if name is None:
        return shown
    return None if name == NO_PARSER else aliases.get(name, name)


def _why(given: str | None, name: str | None) -> str:
    if given is not None:
        return ""
    return "the chat template shows no format that is known" if name is None else "the chat template shows this format"


def _tools_of(template: str | None) -> str | None:
    source = template or ""
    for name, signs in TOOL_SIGNS:
        if all(sign in source for sign in signs) and not (name == "hermes" and any(s in source for s in NOT_HERMES)):
            return name
    return None


def _reasoning_of(template: str | None) -> str | None:
    source = template or ""
    if harmony.CHANNEL in source and harmony.MESSAGE in source:
        return GPT_OSS
    for name, format in REASONING_FORMATS.items():
        if format.begin in source and name not in ("qwen3", "deepseek_r1"):
            return name
    qwen: ReasoningFormat = REASONING_FORMATS["qwen3"]
    if qwen.end not in source and not BEGINS_THOUGHT.search(source):
        return None
    is_deepseek = deepseek.ASSISTANT in source and not any(switch in source for switch in SWITCHES)
    return "deepseek_r1" if is_deepseek else "qwen3"
