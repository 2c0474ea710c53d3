"""Measure the operations of layers with a recurrent state on a CPU: processor time, and the bytes that they read.

    python benchmarks/states.py --threads 1

A step of all layers with a state is computed with random inputs: decodes at each position of a block, and a prompt in
chunks. The sizes are those of the gated delta nets of Qwen3.5-0.8B. Printed are milliseconds of processor time, with
the compiled kernels and in plain torch, and the memory that a step must read at least: the states and the tails.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from sluice.attention.states import BLOCK, StatePool, StateRows, StateSpec, StateStep, anchor_of
from sluice.kernels.cpu.library import Kernels, Library
from sluice.models.native_ops import NativeOps
from sluice.models.ops import Norm, Ops
from sluice.models.recurrence import ConvWeights, DeltaHeads, DeltaInputs

HEADS, HEAD_DIM, TAPS, LAYERS = 16, 128, 4, 18
INNER = HEADS * HEAD_DIM
SPEC = StateSpec(3 * INNER, TAPS, torch.bfloat16, HEADS, HEAD_DIM, HEADS, HEAD_DIM)
PARTS = ("convolution", "recurrence", "gated norm")


@dataclass
class Layers:
    """The layers' states of some slots, and the time that each part took."""

    ops: Ops
    pool: StatePool
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def step(self, rows: StateRows, q_lens: tuple[int, ...]) -> None:
        """Compute a step of all layers."""
        count = sum(q_lens)
        noise = torch.Generator().manual_seed(rows.starts[0])
        x = torch.randn(count, 3 * INNER, generator=noise).bfloat16()
        gate = torch.randn(count, HEADS, HEAD_DIM, generator=noise).bfloat16()
        steps, rates = torch.randn(2, count, HEADS, generator=noise)
        weight = torch.randn(TAPS, 3 * INNER, generator=noise).t()
        heads, norm = DeltaHeads(-torch.ones(HEADS) / 10, torch.ones(HEADS)), Norm(torch.ones(HEAD_DIM), 1e-6)
        ops, conv = self.ops.of_states(SPEC), ConvWeights(weight, None, "silu")
        for state in self.pool.layers:
            place = StateStep(state, rows, q_lens)
            columns = self._timed("convolution", lambda at=place: ops.causal_conv(x, conv, at))
            q, k, v = (part.unflatten(1, (HEADS, HEAD_DIM)) for part in columns.chunk(3, dim=1))
            given = DeltaInputs(q, k, v, steps, rates)
            out = self._timed("recurrence", lambda at=place, g=given: ops.delta_net(g, heads, at))
            self._timed("gated norm", lambda o=out: self.ops.gated_norm(o, gate, norm, gates_first=False))

    def _timed(self, part: str, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        start = time.process_time()
        out = work()
        self.seconds[part] += time.process_time() - start
        return out


def decode(ops: Ops, batch: int) -> dict[str, float]:
    """Return the seconds of a step of decodes in all layers, the mean over the positions of a block."""
    pool = StatePool(SPEC, LAYERS, batch, 0, 0, torch.device("cpu"))
    for slot in range(batch):
        pool.open(slot, 0, None)
    layers = Layers(ops, pool)
    for position in range(2 * BLOCK):
        if position == BLOCK:
            layers.seconds = dict.fromkeys(PARTS, 0.0)
        places, anchor, after = (position,) * batch, (anchor_of(position),) * batch, (anchor_of(position + 1),) * batch
        layers.step(StateRows(tuple(range(batch)), places, anchor, after), (1,) * batch)
    return {part: seconds / BLOCK for part, seconds in layers.seconds.items()}


def prefill(ops: Ops, length: int, chunk: int) -> dict[str, float]:
    """Return the seconds of a prompt in all layers."""
    pool = StatePool(SPEC, LAYERS, 1, 0, 0, torch.device("cpu"))
    pool.open(0, 0, None)
    layers = Layers(ops, pool)
    for start in range(0, length, chunk):
        end = min(length, start + chunk)
        layers.step(StateRows((0,), (start,), (anchor_of(start),), (anchor_of(end),)), (end - start,))
    return layers.seconds


def decode_bytes(batch: int) -> float:
    """Return the bytes that a step of decodes reads in all layers: the states, and half of the longest tails."""
    state = HEADS * HEAD_DIM * HEAD_DIM * 4
    tail = BLOCK / 2 * 2 * INNER * 4
    return LAYERS * batch * (state + tail)


def main(arguments: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    torch.set_num_threads(args.threads)
    library = Library()
    kinds = {"kernels": NativeOps(Kernels(library, library.best(), args.threads)), "torch": Ops()}
    works: dict[str, tuple[float, Callable[[Ops], dict[str, float]]]] = {
        "decode, batch 1": (decode_bytes(1), lambda ops: decode(ops, 1)),
        "decode, batch 8": (decode_bytes(8), lambda ops: decode(ops, 8)),
        f"prompt of {args.prompt}": (0, lambda ops: prefill(ops, args.prompt, args.chunk)),
    }
    print(f"{'':20} {'':8}" + "".join(f"{part:>14}" for part in PARTS) + f"{'MB':>8}   ms of {LAYERS} layers")
    for name, (least, work) in works.items():
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for _ in range(args.rounds):
            for kind, ops in kinds.items():
                found[kind].append(work(ops))
        for kind, rounds in found.items():
            medians = [statistics.median(each[part] for each in rounds) * 1e3 for part in PARTS]
            print(f"{name:20} {kind:8}" + "".join(f"{value:14.2f}" for value in medians) + f"{least / 1e6:8.0f}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=2000, help="tokens")
    parser.add_argument("--chunk", type=int, default=512, help="tokens")
    parser.add_argument("--rounds", type=int, default=3)
    return parser


if __name__ == "__main__":
    main()
