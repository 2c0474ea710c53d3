"""How many tokens a prompt or an answer has: a number, or a distribution of numbers."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from sluice.config import ConfigError

ACCEPTED = "a number of tokens, uniform:LOWEST:HIGHEST or lognormal:MEDIAN:SIGMA"


class Lengths(Protocol):
    """Draws numbers of tokens, each at least 1."""

    def draw(self, rng: random.Random) -> int: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    tokens: int

    def draw(self, rng: random.Random) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every number from `lowest` to `highest`, both included, is as likely."""

    lowest: int
    highest: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.lowest, self.highest)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Half of the numbers lie below `median`; `sigma` is the deviation of their natural logarithm.

    With sigma 1 one in six is more than e times the median: what prompts and answers of people look like.
    """

    median: float
    sigma: float

    def draw(self, rng: random.Random) -> int:
        return max(1, round(rng.lognormvariate(math.log(self.median), self.sigma)))


def parse_lengths(text: str, flag: str) -> Lengths:
    """
    Args:
        text: "64", "uniform:16:512" or "lognormal:200:0.8".
        flag: whose value it is, for the error.

    Raises:
        ConfigError: anything else.
    """
    kind, *numbers = text.split(":")
    try:
        match kind, numbers:
            case ("uniform", [lowest, highest]) if 1 <= int(lowest) <= int(highest):
                return Uniform(int(lowest), int(highest))
            case ("lognormal", [median, sigma]) if _finite(median) >= 1 and _finite(sigma) >= 0:
                return LogNormal(float(median), float(sigma))
            case (tokens, []) if int(tokens) >= 1:
                return Fixed(int(tokens))
    except ValueError:
        pass
    raise ConfigError(f"{flag} must be {ACCEPTED}, each at least 1, got {text!r}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
