"""Masks of the samples behind the drafts of a row with a grammar.

A copy of the row's matcher follows the drafts on another thread while the step is computed, and is dropped after it.
Drafts end where the grammar forbids one, or the output ends: no sample behind counts, and none has a mask. Where the
grammar forces tokens behind a draft, only they are allowed in their places, since without drafts they would not be
sampled at all.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from sluice.runner.constrained_row import ConstrainedRow
from sluice.runner.grammar.guidance import Bits, GrammarError

LOGGER = logging.getLogger("sluice.engine")


class DraftMasks:
    """The masks behind the drafts of one row in one step.

    Args:
        row: its mask is there, or is being computed.
        drafts: guesses of its next tokens.
        patience: seconds after which the row's own mask is not waited for.
    """

    def __init__(self, row: ConstrainedRow, drafts: Sequence[int], patience: float) -> None:
        self.found: list[Bits] = []
        """Masks behind the first drafts, as far as they are computed."""
        self._row = row
        self._position = row.position
        self._drafts = drafts
        self._patience = patience
        self._is_done = threading.Event()

    def is_done(self, seconds: float) -> bool:
        """Return whether no mask will follow, after waiting for so long at most."""
        return self._is_done.is_set() or (seconds > 0 and self._is_done.wait(seconds))

    def compute(self) -> None:
        """Compute the masks. Called on another thread."""
        try:
            if self._row.is_ready(self._patience):
                self._follow()
        except GrammarError:
            return  # the row itself meets it if its output gets there, and says so
        except Exception:
            LOGGER.exception("the masks behind drafts could not be computed")
        finally:
            self._is_done.set()

    def _follow(self) -> None:
        row, matcher = self._row, self._row.fork(self._position)
        if matcher is None:
            return
        bits, run = row.bits.copy(), deque[int]()
        for position, draft in enumerate(self._drafts, start=self._position + 1):
            if draft in row.stop_ids or not bits[draft // 32] >> draft % 32 & 1:
                return
            if run:
                run.popleft()
            else:
                matcher.consume((draft,))
                run.extend(row.forced_by(matcher))
                matcher.consume(tuple(run))
                if matcher.is_complete:
                    return
            if run:
                bits = only(run[0], len(bits))
            else:
                bits = np.zeros_like(bits)
                row.fill(matcher, bits, position)
            self.found.append(bits)


def only(token: int, words: int) -> Bits:
    """Return a mask that allows one token."""
    bits: Bits = np.zeros(words, dtype=np.int32)
    bits.view(np.uint32)[token // 32] = 1 << token % 32
    return bits
