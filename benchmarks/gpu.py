"""Check and time everything that runs on a GPU, in under 8 minutes, on random weights in published shapes.

    python benchmarks/gpu.py --json gpu.json                  # on a CUDA device
    python benchmarks/gpu.py --json trial.json --trial        # the same code on a CPU, in small: does the script work?
    python benchmarks/gpu.py --json more.json --parts attention_flashinfer,parity_flashinfer --time-factor 5

It needs torch, triton, numpy and transformers with the packages that these bring; Sluice need not be installed. Every
part runs in a process of its own, with a time limit. A part that fails, hangs, lacks a package or leaves the device
unusable is recorded, and the others go on. The file is rewritten after every part. FlashInfer compiles its kernels at
their first use, for minutes, and keeps them. Shapes are those of Qwen3-0.6B and Llama-3.1-8B.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402

from benchmarks.on_gpu.setting import Setting  # noqa: E402

FORMAT = "sluice-gpu-1"
ALL_SECONDS = 470
"""Seconds after which no part is begun."""
RESULT = "result of the part: "
"""Prefix of the last line of a part's process, which holds its result."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part: one row or two of the table."""

    module: str
    """Module of `benchmarks.on_gpu` whose `measure` takes a `Setting`."""
    seconds: float
    """Seconds after which its process is ended."""

    def run(self, setting: Setting) -> dict[str, Any]:
        """Run the part in this process. Never raises."""
        began = time.perf_counter()
        try:
            measure: Callable[[Setting], dict[str, Any]] = import_module(f"benchmarks.on_gpu.{self.module}").measure
            with torch.inference_mode():
                result = measure(setting)
        except ModuleNotFoundError as error:
            result = {"error": missing(error), "traceback": traceback.format_exc()}
        except Exception as error:  # noqa: BLE001 - one setting that fails is a row of the report
            result = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        return {**result, "took_seconds": round(time.perf_counter() - began, 1)}


PARTS: Mapping[str, Part] = {
    part.module: part
    for part in (
        Part("rates", 40),
        Part("decode_step", 80),
        Part("prefill_chunk", 70),
        Part("overlap", 90),
        Part("interference", 110),
        Part("parity", 90),
        Part("transformers_peer", 70),
        Part("attention", 60),
        Part("pointwise", 60),
        Part("quantized_linear", 50),
        Part("attention_flashinfer", 180),
        Part("parity_flashinfer", 120),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="file of the results")
    parser.add_argument("--parts", metavar="NAMES", help=f"parts to run, with commas between them: {', '.join(PARTS)}")
    parser.add_argument(
        "--trial", action="store_true", help="run tiny sizes on a CPU, to test the script; the figures mean nothing"
    )
    parser.add_argument(
        "--time-factor", type=float, default=1.0, metavar="X", help="multiply the time limits of the parts and of all"
    )
    parser.add_argument("--here", metavar="PART", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if not args.trial and not torch.cuda.is_available():
        parser.error("no CUDA device; --trial runs the same code on a CPU, in small")
    setting = Setting(torch.device("cpu") if args.trial else torch.device("cuda", 0), args.trial)
    if args.here is not None:
        print(RESULT + json.dumps(PARTS[args.here].run(setting)))
        return 0
    every = [name for name in PARTS if not (args.trial and "flashinfer" in name)]
    names = every if args.parts is None else args.parts.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown or args.json is None:
        parser.error(f"--parts must be of {', '.join(PARTS)}, got {', '.join(unknown)}" if unknown else "--json FILE")
    if not args.time_factor > 0:
        parser.error(f"--time-factor must be more than 0, got {args.time_factor}")
    run_in = _in_process if args.trial else _in_child

    def run(part: Part, left: float) -> dict[str, Any]:
        return run_in(replace(part, seconds=part.seconds * args.time_factor), setting, left)

    results = run_parts(names, run, args.json, ALL_SECONDS * args.time_factor)
    failed = [name for name, result in results.items() if "error" in result]
    for name, result in results.items():
        print(f"{name}: {result.get('error') or json.dumps(result.get('reached', 'done'))}")
    return 1 if failed else 0


def run_parts(
    names: Sequence[str], run: Callable[[Part, float], dict[str, Any]], path: Path, limit: float = ALL_SECONDS
) -> dict[str, dict[str, Any]]:
    """Run parts in order and write the results after each.

    Args:
        run: runs a part, given the seconds that are left for all.
        limit: seconds for all of them.
    """
    began = time.perf_counter()
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        left = limit - (time.perf_counter() - began)
        results[name] = run(PARTS[name], left) if left > 0 else {"error": f"not begun: {limit} seconds were over"}
        took = round(time.perf_counter() - began, 1)
        content = {"format": FORMAT, "took_seconds": took, "parts": results}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return results


def missing(error: ModuleNotFoundError) -> str:
    """Return what to install."""
    package = str(error.name).partition(".")[0]
    return f"needs the package {package}, which is not installed (pip install {package})"


def _in_process(part: Part, setting: Setting, left: float) -> dict[str, Any]:
    return part.run(setting)


def _in_child(part: Part, setting: Setting, left: float) -> dict[str, Any]:
    """Run a part in a process of its own: after an illegal access no other part of the process could use the device."""
    command = [sys.executable, str(Path(__file__).resolve()), "--here", part.module, *["--trial"] * setting.tiny]
    seconds = min(part.seconds, left)
    print(f"{part.module} ...", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {seconds:.0f} seconds; --time-factor gives more"}
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if not lines:
        return {"error": f"ended with status {done.returncode}", "traceback": done.stderr[-4000:]}
    result: dict[str, Any] = json.loads(lines[-1].removeprefix(RESULT))
    return result


if __name__ == "__main__":
    sys.exit(main())
