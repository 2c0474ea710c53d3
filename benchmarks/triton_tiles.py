"""Try block sizes of the Triton attention on this device, for the table in `attention/triton/tiles.py`.

    python benchmarks/triton_tiles.py [--seconds 420] [--only extend|decode] [--json FILE]

Every candidate runs the same batches, in bfloat16. Candidates that the compiler refuses are left out, and candidates
with another result than the table's choice are marked as wrong. The fastest of each batch are shown with their rates,
and the table's choice is marked. Model sizes: Llama-3.1-8B, and heads of 64 and 256. Without a GPU, `--tiny` runs the
same code in Triton's interpreter, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, product
from pathlib import Path

import torch
import triton
from triton.runtime.errors import PTXASError

from sluice.attention.base import ForwardBatch
from sluice.attention.spec import AttentionSpec
from sluice.attention.triton.backend import TritonAttention
from sluice.attention.triton.kv import TritonKV
from sluice.attention.triton.tiles import Arch, DecodeTiles, ExtendTiles, decode_tiles, extend_tiles

PAGE_SIZE = 64
LARGEST_ERROR = 0.02
Tiles = ExtendTiles | DecodeTiles


@dataclass(frozen=True)
class Heads:
    query: int
    kv: int
    size: int


@dataclass(frozen=True)
class Work:
    """A batch of rows that all decode, or all extend."""

    heads: Heads
    lengths: tuple[tuple[int, int], ...]
    """(queries, keys) of each row."""

    @property
    def decodes(self) -> bool:
        return all(queries == 1 for queries, _ in self.lengths)

    @property
    def read_bytes(self) -> int:
        return sum(keys for _, keys in self.lengths) * 2 * self.heads.kv * self.heads.size * 2

    @property
    def flops(self) -> int:
        pairs = sum(queries * keys - queries * (queries - 1) // 2 for queries, keys in self.lengths)
        return 4 * pairs * self.heads.query * self.heads.size

    def __str__(self) -> str:
        rows = f"{len(self.lengths)} x {self.lengths[-1][0]} of {self.lengths[-1][1]}"
        longest = max(keys for _, keys in self.lengths)
        most = f", one of {longest}" if longest > self.lengths[-1][1] else ""
        return f"heads {self.heads.query}/{self.heads.kv} of {self.heads.size}, {rows}{most}"


@dataclass(frozen=True)
class Tried:
    tiles: Tiles
    seconds: float
    is_wrong: bool
    in_table: bool


MODELS = (Heads(32, 8, 128), Heads(16, 8, 64), Heads(8, 4, 256))
EXTENDS = (((2048, 2048),), ((2048, 32768),), ((512, 8192),), ((256, 1024),) * 8)
DECODES = (((1, 1024),), ((1, 1024),) * 64, ((1, 131072), *((1, 1024),) * 63), ((1, 1024),) * 256, ((1, 8192),) * 16)
TINY_WORKS = (Work(Heads(4, 2, 64), ((20, 80),)), Work(Heads(4, 2, 64), ((1, 200), (1, 70))))


def candidates(decodes: bool) -> Iterator[Tiles]:
    """Return sizes close to those of the table."""
    if decodes:
        for tile, per_sm, min_tiles, warps in product((32, 64, 128), (2, 4, 8), (1, 2), (2, 4)):
            yield DecodeTiles(tile, min_tiles, per_sm, num_warps=warps, num_stages=3)
        return
    for block, tile, warps, stages in product((64, 128), (32, 64, 128), (4, 8), (2, 3)):
        yield ExtendTiles(block, tile, num_warps=warps, num_stages=stages)


def batch_of(work: Work, device: torch.device) -> tuple[torch.Tensor, TritonKV, ForwardBatch]:
    """Make random queries and pages, those of a row in random order."""
    q_lens, kv_lens = zip(*work.lengths, strict=True)
    needed = [-(-keys // PAGE_SIZE) for keys in kv_lens]
    order = torch.randperm(sum(needed), dtype=torch.int32)
    table = torch.zeros(len(needed), max(needed), dtype=torch.int32)
    for row, pages in enumerate(order.split(needed)):
        table[row, : len(pages)] = pages
    shape = (sum(needed), PAGE_SIZE, work.heads.kv, work.heads.size)
    kv = TritonKV(*(torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2)))
    q = torch.randn(sum(q_lens), work.heads.query, work.heads.size, device=device, dtype=torch.bfloat16)
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    batch = ForwardBatch(
        input_ids=nothing,
        positions=nothing,
        kv_slots=nothing,
        page_table=table.to(device),
        q_starts=torch.tensor([0, *accumulate(q_lens)], dtype=torch.int32, device=device),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32, device=device),
        logit_rows=nothing,
        q_lens=q_lens,
        kv_lens_host=kv_lens,
        num_decodes=len(q_lens) if work.decodes else 0,
    )
    return q, kv, batch


def median_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the median time of a call. On a GPU its cache is emptied before every call, as other layers do."""
    if device.type == "cuda":
        return float(triton.testing.do_bench(work, warmup=5, rep=40, return_mode="median")) / 1e3
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def try_all(work: Work, tiles: Sequence[Tiles], arch: Arch, device: torch.device, until: float) -> list[Tried]:
    """Time the table's choice and then the others, until `until`. Returns the fastest first."""
    q, kv, batch = batch_of(work, device)
    spec = AttentionSpec.of(q, kv.kv_heads, work.heads.size**-0.5)
    pad = triton.next_power_of_2(work.heads.size)
    chosen: Tiles = decode_tiles(arch, pad, 2) if work.decodes else extend_tiles(arch, pad, 2)
    expected, _ = TritonAttention(arch).attend(q, kv, batch, spec)
    tried = []
    for each in dict.fromkeys((chosen, *tiles)):
        if tried and time.monotonic() > until:
            break
        backend = (
            TritonAttention(arch, decode_with=each)
            if isinstance(each, DecodeTiles)
            else TritonAttention(arch, extend_with=each)
        )

        def attend(backend: TritonAttention = backend) -> torch.Tensor:
            return backend.attend(q, kv, batch, spec)[0]

        try:
            out = attend()
        except (triton.OutOfResources, triton.CompilationError, PTXASError) as error:
            print(f"    left out: {each}: {str(error).splitlines()[0]}")
            continue
        is_wrong = not bool((out - expected).abs().max() <= LARGEST_ERROR)
        tried.append(Tried(each, median_seconds(attend, device), is_wrong, each == chosen))
    return sorted(tried, key=lambda each: each.seconds)


