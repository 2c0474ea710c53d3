"""Measure needles in long contexts: whether they are found at every depth, the time it takes, and the memory.

    python benchmarks/needles.py --lengths 16K,64K,256K --out build/needles --disk build/pages \\
        --option max_total_tokens=16384 --option chunked_prefill_size=2048 --option page_size=256 \\
        --option ring_blocks=4 --option ring_block_tokens=8192 --option offload_above=8192

Each length runs in a process of its own: a checkpoint that recalls exactly (`exact_recall`), one haystack with needles
at 0, 25, 50, 75 and 100% depth, and a question for each. The first question reads the prompt, the others find it in the
cache. PREFIX.json and PREFIX.html are written after each length: time, RssAnon of the process, bytes by part. A length
that would take longer than --seconds, estimated from the shorter ones, is left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.exact_recall import SHAPES, RecallShape, needle_prompts, write_recall_checkpoint
from benchmarks.exact_recall.construction import NUM_LAYERS
from benchmarks.figures_page import Plot, page
from benchmarks.long_context.reading import Task
from sluice.bench.results import IN_PROCESS_PACKAGES, machine, versions
from sluice.footprint import KVSizes

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
UNITS = {"K": 1 << 10, "M": 1 << 20}
MIB = 1 << 20
ROOM = 64
"""Tokens of a context beside the prompt."""
FILE_SHARE, FILE_LEAST = 1.3, 16 << 20
"""Size of a page file: a factor for its content, for pages that are not full, and bytes for its index."""
PREFILL, QUESTION, DECODE = "prefill, s", "later questions' TTFT, s", "a decoded token, ms"
LOADED, HIDDEN = "loaded in prefill, GB", "of this hidden behind compute, %"
ANON, IDLE, DEVICE_KV = "RssAnon at most, MiB", "RssAnon idle, MiB", "KV on the device, MiB"
BENEATH, RIGHT = "KV beneath, MiB", "right, of 5"
CONTEXT = "tokens of the context"
PLOTS = (
    Plot(
        "memory", "Memory: what grows with the context, and what does not", "MiB", (ANON, DEVICE_KV, BENEATH), CONTEXT
    ),
    Plot("prefill", "Time to read the prompt", "s", (PREFILL,), CONTEXT),
    Plot("decode", "Time of a decoded token", "ms", (DECODE,), CONTEXT),
)


def tokens_of(text: str) -> int:
    """Read a number of tokens, such as 300, 16K or 1M.

    Raises:
        ValueError: the text has another form.
    """
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"a length must be a number, optionally followed by K or M, got {text!r}")
    return int(number) * unit


def option_of(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE.

    Raises:
        ValueError: the text has another form.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"an option must be NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def write_task(folder: Path, shape: RecallShape, length: int, options: dict[str, Any]) -> Path:
    """Write the task of one length, `length` tokens with the question, to a file."""
    needles = needle_prompts(shape, length, DEPTHS, seed=length)
    haystack = folder / "haystack.npy"
    np.save(haystack, np.array(needles[0].prompt[: -shape.previous], dtype=np.int32))
    keys = tuple(needle.prompt[-shape.previous :] for needle in needles)
    answers = tuple(needle.answer for needle in needles)
    path = folder / "task.json"
    path.write_text(json.dumps(asdict(Task(str(haystack), keys, answers, options))))
    return path


def disk_options(disk: Path | None, shape: RecallShape, length: int, dtype: str) -> dict[str, Any]:
    """Return options of a new page file that holds a context of this length; none without a disk."""
    if disk is None:
        return {}
    disk.unlink(missing_ok=True)
    kv = KVSizes(NUM_LAYERS, shape.num_kv_heads, shape.head_dim, 2 if dtype == "bfloat16" else 4)
    return {"kv_disk": str(disk), "kv_disk_bytes": int(FILE_SHARE * (length + ROOM) * kv.token_bytes) + FILE_LEAST}


def read_apart(task: Path) -> dict[str, Any]:
    """Run the task in a process of its own, and return its report.

    Raises:
        RuntimeError: the process failed; the message is its last line.
    """
    command = [sys.executable, "-m", "benchmarks.long_context.reading", str(task)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no error message"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def figures_of(found: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a reading, in units for readers."""
    first, *later = found["questions"]
    tokens = len(found["questions"]) * 7
    return {
        RIGHT: sum(each["is_right"] for each in found["questions"]),
        PREFILL: first["ttft"],
        QUESTION: sum(each["ttft"] for each in later) / len(later),
        DECODE: 1000 * sum(each["decode"] for each in found["questions"]) / tokens,
        LOADED: first["loaded"]["bytes"] / 1e9,
        HIDDEN: 100 * max(0.0, 1 - first["loaded"]["waited"] / max(first["loaded"]["seconds"], 1e-9)),
        IDLE: found["idle_anonymous"] / MIB,
        ANON: found["peak_anonymous"] / MIB,
        DEVICE_KV: found["memory"]["device_kv_bytes"] / MIB,
        BENEATH: (found["predicted"]["host_bytes"] + found["predicted"]["disk_bytes"]) / MIB,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        lengths = {text: tokens_of(text) for text in args.lengths.split(",")}
        options: dict[str, Any] = {"dtype": args.dtype, **dict(option_of(text) for text in args.option)}
        if not args.out.parent.is_dir():
            raise ValueError(f"--out must be in a folder that exists, got {args.out}")
        shape = replace(SHAPES[args.size], max_positions=max(max(lengths.values()) + ROOM, args.positions))
    except ValueError as error:
        print(f"needles: error: {error}", file=sys.stderr)
        return 1
    readings: dict[str, dict[str, Any]] = {}
    skipped: list[str] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="sluice-needles-") as name:
        model = {"model": str(write_recall_checkpoint(Path(name) / "checkpoint", shape))}
        for label, length in lengths.items():
            if _foreseen(readings, lengths, length) > args.seconds:
                skipped.append(label)
                print(f"{label:>6}  left out: it would take more than {args.seconds:g} s", flush=True)
                continue
            try:
                own = options | model | disk_options(args.disk, shape, length, args.dtype)
                readings[label] = read_apart(write_task(Path(name), shape, length, own))
            except RuntimeError as error:
                print(f"needles: error: {label}: {error}", file=sys.stderr)
                failed = True
                break
            figures = figures_of(readings[label])
            failed = failed or figures[RIGHT] < len(DEPTHS)
            print(f"{label:>6}  " + "  ".join(f"{name} {value:.4g}" for name, value in figures.items()), flush=True)
            _write(args, shape, options, readings, skipped)
    if readings:
        _write(args, shape, options, readings, skipped)
    return int(failed)


