"""Runs: the requests of an `LLM`, and the engine's link to them in the same thread."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sluice.engine.messages import Abort, Message, Stats
from sluice.llm.outputs import Embedding, GenerationError, Result, Sample
from sluice.text.text_stream import Piece, TextStream
from sluice.text.vectors import unit_vector
from sluice.types import FinishReason, Output, Submit


@dataclass(slots=True, eq=False)
class LocalRequest:
    """A request and its outputs so far."""

    submit: Submit
    text: TextStream
    pieces: deque[Piece] = field(default_factory=deque)
    error: str | None = None
    embedding: bytes = b""
    """Embedding, if the request asks for one."""

    @property
    def is_done(self) -> bool:
        return self.text.finish_reason is not None

    def add(self, output: Output) -> None:
        if self.is_done:
            return
        if output.finish_reason is not None and output.finish_reason.is_failure:
            self.error = output.error or "the request was aborted"
        self.embedding = output.embedding
        self.pieces.extend(self.text.push(output))

    def raise_error(self) -> None:
        if self.error is not None:
            raise GenerationError(self.error)

    def sample(self) -> Sample:
        self.raise_error()
        assert self.text.finish_reason is not None, f"{self.submit.request_id} is not done"
        logprobs = tuple(piece.logprobs for piece in self.pieces if piece.logprobs is not None)
        return Sample(
            token_ids=tuple(piece.token_id for piece in self.pieces if piece.token_id is not None),
            text="".join(piece.text for piece in self.pieces),
            finish_reason=self.text.finish_reason.value,
            logprobs=None if self.submit.sampling.logprobs is None else logprobs,
        )


def result_of(runs: Sequence[LocalRequest]) -> Result:
    """Return the result of one prompt from the runs of its samples."""
    first, *_ = runs
    logprobs = None if first.submit.sampling.prompt_logprobs is None else tuple(first.text.prompt_logprobs)
    samples, (total, host, disk) = tuple(run.sample() for run in runs), first.text.cached
    return Result(first.submit.prompt, total, samples, logprobs, host, disk)


def embedding_of(run: LocalRequest, dimensions: int | None) -> Embedding:
    """Return the result of a run that embeds."""
    run.raise_error()
    return Embedding(run.submit.prompt, unit_vector(run.embedding, dimensions), run.text.cached.total)


class LocalLink:
    """The engine's link to runs in the same thread."""

    def __init__(self) -> None:
        self.runs: dict[int, LocalRequest] = {}
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def submit(self, *runs: LocalRequest) -> None:
        for run in runs:
            self.runs[run.submit.request_id] = run
            self.inbox.put(run.submit)

    def forget(self, *runs: LocalRequest) -> None:
        for run in runs:
            if self.runs.pop(run.submit.request_id, None) is not None and not run.is_done:
                self.inbox.put(Abort(run.submit.request_id))

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        messages = []
        with suppress(queue.Empty):
            if block:  # for a copy with the disk
                messages.append(self.inbox.get(timeout=timeout))
            while True:
                messages.append(self.inbox.get_nowait())
        return messages

    def post(self, message: Message) -> None:
        self.inbox.put(message)

    def send(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            run = self.runs.get(output.request_id)
            if run is None:
                continue
            run.add(output)
            if run.is_done and output.finish_reason is None:
                self.inbox.put(Abort(output.request_id, FinishReason.STOP))  # it ended with a stop string

    def answer(self, stats: Stats) -> None:
        raise AssertionError(f"unexpected answer {stats}")
