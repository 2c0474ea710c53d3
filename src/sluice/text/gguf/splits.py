"""How text is cut before pairs of byte-level BPE are merged, by the name in a GGUF file (`tokenizer.ggml.pre`).

A model's `tokenizer.json` cuts by regular expressions. A GGUF file has only a name for them, so the expressions stand
here, as the models' own files have them. Matches become pieces, and so do the gaps between them; the next expression
cuts these pieces again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How text is cut, and what else follows from the name."""

    patterns: tuple[str, ...]
    keeps_words: bool = False
    """A piece that is a token of the vocabulary is that token, even where its merges would give others."""
    adds_bos: bool = False
    """Texts begin with the bos token, unless the file says otherwise."""
    adds_sep: bool = False
    """Texts end with the sep token, unless the file says otherwise."""
    has_byte_letters: bool = True
    """Bytes are spelled by GPT-2's alphabet; otherwise spaces are spelled "\u2581"."""


SHORT = r"'s|'t|'re|'ve|'m|'ll|'d"
ANY_SHORT = f"(?i:{SHORT})"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
ONE_TO_THREE = r"\p{N}{1,3}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
LINES = r"[^\n]+|[\n]+"
PUNCTUATED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
DEEPSEEK = PUNCTUATED + r"| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES
GPT2 = SHORT + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
CASED = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters of scripts with two cases, as DeepSeek LLM lists them."""


def _words(digits: str, spaces: str = SPACES) -> str:
    """Return the expression of Llama 3 and Qwen 2."""
    return "|".join((ANY_SHORT, WORD, digits, OTHERS, spaces))


def _cased(
    digits: str, short: str = f"{ANY_SHORT}?", upper: str = UPPER, lower: str = LOWER, ends: str = r"[\r\n/]*"
) -> str:
    """Return the expression of GPT-4o, which cuts before a capital letter."""
    before = r"[^\r\n\p{L}\p{N}]?"
    first, second = f"{before}{upper}*{lower}+{short}", f"{before}{upper}+{lower}*{short}"
    return "|".join((first, second, digits, rf" ?[^\s\p{{L}}\p{{N}}]+{ends}", SPACES))


def _halving(longest: int) -> str:
    """Return the spaces of Jais 2: runs of powers of two."""
    sizes = [f"\\s{{{longest >> step}}}(?!\\S)" for step in range(longest.bit_length() - 2)]
    return "|".join((r"\s*[\r\n]+", *sizes, r"\s{1,2}(?!\S)", r"\s{1}"))


LLAMA3, QWEN2, GPT4O = _words(ONE_TO_THREE), _words(r"\p{N}"), _cased(ONE_TO_THREE)
NO_HAN = "&&[^\\p{Han}]]"
PLAIN = SplitRule((GPT2,))
DIGITS = SplitRule((r"\p{N}", GPT2))
MARKED_SPACES = SplitRule((LINES,), has_byte_letters=False)
BAILING = "|".join((r"'(?i:[sdmt]|ll|ve|re)", WORD, r"\p{N}", OTHERS, r"\s*[\r\n]|\s+(?!\S)|\s+"))
EXAONE_MOE = "|".join(
    (
        ANY_SHORT,
        r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
        r"\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{HAN_AND_KANA}"
)
QWEN35 = "|".join(
    (
        ANY_SHORT,
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        SPACES,
    )
)


KIMI = _cased(ONE_TO_THREE, upper=UPPER[:-1] + NO_HAN, lower=LOWER[:-1] + NO_HAN, ends=r"[\r\n]*")
SEED_CODER = "|".join((ANY_SHORT, WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", SPACES))
_NAMED: Mapping[str, SplitRule] = {
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert exaone4 mpt olmo jais"
    " trillion granite-docling": PLAIN,
    "jina-v1-en jina-v2-code roberta-bpe": SplitRule((GPT2,), adds_sep=True),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": DIGITS,
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": SplitRule(
        (LLAMA3,), keeps_words=True, adds_bos=True
    ),
    "glm4 glm5": SplitRule((LLAMA3,), keeps_words=True),
    "dbrx smaug-bpe chatglm-bpe": SplitRule((LLAMA3,)),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan grok-2 solar-open": SplitRule((QWEN2,)),
    "qwen35": SplitRule((QWEN35,)),
    "tekken": SplitRule((_cased(r"\p{N}", short=""),), keeps_words=True, adds_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": SplitRule((GPT4O,)),
    "granite-embed-multi-97m": SplitRule((GPT4O,), keeps_words=True),
    "deepseek-v3 hunyuan-dense hy_v4 joyai-llm": SplitRule((ONE_TO_THREE, HAN_AND_KANA, DEEPSEEK)),
    "deepseek-llm": SplitRule(
        (
            r"[\r\n]",
            rf"\s?[{CASED}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": SplitRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}")),
    "falcon": SplitRule((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "default": SplitRule((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "minicpm5": SplitRule((ONE_TO_THREE, _words(r"\p{N}+")), keeps_words=True),
    "spark2_5": SplitRule(
        (ONE_TO_THREE, HAN_AND_KANA, PUNCTUATED + r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
    ),
    "youtu": SplitRule((YOUTU, _cased(r"\p{N}")), keeps_words=True),
    "jais-2": SplitRule((_words(ONE_TO_THREE, _halving(512)),)),
    "bloom poro-chat gpt3-finnish": SplitRule((BLOOM,)),
    "viking": SplitRule((BLOOM, r"\p{N}")),
    "bailingmoe bailingmoe2 llada-moe": SplitRule((BAILING,)),
    "seed-coder": SplitRule((SEED_CODER,)),
    "ufakzeka": SplitRule(("|".join((WORD, r"\p{N}", OTHERS, SPACES)),)),
    "exaone-moe": SplitRule((EXAONE_MOE,)),
    "tiny_aya cohere2moe": SplitRule((r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)),
    "afmoe": SplitRule((r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", ASIAN, DEEPSEEK)),
    "superbpe": SplitRule((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "laguna": SplitRule((LINES, QWEN2)),
    "kimi-k2": SplitRule((r"[\p{Han}]+", KIMI)),
    "chameleon": SplitRule(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            "([\\t\\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ),
        adds_bos=True,
    ),
    "gemma4 granite-embed-multi-311m sarvam-moe": MARKED_SPACES,
    "whitespace": SplitRule((r"\S+",), has_byte_letters=False),
}
"""The rules by the names that have them, separated by spaces."""
RULES: Mapping[str, SplitRule] = {name: rule for names, rule in _NAMED.items() for name in names.split()}
"""Rules by the names that `tokenizer.ggml.pre` may have."""
