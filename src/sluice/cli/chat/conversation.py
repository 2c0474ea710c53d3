"""A conversation: its messages, how the next one is answered, and what the answers took."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from sluice.cli.chat.answers import AnswerSource, AnswerUsage, Messages
from sluice.cli.chat.screen import Screen
from sluice.cli.chat.stopping import Stopper

Clock = Callable[[], float]

TOGETHER_SECONDS = 0.001
"""Pieces that come within less of each other came together."""


@dataclass(slots=True)
class ChatHistory:
    """The messages so far, with a source that answers them."""

    source: AnswerSource
    screen: Screen
    system: str = ""
    """The system prompt; empty: none."""
    clock: Clock = time.monotonic
    turns: list[dict[str, str]] = field(default_factory=list)
    """Messages of the user and of the model, in turns."""
    timings: list[Timing] = field(default_factory=list)

    @property
    def messages(self) -> Messages:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def clear(self) -> None:
        """Forget all messages but the system prompt."""
        self.turns.clear()

    def send(self, text: str, stopper: Stopper) -> str | None:
        """Send a message and show the answer as it comes.

        What was shown of an answer that the user stopped, or that broke off, stays in the conversation. A message
        without any answer does not.

        Returns:
            How the answer ended; None: the source does not say.

        Raises:
            AnswerError: there is no answer, or only a part of one.
        """
        self.turns.append({"role": "user", "content": text})
        answer: list[str] = []
        try:
            return self._receive(answer, stopper)
        finally:
            if answer:
                self.turns.append({"role": "assistant", "content": "".join(answer)})
            else:
                self.turns.pop()

    def _receive(self, answer: list[str], stopper: Stopper) -> str | None:
        pace, reason = AnswerTimes(self.clock()), None
        usage: AnswerUsage | None = None
        try:
            with stopper.watching(), closing(self.source.answer(self.messages, stopper)) as parts:
                for part in parts:
                    if part.text or part.reasoning:
                        pace.came(self.clock())
                    if part.reasoning:
                        self.screen.think(part.reasoning)
                    if part.text:
                        answer.append(part.text)
                        self.screen.write(part.text)
                    usage, reason = part.usage or usage, part.finish_reason or reason
        finally:
            if pace.first is not None:
                self.screen.end()
        if usage is not None and pace.first is not None:
            self.timings.append(pace.timing(usage))
            self.screen.note(f"[{self.timings[-1]}]")
        return reason

    def stats(self) -> str:
        """Return what the answers took so far, as lines."""
        lines = [f"model: {self.source.model}, {self.source.where}", f"messages: {len(self.messages)}"]
        if not self.timings:
            return "\n".join([*lines, "no answer yet"])
        used = [each.usage for each in self.timings]
        written = sum(each.completion_tokens for each in used)
        seconds = sum(each.seconds for each in self.timings if each.rate is not None)
        later = sum(each.later_tokens for each in self.timings if each.rate is not None)
        rate = f", {later / seconds:.1f} tokens/s" if seconds else ""
        read, cached = sum(each.prompt_tokens for each in used), sum(each.cached_tokens for each in used)
        slowest = max(each.ttft for each in self.timings)
        return "\n".join(
            [
                *lines,
                f"answers: {len(used)} with {written} tokens{rate}",
                f"prompts: {read} tokens, {cached} of them cached; the slowest first token took {slowest:.2f} s",
                f"last answer: {self.timings[-1]}",
            ]
        )


@dataclass(slots=True)
class AnswerTimes:
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

    def timing(self, usage: AnswerUsage) -> Timing:
        """Return what the answer took. A piece has come, and `usage` says how many tokens all pieces have."""
        assert self.first is not None, "no piece has come"
        later = usage.completion_tokens * (self.pieces - self.in_first_burst) / self.pieces
        return Timing(usage, self.first - self.start, later, self.last - self.first)


@dataclass(frozen=True, slots=True)
class Timing:
    """What one answer took."""

    usage: AnswerUsage
    ttft: float
    """Seconds until its first text."""
    later_tokens: float
    """Tokens behind those that came with the first text. A piece may hold several: then a share of all of them."""
    seconds: float
    """Seconds from the first text to the last."""

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
