"""Compare quantised linear layers with those in bfloat16, all on the compiled kernels, in turns in one process.

    python benchmarks/quantized_linear.py [--threads N] [--seconds S] [--shapes 4096x14336,1024x3072] [--rows 1,8,64]

Weights are beyond the last-level cache as far as copies of 300 MB in bfloat16 are. For each shape (inputs x outputs),
number of rows and kind of weight it prints the median time in milliseconds, the bytes of the weights over that time,
the operations over it, and the medians of the ratios of neighbouring turns: to bfloat16, and to int8. On a machine
whose speed changes by the minute only the ratios say something. A probe before each shape says what the machine gives:
bytes that torch's threads read, and operations in bfloat16.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from sluice.device.machine import usable_cores
from sluice.device.memory import module_bytes
from sluice.kernels.cpu.library import Kernels, Library
from sluice.models.packers import NativePacker
from sluice.models.quantized import Int4Weight, Int8Weight, QuantizedLinear, QuantizedWeight

SHAPES = "4096x14336,1024x4096,1024x6144,3072x1024"
BYTES = 300 << 20
LEAST_TURNS = 5
PLAIN = "bfloat16"
QUANTISERS: Mapping[str, Callable[[torch.Tensor], QuantizedWeight]] = {
    "int8": Int8Weight.quantize,
    "int4 of 32": Int4Weight.quantize,
    "int4 of 128": lambda weight: Int4Weight.quantize(weight, 128),
}


def layers(packer: NativePacker, inputs: int, outputs: int) -> Mapping[str, Sequence[nn.Module]]:
    """Return layers of every kind with the same weights."""
    made: dict[str, list[nn.Module]] = {name: [] for name in (PLAIN, *QUANTISERS)}
    for _ in range(max(1, BYTES // (2 * inputs * outputs))):
        source = nn.Linear(inputs, outputs, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        for name, quantise in QUANTISERS.items():
            made[name].append(packer.linear(QuantizedLinear(quantise(source.weight), None, torch.bfloat16)))
        made[PLAIN].append(packer.linear(source))
    return made


def in_turns(
    contenders: Mapping[str, Sequence[nn.Module]], x: torch.Tensor, seconds: float
) -> Mapping[str, Sequence[float]]:
    """Return the seconds of a call of each contender, for each turn."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    while len(found[PLAIN]) < LEAST_TURNS or time.perf_counter() < end:
        for name, own in contenders.items():
            start = time.perf_counter()
            for layer in own:
                layer(x)
            found[name].append((time.perf_counter() - start) / len(own))
    return found


def ratio(times: Sequence[float], to: Sequence[float]) -> float:
    """Return the median of the ratios of neighbouring turns."""
    return statistics.median(a / b for a, b in zip(times, to, strict=True))


def probe(threads: int) -> str:
    """Return what the machine gives now: gigabytes a second that are read, and multiplications."""
    torch.set_num_threads(threads)
    data, a = torch.ones(BYTES // 4), torch.ones(2048, 2048, dtype=torch.bfloat16)
    best = [min(_seconds(work) for _ in range(5)) for work in (data.sum, lambda: a @ a)]
    torch.set_num_threads(1)
    return f"read {BYTES / best[0] / 1e9:.1f} GB/s, bfloat16 {2 * 2048**3 / best[1] / 1e12:.2f} TFLOP/s"


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@torch.inference_mode()
def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--seconds", type=float, default=3.0, help="of each number of rows (default: 3)")
    parser.add_argument("--shapes", default=SHAPES, metavar="LIST", help=f"INPUTSxOUTPUTS (default: {SHAPES})")
    parser.add_argument("--rows", default="1,8,64,512", metavar="LIST")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    library = Library()
    packer = NativePacker(Kernels(library, library.best(), options.threads))
    for shape in options.shapes.split(","):
        inputs, outputs = map(int, shape.split("x"))
        contenders = layers(packer, inputs, outputs)
        print(f"{shape}: {probe(options.threads)}")
        print(f"{'rows':>5} {'weight':>12} {'ms':>8} {'GB/s':>6} {'TOP/s':>6} {'/ bfloat16':>10} {'/ int8':>7}")
        for rows in map(int, options.rows.split(",")):
            found = in_turns(contenders, torch.randn(rows, inputs).bfloat16(), options.seconds)
            for name, times in found.items():
                middle = statistics.median(times)
                read = module_bytes(contenders[name][0]) / middle / 1e9
                done = 2 * rows * inputs * outputs / middle / 1e12
                ratios = f"{ratio(times, found[PLAIN]):>10.2f} {ratio(times, found['int8']):>7.2f}"
                print(f"{rows:>5} {name:>12} {1e3 * middle:>8.3f} {read:>6.1f} {done:>6.2f} {ratios}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
