"""A conversation: its messages, how the next one is answered, and what the answers took."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from sluice.cli.chat.answers import Messages, Source, Usage
from sluice.cli.chat.screen import Screen
from sluice.cli.chat.stopping import Stopper
from sluice.cli.chat.timing import Pace, Timing

Clock = Callable[[], float]


@dataclass(slots=True)
class Conversation:
    """The messages so far, with a source that answers them."""

    source: Source
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
        pace, reason = Pace(self.clock()), None
        usage: Usage | None = None
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
