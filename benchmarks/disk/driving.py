"""Drives an engine in this process step by step, and notes when its tokens come."""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sluice.assembly.engine import build_engine
from sluice.assembly.info import EngineInfo
from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Message, Stats, Submit
from sluice.types import Output, SamplingParams

Prompt = tuple[int, ...]


def prompt(length: int, seed: int) -> Prompt:
    """Return token ids of any vocabulary; prompts of two seeds differ from the start."""
    rng = random.Random(seed)
    return tuple(rng.randrange(10, 500) for _ in range(length))


@dataclass(slots=True)
class Request:
    """The tokens of a request."""

    sent: float
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Time of each token."""
    end: Output | None = None

    @property
    def ttft(self) -> float:
        return self.times[0] - self.sent


class DrivenLink:
    """Takes messages from the caller and the disk's thread."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.requests: dict[int, Request] = {}

    def post(self, message: Message) -> None:
        self._inbox.put(message)

    def submit(self, message: Submit) -> Request:
        request = self.requests[message.request_id] = Request(time.perf_counter())
        self.post(message)
        return request

    def receive(self, *, block: bool, timeout: float | None = None) -> Sequence[Message]:
        messages = []
        if block and self._inbox.empty():
            messages.append(self._inbox.get(timeout=timeout))
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages

    def send(self, outputs: Sequence[Output]) -> None:
        now = time.perf_counter()
        for output in outputs:
            request = self.requests[output.request_id]
            request.tokens += output.token_ids
            request.times += [now] * len(output.token_ids)
            if output.finish_reason is not None:
                request.end = output

    def answer(self, stats: Stats) -> None:
        pass


@dataclass(slots=True)
class Driven:
    """An engine and its requests."""

    engine: Engine
    info: EngineInfo
    link: DrivenLink
    count: int = 0

    @classmethod
    def start(cls, checkpoint: Path, **options: Any) -> Self:
        link = DrivenLink()
        config = EngineConfig.from_options({"model": str(checkpoint), **options})
        engine, info = build_engine(config, link, progress=False)
        return cls(engine, info, link)

    def submit(self, tokens: Prompt, max_tokens: int) -> Request:
        sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=max_tokens)
        self.count += 1
        return self.link.submit(Submit(self.count, tokens, sampling))

    def finish(self, *requests: Request) -> None:
        """Step until these requests have ended."""
        while any(request.end is None for request in requests):
            self.engine.step()
        for request in requests:
            if not request.tokens:
                raise RuntimeError(f"a request failed: {request.end}")

    def finish_copies(self) -> None:
        """Step until every copy has ended."""
        while not self.engine.is_idle:
            self.engine.step()

    def ask(self, tokens: Prompt, max_tokens: int = 1) -> Request:
        """Run one request to its end."""
        request = self.submit(tokens, max_tokens)
        self.finish(request)
        return request

    def close(self) -> None:
        self.engine.close()
