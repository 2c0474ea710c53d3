"""What an answer took: when its pieces came, and how fast its tokens did."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.cli.chat.answers import Usage

TOGETHER_SECONDS = 0.001
"""Pieces that come within less of each other came together."""


@dataclass(slots=True)
class Pace:
    """When the pieces of one answer came, in seconds of any clock."""

    start: float
    """When the question was sent."""
    first: float | None = None
    """When the first piece came; None: none has yet."""
    last: float = 0.0
    pieces: int = 0
    in_first_burst: int = 0
    """Pieces that came together with the first one. What they took is the time to the first token."""

    def came(self, now: float) -> None:
        """Note that a piece with text came."""
        if self.first is None:
            self.first, self.in_first_burst = now, 1
        elif self.in_first_burst == self.pieces and now - self.last < TOGETHER_SECONDS:
            self.in_first_burst += 1
        self.pieces += 1
        self.last = now

    def timing(self, usage: Usage) -> Timing:
        """Return what the answer took. A piece has come, and `usage` says how many tokens all pieces have."""
        assert self.first is not None, "no piece has come"
        later = usage.completion_tokens * (self.pieces - self.in_first_burst) / self.pieces
        return Timing(usage, self.first - self.start, later, self.last - self.first)


@dataclass(frozen=True, slots=True)
class Timing:
    """What one answer took."""

    usage: Usage
    ttft: float
    """Seconds until its first text."""
    later_tokens: float
    """Tokens behind those that came with the first text. A piece may hold several: then a share of all of them."""
    seconds: float
    """From the first text to the last."""

    @property
    def rate(self) -> float | None:
        """Tokens a second behind the first ones; None: there are too few to tell."""
        return self.later_tokens / self.seconds if self.later_tokens and self.seconds > 0 else None

    def __str__(self) -> str:
        cached = f" ({self.usage.cached_tokens} cached)" if self.usage.cached_tokens else ""
        parts = [f"{self.usage.completion_tokens} tokens"]
        if self.rate is not None:
            parts.append(f"{self.rate:.1f} tokens/s")
        return ", ".join([*parts, f"first after {self.ttft:.2f} s", f"prompt {self.usage.prompt_tokens}{cached}"])
