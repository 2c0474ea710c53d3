"""Measure needles in long contexts: whether they are found at every depth, the time it takes, and the memory.

    python benchmarks/needles.py --lengths 16K,64K,256K --out build/needles --disk build/pages \\
        --option max_total_tokens=16384 --option chunked_prefill_size=2048 --option page_size=256 \\
        --option ring_blocks=4 --option ring_block_tokens=8192 --option offload_above=8192

Each length runs in a process of its own: a checkpoint that recalls exactly (`exact_recall`), one haystack with needles
at 0, 25, 50, 75 and 100% depth, and a question for each. The haystack is read first, the questions find it in the
cache. PREFIX.json is written after each length: time, RssAnon of the process, bytes by part. A length
that would take longer than --seconds is left out. How long it takes is printed first: estimated from the shorter ones,
or from what the machine does in a matrix product and in reads.

With --pieces a haystack is read in pieces of so many seconds, each by a process that goes on behind what lies in the
page file. If it is interrupted, the same command goes on. Times are added up; those of a piece that was interrupted are
not known, and left out. --resident reads each length with a pool that holds it, too. --sparse-prefill is a row of its
own: it reads the haystack with a window (`long_context/sparse_prefill.py`), and answers with full attention.
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
from benchmarks.long_context.cost import CostDevice, CostModel, prefill_cost
from benchmarks.long_context.reading import Task
from benchmarks.long_context.sparse_prefill import POLICY
from benchmarks.long_context.speed import Speed, measured_speed
from sluice.assembly.offloading import CHUNK_TOKENS
from sluice.bench.results import IN_PROCESS_PACKAGES, machine, versions
from sluice.types.footprint import KVSizes

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
PIECES, RATE = "pieces", "prefill, GFLOP/s"
RESIDENT, SPARSE = " resident", " sparse prefill"
"""What follows the length in the labels of other rows."""
OFFLOADING = ("offload_above", "ring_blocks", "ring_block_tokens", "sparse_policy")
"""Options that a pool which holds everything does not take."""
MLP_SIZE = 64
"""Inner size of the checkpoints' MLP."""


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


def write_task(
    folder: Path, shape: RecallShape, length: int, options: dict[str, Any], seconds: float | None = None
) -> Path:
    """Write the task of one length, `length` tokens with the question, to a file."""
    needles = needle_prompts(shape, length, DEPTHS, seed=length)
    haystack = folder / "haystack.npy"
    np.save(haystack, np.array(needles[0].prompt[: -shape.previous], dtype=np.int32))
    keys = tuple(needle.prompt[-shape.previous :] for needle in needles)
    answers = tuple(needle.answer for needle in needles)
    path = folder / "task.json"
    path.write_text(json.dumps(asdict(Task(str(haystack), keys, answers, options, seconds))))
    return path


def disk_options(
    disk: Path | None, shape: RecallShape, length: int, dtype: str, *, goes_on: bool = False
) -> dict[str, Any]:
    """Return options of a page file that holds a context of this length; none without a disk.

    Args:
        goes_on: it is the file of an earlier piece, and is kept.
    """
    if disk is None:
        return {}
    if not goes_on:
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


def read_in_pieces(task: Path, pieces: list[dict[str, Any]], note: Path | None) -> dict[str, Any]:
    """Run the task again and again, until a process has read the haystack to its end. Return the last report, with all
    pieces.

    Args:
        pieces: earlier ones; those that follow are added.
        note: where they are written after each.

    Raises:
        RuntimeError: a process failed, or read nothing.
    """
    while True:
        found = read_apart(task)
        piece = found["piece"]
        pieces.append(piece)
        if note is not None:
            note.write_text(json.dumps(pieces, indent=1) + "\n", encoding="utf-8")
        if piece["is_last"]:
            return found | {"pieces": pieces}
        if piece["stop"] <= piece["first"]:
            raise RuntimeError(f"a piece of {piece['seconds']:.0f} s read nothing behind token {piece['first']}")
        print(f"        read {piece['first']} to {piece['stop']} in {piece['seconds']:.0f} s", flush=True)


