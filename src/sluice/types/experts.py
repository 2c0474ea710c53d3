"""ExpertCounts: how many experts of a layer a step reads."""

from __future__ import annotations

from typing import NamedTuple


class ExpertCounts(NamedTuple):
    """The experts of a layer, of a model with mixtures of experts; 0: it has none."""

    held: int = 0
    chosen: int = 0
    """Experts that compute a token."""

    def read(self, tokens: float) -> float:
        """Return how many of a layer's experts so many tokens are expected to read, each at least once.

        Tokens are taken to choose independently, which overestimates: neighbours choose alike. The power is made of
        products, so that it has the same bits on every machine. Parts of a token count as none.
        """
        if not self.held:
            return 0.0
        rest, left, factor = 1.0, int(tokens), 1.0 - self.chosen / self.held
        while left:
            if left & 1:
                rest *= factor
            factor *= factor
            left >>= 1
        return self.held * (1.0 - rest)


DENSE = ExpertCounts()
