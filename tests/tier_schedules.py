"""Random lives of an engine with a disk tier: conversations, restarts, flushes, aborts, and a file that rots.

    python tests/tier_schedules.py --count 200 --seed 0

plays many of them; `tests/parity/test_tiers.py` a few.
"""

from __future__ import annotations

import argparse
import queue
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

import tiny_models
from sluice.assembly.engine import build_engine
from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, FlushCache, Message, Stats, Submit
from sluice.storage.inspect import inspect
from sluice.types import FinishReason, Output, SamplingParams

TIE = 1e-4
"""In float32 the two largest logits may be this close where the tokens differ."""
MOST_STEPS = 5_000
"""More than any of these lives takes."""
PATIENCE = 60.0
"""Seconds after which a loop that waits for a copy counts as stuck."""
Prompt = tuple[int, ...]


class BlockingLink:
    """A link worked by hand whose `receive` waits as a server's does."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.outputs: list[Output] = []

    def post(self, message: Message) -> None:
        self._inbox.put(message)

    def receive(self, *, block: bool, timeout: float | None = None) -> Sequence[Message]:
        messages = []
        if block and self._inbox.empty():
            messages.append(self._inbox.get(timeout=PATIENCE if timeout is None else timeout))
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages

    def send(self, outputs: Sequence[Output]) -> None:
        self.outputs += outputs

    def answer(self, stats: Stats) -> None:
        pass

    def tokens(self, request_id: int) -> tuple[int, ...]:
        return tuple(token for out in self.outputs if out.request_id == request_id for token in out.token_ids)

    def end(self, request_id: int) -> Output | None:
        return next((out for out in self.outputs if out.request_id == request_id and out.finish_reason), None)


@dataclass
class Totals:
    """What came of the schedules."""

    requests: int = 0
    aborted: int = 0
    ties: int = 0
    disk_tokens: int = 0
    failed_loads: int = 0
    restored: int = 0


@dataclass
class Models:
    """The model of all schedules, and what it says without tiers."""

    folder: Path
    known: dict[Prompt, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.exact = tiny_models.load_reference(self.folder, torch.float64)

    def expected(self, prompts: Sequence[Prompt], max_tokens: int) -> None:
        """Find out what the engine without tiers says, each prompt alone."""
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self.known]
        engine, link = started(self.folder, {"enable_prefix_caching": False, "max_total_tokens": 2048})
        for number, prompt in enumerate(new):
            link.post(Submit(number, prompt, greedy(max_tokens)))
            run_out(engine, link, number + 1)
            self.known[prompt] = link.tokens(number)

    def check(self, prompt: Prompt, got: tuple[int, ...]) -> bool:
        """Whether tokens differ at a tie; they may nowhere else."""
        expected = self.known[prompt][: len(got)]
        if got == expected:
            return False
        same = [*takewhile(lambda pair: pair[0] == pair[1], zip(got, expected, strict=True))]
        scores = tiny_models.logits(self.exact, (*prompt, *expected[: len(same)]))[-1]
        best, second = scores.topk(2).values.tolist()
        assert best - second < TIE, f"token {len(same)} of {got} should be {expected}, for prompt {prompt}"
        return True


def made(folder: Path) -> Models:
    """A model that the compiled kernels take, if there are any."""
    tiny_models.llama(hidden_size=64).save_pretrained(folder)
    return Models(folder)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, seed=0, max_tokens=max_tokens)


def started(folder: Path, options: dict[str, Any]) -> tuple[Engine, BlockingLink]:
    link = BlockingLink()
    config = EngineConfig.from_options({"model": str(folder), "dtype": "float32", **options})
    engine, _ = build_engine(config, link, progress=False)
    return engine, link


def run_out(engine: Engine, link: BlockingLink, count: int) -> None:
    """Step until the first `count` requests have ended and nothing is left to copy."""
    steps = 0
    while not all(link.end(number) for number in range(count)):
        engine.step()
        steps += 1
        assert steps <= MOST_STEPS, f"still busy after {steps} steps: {engine.scheduler.occupancy()}"
    while not engine.is_idle:
        engine.step()


MAX_TOKENS = 6


def options_of(rng: random.Random, path: Path) -> dict[str, Any]:
    page_size = rng.choice([4, 8, 16])
    depth = rng.randint(1, 3)
    return {
        "page_size": page_size,
        "max_total_tokens": rng.choice([112, 160, 256]),
        "chunked_prefill_size": rng.choice([page_size, 2 * page_size, 48, -1]),
        "max_running_requests": rng.randint(1, 4),
        "schedule": rng.choice(["mixed", "prefill-first"]),
        "reserve": rng.choice(["ratio", "full"]),
        "depth": depth,
        "lookahead": rng.randrange(depth),
        "kv_disk": str(path),
        "kv_disk_bytes": rng.choice([100_000, 300_000, 2_000_000]),
        "kv_write_policy": rng.choice(["write-through", "write-back", "selective"]),
    }


def prompts_of(rng: random.Random) -> list[Prompt]:
    """Conversations that have some beginnings in common, each longer with every turn."""
    stems = [tiny_models.prompt(rng.randint(8, 40), seed=rng.randrange(1 << 20)) for _ in range(2)]
    found: list[Prompt] = []
    for _ in range(rng.randint(2, 5)):
        turn = rng.choice(stems)
        for _ in range(rng.randint(1, 4)):
            turn += tiny_models.prompt(rng.randint(3, 18), seed=rng.randrange(1 << 20))
            found.append(turn[:90])
    return found


def play(seed: int, models: Models, folder: Path, totals: Totals) -> None:
    """One schedule: its prompts in two or three engines one after the other, over the same file.

    Raises:
        AssertionError: tokens differ where there is no tie, or a request did not end.
    """
    rng = random.Random(seed)
    path = folder / f"pages-{seed}"
    options, prompts = options_of(rng, path), prompts_of(rng)
    models.expected(prompts, MAX_TOKENS)
    for _ in range(rng.randint(2, 3)):
        engine, link = started(models.folder, options)
        totals.restored += sum(use.used for use in engine.scheduler.occupancy().tiers)
        asked = [rng.choice(prompts) for _ in range(rng.randint(3, 10))]
        aborted = _converse(rng, engine, link, asked, path)
        totals.failed_loads += sum(use.failed_loads for use in engine.scheduler.occupancy().tiers)
        engine.close()
        for number, prompt in enumerate(asked):
            end = link.end(number)
            assert end is not None, f"request {number} never ended"
            totals.requests += 1
            totals.aborted += number in aborted
            totals.disk_tokens += end.num_disk_tokens
            totals.ties += models.check(prompt, link.tokens(number))
            assert number in aborted or end.finish_reason is FinishReason.LENGTH, f"{prompt} ended with {end}"
            assert number in aborted or len(link.tokens(number)) == MAX_TOKENS
        assert inspect(path, verify=False).pages >= 0
    path.unlink()


def _converse(rng: random.Random, engine: Engine, link: BlockingLink, asked: Sequence[Prompt], path: Path) -> set[int]:
    """Submit prompts at random moments while other things befall the engine. Returns who was aborted."""
    aborted: set[int] = set()
    for number, prompt in enumerate(asked):
        link.post(Submit(number, prompt, greedy(MAX_TOKENS)))
        for _ in range(rng.choice([0, 1, 3, 30])):
            if not engine.is_idle:
                engine.step()
        if rng.random() < 0.1:
            aborted.add(victim := rng.randrange(number + 1))
            link.post(Abort(victim))
        if rng.random() < 0.05:
            link.post(FlushCache(number))
        if rng.random() < 0.1:
            _rot(rng, path)
    run_out(engine, link, len(asked))
    return aborted


def _rot(rng: random.Random, path: Path) -> None:
    """Flip some bits of what is stored."""
    with path.open("r+b") as file:
        size = path.stat().st_size
        for _ in range(40):
            at = rng.randrange(size // 2 if rng.random() < 0.5 else 4096, size)
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ (1 << rng.randrange(8))]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    totals = Totals()
    with tempfile.TemporaryDirectory() as name:
        models = made(Path(name) / "model")
        for seed in range(given.seed, given.seed + given.count):
            play(seed, models, Path(name), totals)
    print(f"{given.count} schedules: {totals}")


if __name__ == "__main__":
    main()