def figures_of(label: str, found: dict[str, Any], model: CostModel) -> dict[str, float]:
    """Return the figures of a reading, in units for readers. What a sparse prefill computes is not counted."""
    pieces, questions = found["pieces"], found["questions"]
    loaded = {name: sum(piece["loaded"][name] for piece in pieces) for name in ("bytes", "seconds", "waited")}
    seconds, tokens = sum(piece["seconds"] for piece in pieces), len(questions) * 7
    flop = prefill_cost(model, CostDevice(1.0, 1.0), pieces[-1]["stop"], 1).flop
    return {
        RIGHT: sum(each["is_right"] for each in questions),
        PIECES: len(pieces),
        PREFILL: seconds,
        **({} if label.endswith(SPARSE) else {RATE: flop / seconds / 1e9}),
        QUESTION: sum(each["ttft"] for each in questions) / len(questions),
        DECODE: 1000 * sum(each["decode"] for each in questions) / tokens,
        LOADED: loaded["bytes"] / 1e9,
        HIDDEN: 100 * max(0.0, 1 - loaded["waited"] / max(loaded["seconds"], 1e-9)),
        IDLE: found["idle_anonymous"] / MIB,
        ANON: found["peak_anonymous"] / MIB,
        DEVICE_KV: found["memory"]["device_kv_bytes"] / MIB,
        BENEATH: (found["predicted"]["host_bytes"] + found["predicted"]["disk_bytes"]) / MIB,
        **found["speed"],
    }


def cost_model(shape: RecallShape, dtype: str) -> CostModel:
    """Return what determines the time of a checkpoint."""
    kv = KVSizes(NUM_LAYERS, shape.num_kv_heads, shape.head_dim, 2 if dtype == "bfloat16" else 4)
    return CostModel(kv, shape.num_heads, shape.hidden_size, MLP_SIZE)


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        lengths = {text: tokens_of(text) for text in args.lengths.split(",")}
        options: dict[str, Any] = {"dtype": args.dtype, **dict(option_of(text) for text in args.option)}
        if not args.out.parent.is_dir():
            raise ValueError(f"--out must be in a folder that exists, got {args.out}")
        if args.pieces is not None and (args.disk is None or args.pieces <= 0):
            raise ValueError(f"--pieces must be seconds, beside --disk FILE, got {args.pieces:g}")
        if args.sparse_prefill and args.disk is None:
            raise ValueError("--sparse-prefill needs --disk FILE")
        shape = replace(SHAPES[args.size], max_positions=max(max(lengths.values()) + ROOM, args.positions))
    except ValueError as error:
        print(f"needles: error: {error}", file=sys.stderr)
        return 1
    model = cost_model(shape, args.dtype)
    readings = _earlier(args, shape, options) if args.pieces is not None else {}
    skipped: list[str] = []
    failed = False
    suffixes = [SPARSE if args.sparse_prefill else "", *[RESIDENT] * args.resident]
    with tempfile.TemporaryDirectory(prefix="sluice-needles-") as name:
        checkpoint = {"model": str(write_recall_checkpoint(Path(name) / "checkpoint", shape))}
        for label, length in [(text + suffix, lengths[text]) for text in lengths for suffix in suffixes]:
            if label in readings:
                print(f"{label:>6}  was read before", flush=True)
                continue
            speed = measured_speed(int(options.get("threads", 1)))
            foreseen = _foreseen(readings, label, length, model, speed, options)
            if foreseen > args.seconds:
                skipped.append(label)
                print(f"{label:>6}  left out: it would take {foreseen:.0f} s, more than {args.seconds:g} s", flush=True)
                continue
            print(f"{label:>6}  to be read in {foreseen:.0f} s", flush=True)
            try:
                readings[label] = _read(args, Path(name), shape, label, length, options | checkpoint)
            except RuntimeError as error:
                print(f"needles: error: {label}: {error}", file=sys.stderr)
                failed = True
                break
            readings[label]["speed"] = speed.figures()
            figures = figures_of(label, readings[label], model)
            failed = failed or figures[RIGHT] < len(DEPTHS)
            print(f"{label:>6}  " + "  ".join(f"{name} {value:.4g}" for name, value in figures.items()), flush=True)
            _write(args, shape, options, readings, skipped)
    if readings:
        _write(args, shape, options, readings, skipped)
    return int(failed)


