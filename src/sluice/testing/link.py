"""A link of an engine that a test works by hand."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.engine.messages import Message, Stats
from sluice.types import Output, TokenLogprobs


class ManualLink:
    """A link worked by hand: put messages in, look at what came out. Never blocks."""

    def __init__(self) -> None:
        self._inbox: list[Message] = []
        self.outputs: list[Output] = []
        self.stats: list[Stats] = []

    def put(self, *messages: Message) -> None:
        self._inbox += messages

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        messages, self._inbox = self._inbox, []
        return messages

    def post(self, message: Message) -> None:
        self._inbox.append(message)

    def send(self, outputs: Sequence[Output]) -> None:
        self.outputs += outputs

    def answer(self, stats: Stats) -> None:
        self.stats.append(stats)

    def tokens(self, request_id: int) -> tuple[int, ...]:
        """All tokens a request was given so far."""
        return tuple(token for out in self.outputs if out.request_id == request_id for token in out.token_ids)

    def logprobs(self, request_id: int) -> tuple[TokenLogprobs, ...]:
        """What was told of these tokens."""
        return tuple(item for out in self.outputs if out.request_id == request_id for item in out.logprobs)

    def prompt_logprobs(self, request_id: int) -> tuple[TokenLogprobs, ...]:
        """What was told of its prompt's tokens, the first left out."""
        return tuple(item for out in self.outputs if out.request_id == request_id for item in out.prompt_logprobs)

    def end(self, request_id: int) -> Output:
        """The last output of an ended request."""
        (last,) = [o for o in self.outputs if o.request_id == request_id and o.finish_reason is not None]
        return last
