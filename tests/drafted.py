"""Plans made by hand for a runner, with drafts: what a scheduler does, without one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.engine.protocols import Runner
from sluice.scheduler.request import Request, Status
from sluice.testing import OracleDrafter
from sluice.types import BatchPlan, BatchResult, Chunk, ChunkSlice, NewSlot, Submit, TokenLogprobs
from tiny_models import VOCAB_SIZE
from worlds import World

Guess = Callable[[Submit, Sequence[int], int], Sequence[int]]
"""Guesses the tokens behind the outputs of a request so far, some at most."""


def no_drafts(submit: Submit, outputs: Sequence[int], at_most: int) -> Sequence[int]:
    return ()


@dataclass
class Answer:
    """What one request was brought."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: str | None = None


@dataclass
class _Row:
    submit: Submit
    slot: int
    tokens: list[int]
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    is_fresh: bool = True

    @property
    def outputs(self) -> list[int]:
        return self.tokens[len(self.submit.prompt) :]


@dataclass
class Planner:
    """Plans the steps of some requests by hand, a slot each, until all have ended.

    Pages that only rejected drafts were in go to the next request that needs one.

    Args:
        pages: of the device.
        page_size: tokens of a page.
        chunk: most tokens of a prompt in a step.
        most: drafts of a row.
        seed: of the pages' order.
        in_runner: the runner guesses, and of a guess only its length is planned.
        offloaded: requests whose chunks are slices, of one work item each.
    """

    runner: Runner
    pages: int
    page_size: int
    chunk: int = 7
    most: int = 4
    seed: int = 0
    in_runner: bool = False
    offloaded: frozenset[int] = frozenset()
    drafted: int = 0
    """Drafts so far."""
    accepted: int = 0
    """Those of them that were right."""
    steps: int = 0

    def run(self, submits: Sequence[Submit], guess: Guess = no_drafts) -> list[Answer]:
        """Return the answers."""
        free = random.Random(self.seed).sample(range(self.pages), self.pages)
        answers = [Answer() for _ in submits]
        live = [_Row(submit, slot, [*submit.prompt]) for slot, submit in enumerate(submits)]
        while live:
            chunks = [self._chunk(row, guess, free) for row in live]
            chunks.sort(key=lambda each: (each.request_id in self.offloaded, each.length > 1))
            rows = {row.slot: row for row in live}
            sliced = [chunk for chunk in chunks if chunk.request_id in self.offloaded]
            slices = tuple(ChunkSlice(chunk, (), 0, (), first=0, stop=1, total=1) for chunk in sliced)
            plan = BatchPlan(self.steps, self._new_slots(live), tuple(chunks), slices=slices)
            result = self.runner.launch(plan).wait()
            self.steps += 1
            self._check(plan, result)
            ended = self._commit(plan, result, rows, answers, free)
            live = [row for row in live if row.slot not in ended]
        return answers

    def _new_slots(self, live: Sequence[_Row]) -> tuple[NewSlot, ...]:
        fresh = [row for row in live if row.is_fresh]
        for row in fresh:
            row.is_fresh = False
        return tuple(NewSlot(row.slot, row.submit, len(row.submit.prompt), (*row.tokens,)) for row in fresh)

    def _chunk(self, row: _Row, guess: Guess, free: list[int]) -> Chunk:
        known = row.tokens[row.computed :][: self.chunk]
        end = row.computed + len(known)
        drafts: Sequence[int] = ()
        if end == len(row.tokens) and row.outputs:
            left = row.submit.sampling.max_tokens - len(row.outputs) - 1
            drafts = tuple(guess(row.submit, row.outputs, min(self.most, left)))
        is_offloaded = row.submit.request_id in self.offloaded
        needed = 0 if is_offloaded else -(-(end + len(drafts)) // self.page_size) - len(row.pages)
        new_pages = tuple(free.pop() for _ in range(needed))
        row.pages += new_pages
        self.drafted += len(drafts)
        return Chunk(
            row.submit.request_id,
            row.slot,
            row.computed,
            len(known) + len(drafts),
            (*known,) if self.in_runner else (*known, *drafts),
            new_pages,
            samples=end == len(row.tokens),
            num_drafts=len(drafts),
        )

    @staticmethod
    def _check(plan: BatchPlan, result: BatchResult) -> None:
        sampling = [chunk for chunk in plan.chunks if chunk.samples]
        assert len(result.token_ids) == len(sampling)
        assert len(result.logprobs) in (0, len(sampling))
        has_drafts = any(chunk.num_drafts for chunk in sampling)
        assert len(result.accepted) == (len(sampling) if has_drafts else 0)
        for chunk, tokens, accepted in zip(sampling, result.token_ids, result.accepted, strict=False):
            assert 0 <= accepted <= min(chunk.num_drafts, max(0, len(tokens) - 1))
            assert not chunk.drafts or tokens[:accepted] == chunk.drafts[:accepted]

    def _commit(
        self,
        plan: BatchPlan,
        result: BatchResult,
        rows: dict[int, _Row],
        answers: list[Answer],
        free: list[int],
    ) -> set[int]:
        """Return the slots that have ended."""
        errors = {error.row: error.message for error in result.errors}
        token_ids, logprobs, accepted = iter(result.token_ids), iter(result.logprobs), iter(result.accepted)
        ended = set()
        for index, chunk in enumerate(plan.chunks):
            row, answer = rows[chunk.slot], answers[chunk.slot]
            row.computed = chunk.known_end
            if not chunk.samples:
                continue
            tokens, count = next(token_ids), next(accepted, 0)
            self.accepted += count
            row.computed += count if tokens else -1
            # A row without tokens, whose mask was late, has a log-probability that counts for nothing.
            is_over = self._append(row, answer, tokens, next(logprobs, ())[: len(tokens)])
            if index in errors:
                answer.error = errors[index]
            held = -(-(row.computed + 1) // self.page_size)
            free[:0] = row.pages[held:]
            del row.pages[held:]
            if is_over or index in errors or index in result.complete:
                free[:0] = row.pages
                ended.add(row.slot)
        return ended

    @staticmethod
    def _append(row: _Row, answer: Answer, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> bool:
        """Return whether the request ends with one of the tokens."""
        params = row.submit.sampling
        assert len(logprobs) == (0 if params.logprobs is None else len(tokens))
        for at, token in enumerate(tokens):
            row.tokens.append(token)
            answer.tokens.append(token)
            answer.logprobs += logprobs[at : at + 1]
            if token in params.stop_token_ids or len(row.outputs) == params.max_tokens:
                return True
        return False


def guesser(answers: Sequence[Answer], how: str, vocab_size: int, seed: int = 0) -> Guess:
    """Return what guesses the outputs of requests: "right", "wrong", or "partly" right, some and none at times."""
    draws = random.Random(seed)

    def guess(submit: Submit, outputs: Sequence[int], at_most: int) -> Sequence[int]:
        known = answers[submit.request_id].tokens[len(outputs) : len(outputs) + at_most]
        right = [*known, *(draws.randrange(vocab_size) for _ in range(at_most - len(known)))]
        if how == "right":
            return right
        if how == "wrong":
            return [(token + 1) % vocab_size for token in right]
        right = right[: draws.randint(0, at_most)]
        return [token if draws.random() < 0.7 else draws.randrange(vocab_size) for token in right]

    return guess


def plain(answers: Sequence[Answer]) -> list[object]:
    """Return answers to compare: sums in another order, or of several ranks, differ in their last bits."""
    return [
        (
            each.tokens,
            each.error,
            [(one.token_id, round(one.logprob, 9), [token for token, _ in one.top]) for one in each.logprobs],
        )
        for each in answers
    ]


class KnownDrafter(OracleDrafter):
    """Guesses the answers of requests: none at times, some of them wrongly, and nothing for one request in four.

    Args:
        answers: the outputs of requests, by id.
        right: share of the guesses that are right.
    """

    def __init__(self, answers: Mapping[int, Sequence[int]], right: float = 0.8) -> None:
        super().__init__(vocab_size=VOCAB_SIZE)
        self.answers = answers
        self._share_right = right
        self._draws = random.Random(0)
        self.offloaded = 0
        """Rows of offloaded requests that were guessed for."""

    def wants(self, request: Request) -> bool:
        return request.id % 4 != 3

    def propose(self, request: Request, at_most: int) -> Sequence[int]:
        start, count = request.num_outputs, self._draws.randint(0, at_most)
        known = self.answers[request.id][start : start + count]
        guesses = [*known, *range(count - len(known))]
        self.offloaded += request.status is Status.OFFLOADED and count > 0
        return [token if self._draws.random() < self._share_right else (token + 1) % VOCAB_SIZE for token in guesses]


@dataclass(frozen=True)
class DraftedWorld(World):
    """A world whose drafter knows the answers."""

    known: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def drafter(self) -> KnownDrafter:
        return KnownDrafter(self.known, self.drafts_right)