def _read(
    args: argparse.Namespace, folder: Path, shape: RecallShape, label: str, length: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Read one length, as its label says."""
    if label.endswith(RESIDENT):
        kept = {name: value for name, value in options.items() if name not in OFFLOADING}
        page_size = int(options.get("page_size", 256))
        room = (length + ROOM + page_size) // page_size * page_size
        return read_in_pieces(write_task(folder, shape, length, kept | {"max_total_tokens": room}), [], None)
    note = None if args.pieces is None else args.out.with_name(f"{args.out.name}-{label.replace(' ', '-')}-pieces.json")
    pieces: list[dict[str, Any]] = []
    if note is not None and note.exists() and args.disk.exists():
        pieces = json.loads(note.read_text(encoding="utf-8"))
    own = options | disk_options(args.disk, shape, length, args.dtype, goes_on=bool(pieces))
    if label.endswith(SPARSE):
        own |= {"sparse_policy": POLICY}
    found = read_in_pieces(write_task(folder, shape, length, own, args.pieces), pieces, note)
    if note is not None:
        note.unlink()
    return found


def _earlier(args: argparse.Namespace, shape: RecallShape, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what a run of the same command has read."""
    path = args.out.with_name(f"{args.out.name}.json")
    if not path.exists():
        return {}
    record = json.loads(path.read_text(encoding="utf-8"))
    is_same = record["shape"] == asdict(shape) and record["options"] == options
    return dict(record["readings"]) if is_same else {}


def _foreseen(
    readings: dict[str, dict[str, Any]],
    label: str,
    length: int,
    model: CostModel,
    speed: Speed,
    options: dict[str, Any],
) -> float:
    """Estimate the seconds of a length from the longest of its kind so far: they grow with its square, those of a
    sparse prefill as the length does. Without one, from what the machine does."""
    suffix = label.lstrip("0123456789KM")
    alike = {name: found["pieces"] for name, found in readings.items() if name.lstrip("0123456789KM") == suffix}
    if alike:
        pieces = max(alike.values(), key=lambda each: int(each[-1]["stop"]))
        ratio = length / pieces[-1]["stop"]
        return float(sum(piece["seconds"] for piece in pieces)) * (ratio if suffix == SPARSE else ratio**2)
    device = CostDevice(speed.flops, speed.loading)
    chunk = int(options.get("chunked_prefill_size", CHUNK_TOKENS["cpu"]))
    return prefill_cost(model, device, length, chunk).seconds


def _write(
    args: argparse.Namespace,
    shape: RecallShape,
    options: dict[str, Any],
    readings: dict[str, dict[str, Any]],
    skipped: Sequence[str],
) -> None:
    model = cost_model(shape, args.dtype)
    figures = {label: figures_of(label, found, model) for label, found in readings.items()}
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PREFIX", help="path of the results, without an ending"
    )
    parser.add_argument("--lengths", default="16K,64K,256K", help="tokens of the prompts (default: 16K,64K,256K)")
    parser.add_argument("--size", default="small", choices=SHAPES, help="size of the checkpoint (default: small)")
    parser.add_argument("--dtype", default="bfloat16", help="dtype of the model (default: bfloat16)")
    parser.add_argument("--disk", type=Path, metavar="FILE", help="page file of the engine, created empty")
    parser.add_argument("--pieces", type=float, metavar="SECONDS", help="read in pieces of so many seconds")
    parser.add_argument("--resident", action="store_true", help="read each length with a pool that holds it, too")
    parser.add_argument("--sparse-prefill", action="store_true", help="read the haystack with a window")
    parser.add_argument("--positions", type=int, default=1 << 20, help="least context of the checkpoint (default: 1M)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit of one length (default: 3600)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the engine; may be repeated"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
