"""ConstrainedRow: the place of a slot's request in its grammar, and the mask of its next token."""

from __future__ import annotations

import logging
import threading
import time

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
        self.request_id = new.request_id
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
        self._may_force = True
        self._may_jump = sampling.logprobs is None and not sampling.has_penalties
        self._prompt_len = new.prompt_len
        self._no_stop_before = new.prompt_len + sampling.min_tokens
        self._grammar = grammar
        self._matcher: Matcher | None = None
        self._outputs = list(new.history[new.prompt_len :])
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
        try:
            matcher = self._filled()
        except GrammarError:
            if not self._may_force:
                raise
            self._begin_again()
            matcher = self._filled()
        may_stop = self.position >= self._no_stop_before
        is_accepting = matcher.is_accepting
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
        matcher = self._matcher
        assert matcher is not None, "no mask was computed"
        forced: list[int] = []
        try:
            matcher.consume((token,))
            if self._may_jump:
                forced = matcher.forced()
                matcher.consume(forced)
            self.is_complete = matcher.is_complete
        except GrammarError as error:
            if not self._may_force:
                self.position += 1
                self.problem = self._located(str(error))
                return (token,)
            self._begin_again()
            forced = []
        brought = (token, *forced)
        self._outputs += brought
        self.position += len(brought)
        self.is_late = False
        self._is_ready.clear()
        return brought

    def _filled(self) -> Matcher:
        """Compute what the grammar allows. Return the matcher."""
        if self._matcher is None:
            self._matcher = self._grammar.matcher(may_force=self._may_force)
            self._matcher.consume(self._outputs)
        self._matcher.fill(self.bits)
        return self._matcher

    def _begin_again(self) -> None:
        """Let a matcher that forces nothing follow the output from here on: the library bounds the work for all of a
        run that it looks ahead, and a long one may exceed it where each of its masks does not."""
        self._may_force = self._may_jump = False
        self._matcher = None

    def _located(self, problem: str) -> str:
        return f"the grammar cannot go on after {self.position - self._prompt_len} output tokens: {problem}"