def _foreseen(readings: dict[str, dict[str, Any]], lengths: dict[str, int], length: int) -> float:
    """Estimate the seconds of a length from the longest so far: they grow with its square."""
    if not readings:
        return 0.0
    label = max(readings, key=lengths.__getitem__)
    return float(readings[label]["questions"][0]["ttft"]) * (length / lengths[label]) ** 2


def _write(
    args: argparse.Namespace,
    shape: RecallShape,
    options: dict[str, Any],
    readings: dict[str, dict[str, Any]],
    skipped: Sequence[str],
) -> None:
    figures = {label: figures_of(found) for label, found in readings.items()}
    record = {
        "benchmark": "needles",
        "shape": asdict(shape),
        "options": options,
        "depths": DEPTHS,
        "figures": figures,
        "readings": readings,
        "left_out": skipped,
        "versions": versions(IN_PROCESS_PACKAGES),
        "machine": machine(),
    }
    args.out.with_name(f"{args.out.name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    introduction = (
        f"A checkpoint that recalls exactly ({args.size}, {args.dtype}), five needles for each length;"
        f" {record['machine']['processor']}, {record['machine']['usable_cores']} cores."
    )
    html = page("Needles in long contexts", introduction, figures, PLOTS, record, of="tokens")
    args.out.with_name(f"{args.out.name}.html").write_text(html, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PREFIX", help="path of the results, without an ending"
    )
    parser.add_argument("--lengths", default="16K,64K,256K", help="tokens of the prompts (default: 16K,64K,256K)")
    parser.add_argument("--size", default="small", choices=SHAPES, help="size of the checkpoint (default: small)")
    parser.add_argument("--dtype", default="bfloat16", help="dtype of the model (default: bfloat16)")
    parser.add_argument("--disk", type=Path, metavar="FILE", help="page file of the engine, created empty")
    parser.add_argument("--positions", type=int, default=1 << 20, help="least context of the checkpoint (default: 1M)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit of one length (default: 3600)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the engine; may be repeated"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
