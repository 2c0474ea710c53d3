"""ConstrainedRow: the place of a slot's request in its grammar, and the mask of its next token."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import numpy as np

from sluice.runner.grammar.base import CompiledGrammar
from sluice.runner.grammar.guidance import Bits, GrammarError, GuidanceMatcher
from sluice.types import NewSlot

SLOW_SECONDS = 0.005
"""Time of a mask after which the row's next one is computed separately from those of others."""
WITHOUT_DRAFTS = 64
"""Tokens for which a row follows no drafts after their masks were late."""
LOGGER = logging.getLogger("sluice.engine")


class ConstrainedRow:
    """Follows the output of one request, from its admission until it leaves its slot.

    Its mask is computed on another thread: from `start` until `is_ready`, that thread alone uses it. A copy of its
    matcher may be taken on any thread (`fork`).

    Args:
        new: the request in its slot. Its history holds what it has generated.
        grammar: of the request.
        vocab_size: of the model.
    """

    def __init__(self, new: NewSlot, grammar: CompiledGrammar, vocab_size: int) -> None:
        sampling = new.sampling
        self.request_id = new.request_id
        self.position = len(new.history)
        """Position of the token that is sampled next."""
        self.stop_ids = frozenset(token for token in sampling.stop_token_ids if token < vocab_size)
        self.is_slow = False
        """Whether the last mask took long."""
        self.is_late = False
        """Whether the present mask was not there when a step needed it."""
        self.problem: str | None = None
        """Why it cannot continue."""
        self.is_complete = False
        """It ends here: nothing may follow."""
        self.bits: Bits = np.zeros(-(-vocab_size // 32), dtype=np.int32)
        self._no_drafts_before = 0
        self._may_force = True
        self._may_jump = sampling.logprobs is None and not sampling.has_penalties
        self._prompt_len = new.prompt_len
        self._no_stop_before = new.prompt_len + sampling.min_tokens
        self._grammar = grammar
        self._matcher: GuidanceMatcher | None = None
        self._outputs = list(new.history[new.prompt_len :])
        self._is_ready = threading.Event()
        self._lock = threading.Lock()
        """Held to move the matcher, or to copy it."""

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
        self._add_stops(matcher, self.bits, self.position)
        if not self.bits.any():
            self.is_complete = matcher.is_accepting
            if not self.is_complete:
                self.problem = self._located("no token may follow")

    def fork(self, position: int) -> GuidanceMatcher | None:
        """Return a copy of the matcher, once the mask is there; None if there is none that allows a token, or the row
        has advanced from a position."""
        with self._lock:
            if self.position != position or self.problem is not None or self.is_complete or self._matcher is None:
                return None
            return self._matcher.copy()

    def fill(self, matcher: GuidanceMatcher, bits: Bits, position: int) -> None:
        """Write which tokens may be sampled at a position, which a matcher has reached.

        Raises:
            GrammarError: a limit was reached.
        """
        matcher.fill(bits)
        self._add_stops(matcher, bits, position)

    @property
    def follows_drafts(self) -> bool:
        """Whether masks behind drafts are worth computing: they were in time lately, as its own are."""
        return not (self.is_slow or self.is_late) and self.position >= self._no_drafts_before

    def leave_drafts(self) -> None:
        """Follow no drafts for a while: their masks were not in time, and a step has waited for them."""
        self._no_drafts_before = self.position + WITHOUT_DRAFTS

    def forced_by(self, matcher: GuidanceMatcher) -> Sequence[int]:
        """Return the tokens that come with the one which a matcher has consumed.

        Raises:
            GrammarError: a limit was reached.
        """
        return matcher.forced() if self._may_jump else ()

    def advance(self, sampled: Sequence[int]) -> tuple[int, ...]:
        """Advance by sampled tokens. Return the tokens to add to the output: them, and those that must follow the last.

        Of several, each was sampled as this row would have been after those before it. There are fewer if the row
        cannot continue after one of them.
        """
        brought: list[int] = []
        with self._lock:
            while len(brought) < len(sampled) and not (self.is_complete or self.problem):
                token = sampled[len(brought)]
                brought += (token,) if token in self.stop_ids else self._gone_on(token)
                if token in self.stop_ids:
                    return tuple(brought)  # the request ends with it
            self.is_late = False
            self._is_ready.clear()
        if self.problem is not None:
            self._is_ready.set()  # it is met again, and said, in the next step
        return tuple(brought)

    def _gone_on(self, token: int) -> tuple[int, ...]:
        """Advance by a sampled token. Return it and those that must follow it, or nothing if it has a problem."""
        forced: Sequence[int] = ()
        try:
            matcher = self._followed()
            matcher.consume((token,))
            forced = self.forced_by(matcher)
            matcher.consume(forced)
            self.is_complete = matcher.is_complete
        except GrammarError as error:
            if not self._may_force:
                self.problem = self._located(str(error), after=1)
                return ()
            self._begin_again()
            forced = ()
        brought = (token, *forced)
        self._outputs += brought
        self.position += len(brought)
        return brought

    def _add_stops(self, matcher: GuidanceMatcher, bits: Bits, position: int) -> None:
        """Let the request's stop tokens be sampled where the output may end, and only there."""
        may_stop = position >= self._no_stop_before
        is_accepting = matcher.is_accepting
        for token in self.stop_ids:
            bit = np.int32(np.uint32(1 << token % 32).view(np.int32))
            if not may_stop:
                bits[token // 32] &= ~bit
            elif is_accepting:
                bits[token // 32] |= bit

    def _filled(self) -> GuidanceMatcher:
        """Compute what the grammar allows. Return the matcher."""
        matcher = self._followed()
        matcher.fill(self.bits)
        return matcher

    def _followed(self) -> GuidanceMatcher:
        """Return the matcher, where the output is."""
        if self._matcher is None:
            self._matcher = self._grammar.matcher(may_force=self._may_force)
            self._matcher.consume(self._outputs)
        return self._matcher

    def _begin_again(self) -> None:
        """Let a matcher that forces nothing follow the output from here on: the library bounds the work for all of a
        run that it looks ahead, and a long one may exceed it where each of its masks does not."""
        self._may_force = self._may_jump = False
        self._matcher = None

    def _located(self, problem: str, after: int = 0) -> str:
        """Say what keeps it from continuing, after some more tokens than it has."""
        count = self.position + after - self._prompt_len
        return f"the grammar cannot go on after {count} output tokens: {problem}"