def described(work: Work, each: Tried) -> str:
    rates = f"{work.read_bytes / each.seconds / 1e9:7.0f} GB/s {work.flops / each.seconds / 1e12:6.1f} TFLOP/s"
    marks = ("  <- table" if each.in_table else "") + ("  WRONG" if each.is_wrong else "")
    return f"    {each.seconds * 1e6:9.1f} us {rates}  {each.tiles}{marks}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=420.0, help="time limit (default: 420)")
    parser.add_argument("--only", choices=("extend", "decode"))
    parser.add_argument("--tiny", action="store_true", help="try two small batches and candidates, on any machine")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() and not triton.knobs.runtime.interpret else "cpu")
    arch = Arch.of(device)
    works = TINY_WORKS if options.tiny else [Work(m, rows) for rows in (*EXTENDS, *DECODES) for m in MODELS]
    works = [work for work in works if options.only in (None, "decode" if work.decodes else "extend")]
    begin, found = time.monotonic(), []
    for number, work in enumerate(works):
        print(f"{'decode' if work.decodes else 'extend'}: {work}", flush=True)
        tiles = list(candidates(work.decodes))[:: 12 if options.tiny else 1]
        tried = try_all(work, tiles, arch, device, begin + options.seconds * (number + 1) / len(works))
        for each in [each for place, each in enumerate(tried) if place < 4 or each.in_table or each.is_wrong]:
            print(described(work, each), flush=True)
        found.append({"work": asdict(work), "tried": [asdict(each) for each in tried]})
    if options.json is not None:
        options.json.write_text(json.dumps({"arch": asdict(arch), "found": found}, indent=1) + "\n")
    return int(any(each["is_wrong"] for entry in found for each in entry["tried"]))


if __name__ == "__main__":
    raise SystemExit(main())
