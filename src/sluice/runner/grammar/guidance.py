"""Grammars by llguidance (https://github.com/guidance-ai/llguidance), as the engine compiles and follows them.

A mask is computed by walking the vocabulary as a tree of bytes beside an Earley parser over derivatives of regular
expressions, in some ten microseconds. The library bounds the work of each mask and of compiling; a grammar that needs
more ends its own request.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

Bits = npt.NDArray[np.int32]
"""[ceil(vocab / 32)]: bit `t % 32` of word `t // 32` says whether token `t` is allowed."""
END = "<|sluice-end-of-grammar|>"
"""A token more, which no model has. It stands for the end of an output: the stop tokens of a request are its own."""
MAX_BYTES = 1 << 20
"""Size of the largest grammar."""
SHOWN_CHARS = 400
"""Most characters of an error of the library, which may quote a grammar."""
NO_FORCING = '%llguidance {"no_forcing": true}'


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or cannot continue. The message is meant for the one who sent it."""


class Guidance:
    """Compiles grammars for one vocabulary. Several threads may call it.

    Args:
        tokenizer: returns the checkpoint's tokenizer as the `tokenizers` library writes it, with the token `END`, and
            the id of that token; called once, when first needed, and may raise ValueError.
        vocab_size: of the model, which may be padded beyond the tokenizer's. Ids beyond that are never allowed.
    """

    def __init__(self, tokenizer: Callable[[], tuple[str, int]], vocab_size: int) -> None:
        self._read_tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._vocabulary: GuidanceVocabulary | None = None

    def prepare(self) -> None:
        """Read the vocabulary, which blocks all threads of the process for most of a second if it is large.

        Raises:
            ValueError: the tokenizer cannot be read.
        """
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = GuidanceVocabulary(*self._read_tokenizer(), self._vocab_size)

    def __call__(self, grammar: str) -> GuidanceGrammar:
        """
        Raises:
            GrammarError: the grammar is wrong or too large; the message says why.
        """
        size = len(grammar.encode(errors="surrogatepass"))
        if size > MAX_BYTES:
            raise GrammarError(f"the grammar has {size} bytes, at most {MAX_BYTES} are accepted")
        try:
            self.prepare()
        except ValueError as error:
            raise GrammarError(f"there is no tokenizer to follow a grammar with: {error}") from error
        assert self._vocabulary is not None
        return GuidanceGrammar(grammar, self._vocabulary)


class GuidanceVocabulary:
    """A model's vocabulary as the library needs it.

    Args:
        tokenizer: as the `tokenizers` library writes it, with `END`.
        end: the id of `END`, its last one.
        vocab_size: of the model.
    """

    def __init__(self, tokenizer: str, end: int, vocab_size: int) -> None:
        self.tokenizer = LLTokenizer(tokenizer, eos_token=end)
        allowed = np.zeros(-(-max(vocab_size, self.tokenizer.vocab_size) // 32) * 32, dtype=np.uint8)
        allowed[: min(vocab_size, end)] = 1
        words = np.packbits(allowed, bitorder="little").view(np.int32)
        self.words = -(-vocab_size // 32)
        self.own_words = -(-self.tokenizer.vocab_size // 32)
        self.valid: Bits = words[: min(self.words, self.own_words)]
        """The tokens that both the model and the tokenizer have."""


class GuidanceGrammar:
    """A compiled grammar.

    Raises:
        GrammarError: it cannot be compiled.
    """

    def __init__(self, text: str, vocabulary: GuidanceVocabulary) -> None:
        self._text = text
        self._vocabulary = vocabulary
        self._first = self._compiled(text)
        """A matcher at the beginning; it is only copied."""

    def matcher(self, *, may_force: bool = True) -> GuidanceMatcher:
        matcher = self._first.deep_copy() if may_force else self._compiled(without_forcing(self._text))
        return GuidanceMatcher(matcher, self._vocabulary)

    def _compiled(self, text: str) -> LLMatcher:
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._vocabulary.tokenizer, text, log_level=0, limits=limits)
        check(matcher)
        return matcher


class GuidanceMatcher:
    """The place of one output in its grammar. One thread at a time may use it."""

    def __init__(self, matcher: LLMatcher, vocabulary: GuidanceVocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._own: Bits = np.zeros(vocabulary.own_words, dtype=np.int32)

    def consume(self, tokens: Sequence[int]) -> None:
        """Advance by the tokens of an output.

        Raises:
            GrammarError: they do not match, or a limit was reached.
        """
        if tokens and not self._matcher.consume_tokens(list(tokens)):
            check(self._matcher)
            raise GrammarError(f"the tokens {list(tokens)} do not match")

    def fill(self, bits: Bits) -> None:
        """Write which tokens may follow. Stop tokens are not among them unless the grammar names them.

        Raises:
            GrammarError: a limit was reached.
        """
        own, valid = self._own, self._vocabulary.valid
        self._matcher.unsafe_compute_mask_ptr(own.ctypes.data, own.nbytes)
        check(self._matcher)
        np.bitwise_and(own[: len(valid)], valid, out=bits[: len(valid)])
        bits[len(valid) :] = 0

    def forced(self) -> list[int]:
        """Return the tokens that must follow, if the grammar leaves no choice of text. Does not advance by them.

        Tokens that the text behind them might change are not among them.

        Raises:
            GrammarError: a limit was reached.
        """
        tokens = self._matcher.compute_ff_tokens()
        check(self._matcher)
        return tokens

    def copy(self) -> GuidanceMatcher:
        """Return a matcher in the same place, which continues by itself, on any thread."""
        return GuidanceMatcher(self._matcher.deep_copy(), self._vocabulary)

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        return self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Whether the output must end here: it matches, and nothing can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()


def without_forcing(grammar: str) -> str:
    """Return a grammar for which the library looks for no tokens that must follow."""
    is_parts = grammar.lstrip().startswith("{")
    first, *others = json.loads(grammar)["grammars"] if is_parts else [{"lark_grammar": grammar}]
    if "lark_grammar" in first:  # options are merged, so its own stay
        return json.dumps({"grammars": [{**first, "lark_grammar": f"{first['lark_grammar']}\n{NO_FORCING}"}, *others]})
    names = {part.get("name") for part in others}
    unused = next(name for number in itertools.count() if (name := f"answer_{number}") not in names)
    first = {"name": unused, **first}
    start = {"lark_grammar": f"{NO_FORCING}\nstart: @{first['name']}"}
    return json.dumps({"grammars": [start, first, *others]})


def check(matcher: LLMatcher) -> None:
    """
    Raises:
        GrammarError: the matcher has failed.
    """
    if matcher.is_error():
        text = " ".join(matcher.get_error().split())
        raise GrammarError(text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}...")
