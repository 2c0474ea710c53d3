"""A request that a client has sent, and what was delivered of it: enough to continue it in another engine."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Self

from sluice.types import CachedTokens, Output, Submit


class OutputOrderError(RuntimeError):
    """An output repeats tokens that were delivered, or skips some: a message was lost."""


@dataclass(slots=True, eq=False)
class Delivery:
    """What was delivered of a request, by the engines of this client or, before them, by another replica."""

    request: Submit
    output_ids: array[int] = field(default_factory=lambda: array("i"))
    prompt_logprobs_sent: int = 0
    """Log-probabilities of its prompt that were delivered."""
    has_output: bool = False
    cached: CachedTokens | None = None
    """Cached tokens as the first engine reported them: the cache of a later engine does not change the client's
    usage."""
    times_sent: int = 0

    @classmethod
    def of(cls, request: Submit) -> Self:
        """Begin with what a request says was delivered of it."""
        return cls(request, array("i", request.output_ids), request.prompt_logprobs_sent)

    def message(self) -> Submit:
        """Return the message with which an engine starts the request: the request itself; or continues it."""
        if not self.times_sent:
            return self.request
        return replace(
            self.request,
            output_ids=tuple(self.output_ids),
            prompt_logprobs_sent=self.prompt_logprobs_sent,
            is_resumed=True,
        )

    def add(self, output: Output) -> Output:
        """Keep an output, and return it with the cached tokens that were reported first.

        Raises:
            OutputOrderError: tokens before it are missing, or it repeats some.
        """
        if output.start != len(self.output_ids):
            raise OutputOrderError(
                f"request {output.request_id}: an output starts at token {output.start}, but"
                f" {len(self.output_ids)} tokens were delivered"
            )
        self.output_ids.extend(output.token_ids)
        self.prompt_logprobs_sent += len(output.prompt_logprobs)
        if self.cached is None:
            self.cached = output.cached
        total, host, disk = self.cached
        return output._replace(num_cached_tokens=total, num_host_tokens=host, num_disk_tokens=disk)
