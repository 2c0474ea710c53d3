"""Runs the tokenizer in threads of its own, on texts of bounded length, for as long as the client is there.

The tokenizer releases the GIL but takes up to 450 bytes of memory for a byte of text, so what it is given must be
bounded, and so must the number of texts at a time. Three groups of threads keep one kind of call from delaying another:
short texts of calls that generate, long ones, and `/tokenize` and `/detokenize`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sluice.text.tokenizer import Tokenizer

T = TypeVar("T")
Check = Callable[[], None]
"""Raises `ClientLeft` once the client has left."""

THREADED_TEXT = 512
"""Characters from which a text is tokenized in a thread; below, it takes about 0.2 ms, as long as the change of
threads."""
LONG_TEXT = 1 << 16
"""Characters from which a text is long: it takes 20 ms or more."""
PIECE = 1 << 15
"""Characters that are encoded together when tokens are only counted."""
UNCOUNTED = 1 << 18
"""Bytes of a text that is encoded without being counted first."""
MARGIN, MARGIN_TOKENS = 1.5, 1000
"""A text that is cut into pieces may have more tokens than the whole, but not by this factor and number."""


class ClientLeft(Exception):
    """Work was given up because the client has left."""


class TooManyTokens(ValueError):
    """A text certainly has more than the accepted number of tokens."""


class TokenizerThreads:
    """The threads. Work waits for one of its group; work whose client leaves meanwhile is dropped."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(2, "tokenize-short")
        self._long = ThreadPoolExecutor(1, "tokenize-long")
        self._apart = ThreadPoolExecutor(1, "tokenize-apart")

    async def for_generation(self, characters: int, work: Callable[[Check], T]) -> T:
        """Return `work(check)` for a call that generates, called in a thread unless its texts are very short.

        Args:
            characters: of the texts. Long ones have a thread of their own, so that short ones do not wait for them.
            work: calls `check` now and then, which raises if this coroutine was cancelled.
        """
        if characters < THREADED_TEXT:
            return work(_is_here)
        return await _run(self._short if characters < LONG_TEXT else self._long, work)

    async def apart(self, work: Callable[[Check], T]) -> T:
        """Return `work(check)` for a call that generates nothing, as `for_generation` does."""
        return await _run(self._apart, work)


def _is_here() -> None:
    """A check for work that is over before a client can leave."""


async def _run(pool: ThreadPoolExecutor, work: Callable[[Check], T]) -> T:
    has_left = False

    def check() -> None:
        if has_left:
            raise ClientLeft

    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work, check)
    except asyncio.CancelledError:
        has_left = True
        raise


def bounded_ids(
    tokenizer: Tokenizer, text: str, most: int, check: Check, *, add_special_tokens: bool = True
) -> list[int]:
    """Return the ids of a text, as `Tokenizer.encode` does, which takes memory and time in proportion to `most`.

    The ids may be a few more than `most`. A text of many more is counted in pieces until that is certain.

    Args:
        most: tokens that are accepted.
        check: called between pieces.

    Raises:
        TooManyTokens: the text has more than `most`.
        TokenizerError: as `Tokenizer.encode`.
    """
    check()
    if len(text) > UNCOUNTED or len(text.encode(errors="replace")) > UNCOUNTED:
        left = MARGIN * most + MARGIN_TOKENS
        for start in range(0, len(text), PIECE):
            left -= len(tokenizer.encode(text[start : start + PIECE], add_special_tokens=False))
            check()
            if left < 0:
                raise TooManyTokens
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)
