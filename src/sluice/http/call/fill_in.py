"""Prompts that ask for the text between two others, by the tokens that models of code have for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Fill(NamedTuple):
    """What stands around a gap, besides the prompt before it."""

    suffix: str
    middle: str = ""
    """How the text in the gap begins."""
    files: tuple[tuple[str, str], ...] = ()
    """Names and texts of other files."""


class FillTokens(NamedTuple):
    """What stands before the text that precedes the gap, before the text behind it, and at the end."""

    prefix: str
    suffix: str
    middle: str


FILE = "<|file_sep|>"
"""What another file begins with."""
KNOWN = (
    FillTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    FillTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    FillTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    FillTokens("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    FillTokens("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    FillTokens("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
    FillTokens("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
)
"""Tokens of Qwen, CodeGemma and Llama's kin; StarCoder; Granite; DeepSeek; GLM; Code Llama; Codestral."""


def fill_tokens(token_id: Callable[[str], int | None]) -> FillTokens | None:
    """Return the tokens of a model; None if it has none.

    Args:
        token_id: of the tokenizer: returns the id of a token, None if a text is none.
    """
    return next((each for each in KNOWN if all(token_id(text) is not None for text in each)), None)


def filled(tokens: FillTokens, prompt: str, fill: Fill, *, has_files: bool = False) -> str:
    """Return the prompt for the text between two others. Codestral's models read what follows the gap first.

    Args:
        has_files: the tokenizer has `FILE` as a token; other models see no other files.
    """
    files = "".join(f"{FILE}{name}\n{text}\n" for name, text in fill.files) if has_files else ""
    if tokens.prefix == "[PREFIX]":
        return f"{files}{tokens.suffix}{fill.suffix}{tokens.prefix}{prompt}{fill.middle}"
    return f"{files}{tokens.prefix}{prompt}{tokens.suffix}{fill.suffix}{tokens.middle}{fill.middle}"
