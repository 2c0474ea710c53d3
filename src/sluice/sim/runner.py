"""SimRunner: a runner that computes nothing. It says when steps end, and brings tokens of no meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.engine.clock import VirtualClock
from sluice.sim.copies import SimulatedCopies
from sluice.sim.loop import SimulatedTimes
from sluice.sim.workload import STOP_TOKEN, Segment, TokenSource
from sluice.types import BatchPlan, BatchResult, Chunk, CopyDone, TokenLogprobs

ANY_LOGPROB = TokenLogprobs(0, 0.0, ())
"""Stands for a log-probability: the scheduler only counts them."""
ANSWER_SEEDS = 1 << 63
"""Added to a request's id: seeds of answers that no prompt contains."""


class KnownAnswer:
    """The tokens that a request gets.

    Args:
        prompt_len: tokens of its prompt.
        num_tokens: of the answer.
        stops: whether the last one is a stop token, since the request may have more.
        tokens: the answer; None: tokens that occur nowhere else.
    """

    def __init__(
        self, request_id: int, prompt_len: int, num_tokens: int, *, stops: bool, tokens: TokenSource | None = None
    ) -> None:
        self.num_tokens = num_tokens
        self._prompt_len = prompt_len
        self._stop_at = num_tokens - 1 if stops else -1
        self._tokens = tokens or Segment(ANSWER_SEEDS + request_id, num_tokens)
        self._known: Sequence[int] | None = None

    def at(self, position: int) -> int:
        """Return the token at a position behind the prompt."""
        index = position - self._prompt_len
        if index == self._stop_at:
            return STOP_TOKEN
        return self._all()[index]

    def left(self, position: int) -> int:
        """Return how many of its tokens are at a position and behind it."""
        return self._prompt_len + self.num_tokens - position

    def span(self, position: int, count: int) -> Sequence[int]:
        """Return the tokens at a position and behind it; the last one of the answer is not among them."""
        index = position - self._prompt_len
        return self._all()[index : index + count]

    def _all(self) -> Sequence[int]:
        if self._known is None:
            self._known = self._tokens.tokens()
        return self._known


@dataclass(slots=True)
class SimStep:
    """A launched step."""

    plan: BatchPlan
    ends_at: float
    copies: tuple[CopyDone, ...]
    runner: SimRunner

    def wait(self) -> BatchResult:
        """Let time pass until the step is done."""
        self.runner.clock.advance_to(self.ends_at)
        return self.runner.result(self)


class SimRunner:
    """A runner of simulated steps, which end one after the other.

    Args:
        clock: the engine's; it advances when a step is waited for.
        times: says how long steps take.
        copies: makes the copies of plans.
    """

    def __init__(self, clock: VirtualClock, times: SimulatedTimes, copies: SimulatedCopies) -> None:
        self.clock = clock
        self.answers: dict[int, KnownAnswer] = {}
        """Answers by request. The caller adds those that arrive, and removes those that end."""
        self.has_drafts = False
        """Rows may have drafts."""
        self._times = times
        self._copies = copies
        self._free_at = 0.0

    def launch(self, plan: BatchPlan) -> SimStep:
        now = self.clock.now()
        self._free_at = self._times.ends_at(plan, now, self._free_at)
        copies = self._copies.begin(plan, now) if plan.copies or plan.slices else ()
        return SimStep(plan, self._free_at, copies, self)

    def result(self, step: SimStep) -> BatchResult:
        """Return what a step brings: a token for each row that samples."""
        chunks, answers = step.plan.chunks, self.answers
        drafted = self.has_drafts and any(chunk.num_drafts for chunk in chunks)
        rows = [self._verified(answers, chunk) for chunk in chunks if chunk.samples] if drafted else []
        tokens = tuple([(self._token(answers, chunk),) for chunk in chunks if chunk.samples]) if not drafted else ()
        return BatchResult(
            step.plan.step,
            tokens or tuple([brought for brought, _ in rows]),
            accepted=tuple([accepted for _, accepted in rows]),
            prompt_logprobs=tuple([(ANY_LOGPROB,) * len(chunk.targets) for chunk in chunks if chunk.targets]),
            embeddings=tuple([b"" for chunk in chunks if chunk.embeds]),
            copies=step.copies,
        )

    @staticmethod
    def _token(answers: dict[int, KnownAnswer], chunk: Chunk) -> int:
        answer = answers.get(chunk.request_id)
        return STOP_TOKEN if answer is None else answer.at(chunk.end)  # a row in flight of a request that has ended

    def _verified(self, answers: dict[int, KnownAnswer], chunk: Chunk) -> tuple[tuple[int, ...], int]:
        """Return what a row brings, and how many of its drafts are accepted: those that are the answer's tokens."""
        answer = answers.get(chunk.request_id)
        if answer is None:
            return (STOP_TOKEN,), 0
        left = answer.left(chunk.known_end)
        brought = tuple([answer.at(chunk.known_end + index) for index in range(min(chunk.num_drafts + 1, left))])
        accepted = 0
        while accepted < len(brought) - 1 and chunk.drafts[accepted] == brought[accepted]:
            accepted += 1
        return brought[: accepted + 1], accepted

    def leapt(self, ends_at: float) -> None:
        """Note that steps were done without it, up to a moment."""
        self._free_at = ends_at

    def close(self) -> None:
        """Return: nothing is open."""
