"""Compare the compiled kernels with torch's: attention over pages, linear layers, and the largest read rate of memory.

    python benchmarks/cpu_kernels.py [--threads N] [--repeats N] [--only attention|linear] [--json FILE]

Shapes are those of Qwen3-0.6B, bfloat16. Contenders take turns, and the median of each is shown. Every call uses other
memory than the one before, as the layers of a model do, so that its data is in no cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from sluice.attention.base import Attention, ForwardBatch, LayerKV, PagedKV
from sluice.attention.native import NativeAttention
from sluice.attention.packed import PackedKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import AttentionSpec, KVShape
from sluice.device.machine import usable_cores
from sluice.kernels.cpu.library import Kernels, Library
from sluice.models.linear import Packer
from sluice.models.packers import NativePacker, OneDNNPacker

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 16, 8, 128, 32
CACHED = 4000
COLD_BYTES = 192 << 20
"""Bytes that one round of calls reads: several times the last-level cache."""
SHAPES = {"qkv": (1024, 4096), "gate, up": (1024, 6144), "down": (3072, 1024)}
"""Name -> (in, out) of a linear layer."""

Call = Callable[[int], object]
"""Runs the work once, on memory number `i`."""


@dataclass(frozen=True)
class Measured:
    case: str
    contender: str
    seconds: float
    read_bytes: int
    flops: int

    def row(self) -> str:
        rates = f"{self.read_bytes / self.seconds / 1e9:7.1f} GB/s {self.flops / self.seconds / 1e9:8.0f} GFLOP/s"
        return f"{self.case:34} {self.contender:18} {self.seconds * 1e3:9.3f} ms {rates}"


def in_turns(contenders: Mapping[str, Call], copies: int, repeats: int) -> dict[str, float]:
    """Return the median seconds of one call of each contender."""
    for call in contenders.values():
        call(0)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, call in contenders.items():
            start = time.perf_counter()
            for copy in range(copies):
                call(copy)
            times[name].append((time.perf_counter() - start) / copies)
    return {name: statistics.median(found) for name, found in times.items()}


def attention_batch(rows: int, q_len: int, cached: int) -> ForwardBatch:
    """Make rows of `q_len` queries after `cached` tokens, each over pages of its own, shuffled."""
    kv_len = cached + q_len
    pages = -(-kv_len // PAGE_SIZE)
    table = torch.randperm(rows * pages).view(rows, pages).to(torch.int32)
    slots = [
        int(table[row, at // PAGE_SIZE]) * PAGE_SIZE + at % PAGE_SIZE
        for row in range(rows)
        for at in range(cached, kv_len)
    ]
    tokens = rows * q_len
    return ForwardBatch(
        input_ids=torch.zeros(tokens, dtype=torch.int64),
        positions=torch.arange(cached, kv_len).repeat(rows),
        kv_slots=torch.tensor(slots),
        page_table=table,
        q_starts=torch.tensor([0, *accumulate([q_len] * rows)], dtype=torch.int32),
        kv_lens=torch.full((rows,), kv_len, dtype=torch.int32),
        logit_rows=torch.arange(rows),
        q_lens=(q_len,) * rows,
        kv_lens_host=(kv_len,) * rows,
        num_decodes=rows if q_len == 1 else 0,
    )


def attention(kernels: Kernels, rows: int, q_len: int, repeats: int) -> list[Measured]:
    batch = attention_batch(rows, q_len, CACHED)
    kv_len, pages = batch.kv_lens_host[0], batch.page_table.numel()
    layer_bytes = 2 * 2 * rows * kv_len * KV_HEADS * HEAD_DIM
    layers = max(2, COLD_BYTES // layer_bytes)
    spec = AttentionSpec(HEADS, KV_HEADS, HEAD_DIM, torch.bfloat16, HEAD_DIM**-0.5)
    q = torch.randn(rows * q_len, HEADS, HEAD_DIM).bfloat16()
    plain = [LayerKV(*torch.randn(2, pages, PAGE_SIZE, KV_HEADS, HEAD_DIM).bfloat16()) for _ in range(layers)]
    shape = KVShape(pages, PAGE_SIZE, KV_HEADS, HEAD_DIM, torch.bfloat16, torch.device("cpu"))
    packed = [PackedKV.empty(kernels, shape) for _ in range(layers)]
    every_slot = torch.arange(pages * PAGE_SIZE)
    for ours, theirs in zip(packed, plain, strict=True):
        ours.store(every_slot, theirs.k.flatten(0, 1), theirs.v.flatten(0, 1))

    def by(backend: Attention, kv: Sequence[PagedKV]) -> Call:
        return lambda layer: backend.attend(q, kv[layer], batch, spec)

    def of_rows(layer: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return keys and values of each row in one run, heads first."""
        found = []
        for row in range(rows):
            k, v = plain[layer].gather(batch.page_table[row])
            found.append(tuple(part.flatten(0, 1)[:kv_len].transpose(0, 1)[None].contiguous() for part in (k, v)))
        return found

    mask = torch.ones(q_len, kv_len, dtype=torch.bool).tril(CACHED) if q_len > 1 else None

    def sdpa(runs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        parts = (part.transpose(0, 1)[None] for part in q.split(q_len))
        return [
            functional.scaled_dot_product_attention(part, k, v, attn_mask=mask, scale=spec.scale, enable_gqa=True)
            for part, (k, v) in zip(parts, runs, strict=True)
        ]

    contiguous = [of_rows(layer) for layer in range(layers)]
    seconds = in_turns(
        {
            kernels.level.name.lower(): by(NativeAttention(kernels), packed),
            "reference": by(ReferenceAttention(), plain),
            "sdpa, in one run": lambda layer: sdpa(contiguous[layer]),
            "sdpa, gathering": lambda layer: sdpa(of_rows(layer)),
        },
        layers,
        repeats,
    )
    flops = 4 * rows * q_len * (CACHED + (q_len + 1) // 2) * HEADS * HEAD_DIM
    case = f"{rows} decodes" if q_len == 1 else f"chunk of {q_len}"
    return [Measured(f"{case} over {CACHED}", name, time, layer_bytes, flops) for name, time in seconds.items()]


def linear(kernels: Kernels, name: str, rows: int, repeats: int) -> list[Measured]:
    inputs, outputs = SHAPES[name]
    weight_bytes = 2 * inputs * outputs
    copies = max(2, COLD_BYTES // weight_bytes)
    x = torch.randn(rows, inputs).bfloat16()
    layers = {}
    for contender, packer in {
        kernels.level.name.lower(): NativePacker(kernels),
        "onednn": OneDNNPacker(),
        "plain": Packer(),
    }.items():
        sources = [
            nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16).requires_grad_(False) for _ in range(copies)
        ]
        layers[contender] = [packer.linear(source) for source in sources]

    def by(own: Sequence[nn.Module]) -> Call:
        return lambda copy: own[copy](x)

    seconds = in_turns({contender: by(own) for contender, own in layers.items()}, copies, repeats)
    case = f"{name} {inputs} x {outputs}, {rows} rows"
    return [Measured(case, contender, time, weight_bytes, rows * weight_bytes) for contender, time in seconds.items()]


def memory(repeats: int) -> Measured:
    """Measure the largest rate at which torch reads memory: a sum over more than any cache holds."""
    block = torch.ones(COLD_BYTES // 4)
    seconds = in_turns({"sum": lambda _: block.sum()}, 1, repeats)["sum"]
    return Measured("memory", "sum", seconds, COLD_BYTES, COLD_BYTES // 4)


@torch.inference_mode()
def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=("attention", "linear"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    library = Library()
    kernels = Kernels(library, library.best(), options.threads)
    found: list[Measured] = []

    def show(measured: Sequence[Measured]) -> None:
        found.extend(measured)
        print(*(each.row() for each in measured), sep="\n", flush=True)

    show([memory(options.repeats)])
    if options.only != "linear":
        for rows in (1, 4, 8):
            show(attention(kernels, rows, 1, options.repeats))
        show(attention(kernels, 1, 256, options.repeats))
    if options.only != "attention":
        for name in SHAPES:
            for rows in (1, 8, 256):
                show(linear(kernels, name, rows, options.repeats))
    if options.json is not None:
        record = {"threads": options.threads, "level": kernels.level.name, "torch": torch.__version__}
        options.json.write_text(json.dumps({**record, "measured": [vars(each) for each in found]}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
