"""Compare linear layers in int8 with those in bfloat16, both on the compiled kernels, in turns in one process.

    python benchmarks/int8_linear.py [--threads N] [--seconds S] [--shapes 4096x14336,1024x3072] [--rows 1,8,64,512]

Weights are beyond the last-level cache as far as copies of 300 MB are. For each shape (inputs x outputs) and number of
rows, it prints the minimum and the median of both, in milliseconds, and the median of the ratios of neighbouring turns:
on a machine whose speed changes by the minute only the ratio says something.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

import torch
from torch import nn

from sluice.device.machine import usable_cores
from sluice.models.packers import NativePacker
from sluice.models.quantized import Int8Weight, QuantizedLinear
from sluice.native.library import Kernels, Library

SHAPES = "4096x14336,1024x4096,1024x6144,3072x1024"
BYTES = 300 << 20
LEAST_TURNS = 5


def layers(packer: NativePacker, inputs: int, outputs: int) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return layers in bfloat16 and in int8, with the same weights."""
    plain, int8 = [], []
    for _ in range(max(1, BYTES // (2 * inputs * outputs))):
        source = nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        weight = Int8Weight.quantize(source.weight)
        int8.append(packer.linear(QuantizedLinear(weight, None, torch.bfloat16)))
        plain.append(packer.linear(source))
    return plain, int8


def in_turns(contenders: Sequence[Sequence[nn.Module]], x: torch.Tensor, seconds: float) -> list[list[float]]:
    """Return the seconds of a call of each contender, for each turn."""
    found: list[list[float]] = [[] for _ in contenders]
    end = time.perf_counter() + seconds
    while len(found[0]) < LEAST_TURNS or time.perf_counter() < end:
        for own, times in zip(contenders, found, strict=True):
            start = time.perf_counter()
            for layer in own:
                layer(x)
            times.append((time.perf_counter() - start) / len(own))
    return found


@torch.inference_mode()
def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--seconds", type=float, default=2.0, help="of each line (default: 2)")
    parser.add_argument("--shapes", default=SHAPES, metavar="LIST", help=f"INPUTSxOUTPUTS (default: {SHAPES})")
    parser.add_argument("--rows", default="1,8,64,512", metavar="LIST")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    library = Library()
    packer = NativePacker(Kernels(library, library.best(), options.threads))
    print(f"{'shape':>12} {'rows':>5} {'bfloat16 min, median':>22} {'int8 min, median':>20} {'ratio':>6}")
    for shape in options.shapes.split(","):
        inputs, outputs = map(int, shape.split("x"))
        contenders = layers(packer, inputs, outputs)
        for rows in map(int, options.rows.split(",")):
            plain, int8 = in_turns(contenders, torch.randn(rows, inputs).bfloat16(), options.seconds)
            ratio = statistics.median(b / a for a, b in zip(plain, int8, strict=True))
            a, b, c, d = (1e3 * pick(times) for times in (plain, int8) for pick in (min, statistics.median))
            print(f"{shape:>12} {rows:>5} {a:>13.3f} {b:>8.3f} {c:>11.3f} {d:>8.3f} {ratio:>6.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
