"""Flip bits of the page file while contexts longer than the pool are served from it, and count what comes of it.

    $ .venv/bin/python benchmarks/lost_pages.py --flips 200 --disk build/lost-pages --out build/lost-pages.json

A thread flips one bit of a page that an offloaded request holds at the moment, or that is cached for the next one, and
waits until the engine has counted it. Needles of a checkpoint that recalls exactly are asked for meanwhile. Every
answer must be the one of an undisturbed engine, and every flip must be counted. Requests that lose a page compute it
again, so the file holds --tokens once and a page more for each flip: pages that were lost are not used again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.exact_recall import SHAPES, needle_prompts, write_recall_checkpoint
from sluice import LLM, SamplingParams
from sluice.bench.results import IN_PROCESS_PACKAGES, machine, versions
from sluice.kv.offload import OffloadLease
from sluice.storage.format import FileLayout, decode_header

HEADER_BYTES = 1 << 16
PAUSE = 0.02
"""Seconds between two looks at the engine."""
REST = 0.5
"""Seconds between two flips: time to get further, as a request that loses 64 pages before it does is ended."""


class Flipper(threading.Thread):
    """Flips bits, one after the other.

    Args:
        count: of the bits.
    """

    def __init__(self, llm: LLM, path: Path, count: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._scheduler: Any = llm._open_engine().scheduler
        self._path, self._count, self._draw = path, count, random.Random(seed)
        self._layout: FileLayout = decode_header(path.read_bytes()[:HEADER_BYTES])
        self.flipped = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        while self.flipped < self._count and not self.is_over.is_set():
            page = self._page()
            if page is not None:
                self._flip(page)
                self.flipped += 1
            while failed_loads(self._scheduler) < self.flipped and not self.is_over.is_set():
                time.sleep(PAUSE)
            time.sleep(REST)

    def _page(self) -> int | None:
        """Return a page that the open chunk, or the next one, of a request reads."""
        for request in list(self._scheduler.state.offloaded.values()):
            lease = request.lease
            if isinstance(lease, OffloadLease) and lease.stored > 1:
                return int(lease.row[self._draw.randrange(lease.stored)])
        return None

    def _flip(self, page: int) -> None:
        geometry = self._layout.geometry
        part = self._layout.part_at(page, self._draw.randrange(geometry.num_layers))
        at = part + self._draw.randrange(2 * geometry.part_bytes)
        with self._path.open("r+b", buffering=0) as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << self._draw.randrange(8)]))


def failed_loads(scheduler: Any) -> int:
    return sum(int(tier.failed_loads) for tier in scheduler.occupancy().tiers)


def served(llm: LLM, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[tuple[int, ...]]:
    results = llm.generate([list(prompt) for prompt in prompts], SamplingParams(temperature=0, max_tokens=max_tokens))
    return [tuple(result.token_ids) for result in results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--disk", type=Path, default=Path("build/lost-pages"))
    parser.add_argument("--seconds", type=float, default=600.0, help="after which it gives up (default: 600)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write what was counted to this file")
    asked = parser.parse_args()
    asked.disk.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_recall_checkpoint(Path(scratch) / "recall", SHAPES["small"])
        needles = needle_prompts(SHAPES["small"], asked.tokens, [0, 0.5, 1, None])
        prompts = [needle.prompt for needle in needles]
        options = {"max_total_tokens": 2048, "page_size": 16, "ring_block_tokens": 128, "kv_disk_bytes": 64 << 20}
        with LLM(folder, dtype="bfloat16", kv_disk=str(asked.disk), **options) as llm:
            expected = [tuple(needle.answer) for needle in needles]
            assert served(llm, prompts, 8) == expected, "wrong without a flip"
            flipper, began, rounds, wrong = Flipper(llm, asked.disk, asked.flips, 0), time.perf_counter(), 0, 0
            flipper.start()
            while flipper.is_alive() and time.perf_counter() - began < asked.seconds:
                wrong += sum(one != other for one, other in zip(served(llm, prompts, 8), expected, strict=True))
                rounds += 1
            flipper.is_over.set()
            counted = failed_loads(llm._open_engine().scheduler)
            seconds = time.perf_counter() - began
            print(
                f"{flipper.flipped} bits flipped, {counted} counted, {wrong} of {rounds * len(prompts)} answers wrong,"
                f" {seconds:.0f} s"
            )
            if asked.out is not None:
                record = {
                    "benchmark": "lost_pages",
                    "tokens": asked.tokens,
                    "options": options,
                    "flipped": flipper.flipped,
                    "counted": counted,
                    "answers": rounds * len(prompts),
                    "wrong": wrong,
                    "seconds": seconds,
                    "versions": versions(IN_PROCESS_PACKAGES),
                    "machine": machine(),
                }
                asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            if wrong or counted != flipper.flipped or counted < asked.flips:
                sys.exit(1)


if __name__ == "__main__":
    main()
