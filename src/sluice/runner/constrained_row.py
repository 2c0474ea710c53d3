"""ConstrainedRow: the place of a slot's request in its grammar, and the mask of its next token."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import numpy as np

from sluice.grammar.base import Bits, CompiledGrammar, GrammarError, Matcher
from sluice.types import NewSlot

SLOW_SECONDS = 0.005
"""Time of a mask after which the row's next one is computed apart from those of others."""
LOGGER = logging.getLogger("sluice.engine")


class ConstrainedRow:
    """Follows the output of one request, from its admission until it leaves its slot.

    Its mask is computed on another thread: from `start` until `is_ready`, that thread alone uses it.

    Args:
        new: the request in its slot. Its history holds what it has generated.
        grammar: of the request.
        vocab_size: of the model.
    """

    def __init__(self, new: NewSlot, grammar: CompiledGrammar, vocab_size: int) -> None:
        sampling = new.sampling
        self.position = len(new.history)
        """Of the token that is sampled next."""
        self.stop_ids = frozenset(token for token in sampling.stop_token_ids if token < vocab_size)
        self.is_slow = False
        """Its last mask took long."""
        self.is_late = False
        """Its present mask was not there when a step needed it."""
        self.problem: str | None = None
        """Why it cannot go on."""
        self.is_complete = False
        """It ends here: nothing may follow."""
        self.bits: Bits = np.zeros(-(-vocab_size // 32), dtype=np.int32)
        self._may_jump = sampling.logprobs is None and not sampling.has_penalties
        self._prompt_len = new.prompt_len
        self._no_stop_before = new.prompt_len + sampling.min_tokens
        self._grammar = grammar
        self._matcher: Matcher | None = None
        self._to_consume: Sequence[int] = new.history[new.prompt_len :]
        self._is_ready = threading.Event()

    def is_ready(self, seconds: float) -> bool:
        """Return whether the mask is there, after waiting for so long at most."""
        return self._is_ready.is_set() or (seconds > 0 and self._is_ready.wait(seconds))

    def compute(self) -> None:
        """Compute the mask of the next token. Called on another thread."""
        began = time.monotonic()
        try:
            self._compute()
        except GrammarError as error:
            self.problem = self._located(str(error))
        except Exception as error:
            LOGGER.exception("a mask could not be computed")
            self.problem = self._located(f"{type(error).__name__}: {error}")
        self.is_slow = time.monotonic() - began > SLOW_SECONDS
        self._is_ready.set()

    def _compute(self) -> None:
        if self._matcher is None:
            self._matcher = self._grammar.matcher()
            self._matcher.consume(self._to_consume)
            self._to_consume = ()
        self._matcher.fill(self.bits)
        may_stop = self.position >= self._no_stop_before
        is_accepting = self._matcher.is_accepting
        for token in self.stop_ids:
            bit = np.int32(np.uint32(1 << token % 32).view(np.int32))
            if not may_stop:
                self.bits[token // 32] &= ~bit
            elif is_accepting:
                self.bits[token // 32] |= bit
        if not self.bits.any():
            self.is_complete = is_accepting
            if not is_accepting:
                self.problem = self._located("no token may follow")

    def advance(self, token: int) -> tuple[int, ...]:
        """Go on by a sampled token. Return the tokens to add to the output: it, and those that must follow it."""
        if token in self.stop_ids:
            return (token,)  # the request ends with it
        assert self._matcher is not None, "no mask was computed"
        brought: tuple[int, ...] = (token,)
        try:
            self._matcher.consume(brought)
            if self._may_jump:
                forced = self._matcher.forced()
                self._matcher.consume(forced)
                brought += tuple(forced)
            self.is_complete = self._matcher.is_complete
        except GrammarError as error:
            self.position += 1
            self.problem = self._located(str(error))
        else:
            self.position += len(brought)
            self.is_late = False
            self._is_ready.clear()
        return brought

    def _located(self, problem: str) -> str:
        return f"the grammar cannot go on after {self.position - self._prompt_len} output tokens: {problem}"
