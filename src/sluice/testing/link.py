"""A link of an engine whose messages a test puts in, and whose outputs it reads."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.engine.messages import Message, Stats
from sluice.types import Output, TokenLogprobs


class ManualLink:
    """Keeps the messages that a test puts in until the engine receives them, and the outputs of the engine.

    It never blocks: run `engine.step()` until the engine is idle.

    >>> from sluice.engine.messages import Abort
    >>> link = ManualLink()
    >>> link.put(Abort(7))
    >>> link.receive(block=False)
    [Abort(request_id=7, reason=<FinishReason.ABORT: 'abort'>)]
    >>> link.tokens(7)
    ()
    """

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
        """Return all tokens of a request so far."""
        return tuple(token for out in self.outputs if out.request_id == request_id for token in out.token_ids)

    def logprobs(self, request_id: int) -> tuple[TokenLogprobs, ...]:
        """Return the log-probabilities of these tokens."""
        return tuple(item for out in self.outputs if out.request_id == request_id for item in out.logprobs)

    def prompt_logprobs(self, request_id: int) -> tuple[TokenLogprobs, ...]:
        """Return the log-probabilities of the prompt's tokens, without the first."""
        return tuple(item for out in self.outputs if out.request_id == request_id for item in out.prompt_logprobs)

    def embedding(self, request_id: int) -> bytes:
        """Return the embedding of a request; nothing if it has none."""
        return b"".join(out.embedding for out in self.outputs if out.request_id == request_id)

    def end(self, request_id: int) -> Output:
        """Return the last output of a request that has ended."""
        (last,) = [o for o in self.outputs if o.request_id == request_id and o.finish_reason is not None]
        return last
