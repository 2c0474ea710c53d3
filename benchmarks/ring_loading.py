"""Measure how fast blocks of stored pages reach the ring, against plain copies of memory and plain reads of the file.

    python benchmarks/ring_loading.py --out build/ring_loading --disk build/pages --page-size 16,256

For each page size a page file of the small recall checkpoint (256 bytes of KV for each token and layer) is written, and
read again and again in blocks: by a `DiskLoader` as an engine reads it, with each kind of checksum; by
`preadv` alone; and by copying as many bytes within memory. One after the other, in rounds. Medians are printed.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.long_context.bandwidth import read_bandwidth
from sluice.attention.base import LayerKV
from sluice.bench.results import machine, versions
from sluice.runner.offload.loaders import BlockLoad, DiskLoader
from sluice.storage.checksums import Crc32, Crc32c
from sluice.storage.format import BLOCK, FileLayout, PageGeometry, split
from sluice.storage.opening import open_page_file
from sluice.storage.page_file import PageFile

HEAD_DIM, LAYERS = 64, 2
"""Of the small recall checkpoint in bfloat16, with one KV head."""


def geometry_of(page_size: int, checksum: str) -> PageGeometry:
    part = page_size * HEAD_DIM * 2
    return PageGeometry("none", "benchmark", "bfloat16", "plain", page_size, LAYERS, 1, HEAD_DIM, part, checksum)


def written(path: Path, geometry: PageGeometry, size: int) -> PageFile:
    """Return a new page file whose pages hold `size` bytes of noise."""
    layout = FileLayout(geometry, size // geometry.page_bytes)
    file = open_page_file(path, layout.file_bytes + BLOCK, geometry).file
    noise = np.random.default_rng(0).bytes(geometry.page_bytes)
    parts = split(memoryview(bytearray(noise)), geometry.part_bytes)
    for page in range(layout.num_pages):
        file.write(page, None, parts)
    return file


class Loading:
    """A ring, and the loader that fills it from a page file."""

    def __init__(self, file: PageFile, blocks: int, block_pages: int) -> None:
        geometry = file.layout.geometry
        shape = (blocks * block_pages, geometry.page_size, 1, HEAD_DIM)
        self._ring = LayerKV(*(torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2)))
        self._reports: queue.SimpleQueue[tuple[int, int, str | None, int | None]] = queue.SimpleQueue()
        self._loader: DiskLoader[None] = DiskLoader(
            file, self._ring, block_pages, lambda *report: self._reports.put(report)
        )
        self._blocks, self._num_pages = blocks, file.layout.num_pages
        self._contexts = [
            range(first, min(first + block_pages, self._num_pages)) for first in range(0, self._num_pages, block_pages)
        ]

    def pass_through(self) -> float:
        """Load every layer of all pages, as a decode does. Return bytes per second."""
        loads = [(layer, pages) for layer in range(LAYERS) for pages in self._contexts]
        began, before, started, ready = time.perf_counter(), self._loader.totals.bytes, 0, 0
        while ready < len(loads):
            while started < min(len(loads), ready + self._blocks):
                layer, pages = loads[started]
                started += 1
                self._loader.start(BlockLoad(layer, pages, pages, 0, started), (started - 1) % self._blocks, None)
            _, ready, error, _ = self._reports.get()
            if error is not None:
                raise RuntimeError(error)
        return (self._loader.totals.bytes - before) / (time.perf_counter() - began)

    def close(self) -> None:
        self._loader.close()


def copies(size: int, block_bytes: int) -> float:
    """Return the bytes per second at which one thread copies memory into a block."""
    source = np.ones(size, dtype=np.uint8)
    target = np.zeros(block_bytes, dtype=np.uint8)
    began, done = time.perf_counter(), 0
    for first in range(0, size - block_bytes + 1, block_bytes):
        np.copyto(target, source[first : first + block_bytes])
        done += block_bytes
    return done / (time.perf_counter() - began)


def measure(args: argparse.Namespace, page_size: int) -> dict[str, list[float]]:
    """Return the rates of each way, in GB/s, one for each round."""
    size, block_pages = args.mib << 20, max(1, args.block_tokens // page_size)
    files = {
        name: written(args.disk.with_name(f"{args.disk.name}.{name}"), geometry_of(page_size, name), size)
        for name in (Crc32.name, Crc32c.name)
    }
    loadings = {name: Loading(file, args.ring_blocks, block_pages) for name, file in files.items()}
    block_bytes = block_pages * geometry_of(page_size, "").part_bytes * 2
    plain = args.disk.with_name(f"{args.disk.name}.{Crc32c.name}")
    ways: dict[str, Callable[[], float]] = {
        "memory": lambda: copies(size, block_bytes),
        "preadv": lambda: read_bandwidth(plain, block_bytes, seconds=0.2),
        **{name: loading.pass_through for name, loading in loadings.items()},
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            found[name].append(way() / 1e9)
    for name in files:
        loadings[name].close()
        files[name].close()
        args.disk.with_name(f"{args.disk.name}.{name}").unlink()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    found = {page_size: measure(args, page_size) for page_size in map(int, args.page_size.split(","))}
    for page_size, ways in found.items():
        medians = {name: statistics.median(rates) for name, rates in ways.items()}
        shown = "  ".join(f"{name} {rate:.2f}" for name, rate in medians.items())
        print(
            f"pages of {page_size:>4} tokens, GB/s: {shown}  crc32c/memory {medians['crc32c'] / medians['memory']:.2f}"
        )
    record = {
        "benchmark": "ring_loading",
        "options": {name: str(value) for name, value in vars(args).items()},
        "gigabytes_per_second": found,
        "versions": versions(("torch", "numpy")),
        "machine": machine(),
    }
    args.out.with_name(f"{args.out.name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="PREFIX", help="path of the results, without ending")
    parser.add_argument("--disk", type=Path, required=True, metavar="FILE", help="beginning of the page files' names")
    parser.add_argument("--page-size", default="16,256", help="tokens of a page (default: 16,256)")
    parser.add_argument("--block-tokens", type=int, default=4096, help="tokens of a block (default: 4096)")
    parser.add_argument("--ring-blocks", type=int, default=4, help="blocks of the ring (default: 4)")
    parser.add_argument("--mib", type=int, default=128, help="KV in each file (default: 128)")
    parser.add_argument("--rounds", type=int, default=7, help="how often each way is measured (default: 7)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
