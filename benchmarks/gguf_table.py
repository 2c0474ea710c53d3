"""Compare Sluice with llama.cpp on one GGUF file: start, memory, decode and prefill, in turns.

    python benchmarks/gguf_table.py MODEL.gguf --llama-python VENV/bin/python    # a Python with llama-cpp-python
    python benchmarks/gguf_table.py MODEL.gguf --only stored --turns 1

Each turn runs every contender once, in a process of its own; the table has medians of the turns. Both have the same
threads, a KV of 2,048 tokens in 16 bits, and prompts of the same random token ids.

    start       seconds from the start of a process until it is ready: of Sluice, the server, when /health says so; of
                llama.cpp, a Python that has loaded the model and computed a token, since its server in Python is slower
    memory      MB of the process without the KV and shared libraries' clean pages, once the model is loaded and used
    batch 1, 8  milliseconds of a decode step of as many sequences, of about 100 tokens each
    prefill     seconds of a prompt of 650 tokens (`--prompt`) and its first token
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sluice import LLM, SamplingParams
from sluice.bench.results import machine, versions

OURS: Mapping[str, Mapping[str, str]] = {
    "stored": {},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}
"""Options of `LLM`; none: those of the file."""
LLAMA_CPP = "llama.cpp"
TOKENS = 2048
"""Of the KV."""
PROMPT, LONG_PROMPT, STEPS = 64, 650, 64
VOCABULARY = 1000, 30_000
"""Token ids from and to which prompts are drawn: no special ones."""
PATIENCE_S = 300
FIGURES = ("start_s", "memory_mb", "batch_1_ms", "batch_8_ms", "prefill_s")


@dataclass(frozen=True, slots=True)
class Work:
    """What a child measures."""

    model: str
    threads: int
    options: Mapping[str, str]
    """Of `LLM`; llama.cpp has none."""
    prompts: Sequence[Sequence[int]]
    """Eight short ones, one more, and a long one."""
    steps: int
    tokens: int


def prompts(turn: int, long: int) -> list[list[int]]:
    """Return the prompts of a turn, the last one of `long` tokens."""
    draw = random.Random(turn)
    return [[draw.randrange(*VOCABULARY) for _ in range(size)] for size in (*[PROMPT] * 9, long)]


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def private_mb() -> float:
    """Return the memory of this process that no other process has: MB."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line and line[0].isupper())
    return sum(int(fields[name].split()[0]) for name in ("Private_Dirty", "Private_Clean")) / 1000


def measured_here(work: Work) -> dict[str, float]:
    """Measure Sluice in this process."""
    options: dict[str, Any] = {**work.options, "threads": work.threads, "max_total_tokens": work.tokens}
    with LLM(work.model, **options) as llm:

        def seconds(some: Sequence[Sequence[int]], tokens: int) -> float:
            params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
            return timed(lambda: llm.generate([list(each) for each in some], params))

        *eight, one, long = work.prompts
        seconds([long[:PROMPT]], 8)  # what only a first request costs
        found = {}
        # The prompts are cached after the first call: what is added are decodes.
        for name, some in (("batch_1_ms", [one]), ("batch_8_ms", eight)):
            seconds(some, 1)
            found[name] = 1000 * (seconds(some, 1 + work.steps) - seconds(some, 1)) / work.steps
        found["prefill_s"] = seconds([long[::-1]], 1)
        kv = llm.info.kv_sizes.token_bytes * work.tokens / 1e6
        return found | {"memory_mb": private_mb() - kv}


def started(command: Sequence[str], port: int) -> float:
    """Return the seconds until a server answers /health, and end it."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while time.perf_counter() - start < PATIENCE_S and server.poll() is None:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                        return time.perf_counter() - start
                except (urllib.error.URLError, OSError):
                    time.sleep(0.01)
        finally:
            server.terminate()
    raise SystemExit(f"{' '.join(command)} did not start")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def child(command: Sequence[str], work: Work) -> dict[str, float]:
    """Run a child that reads its work from standard input and writes its figures as the last line."""
    done = subprocess.run(command, input=json.dumps(asdict(work)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(name: str, work: Work, llama_python: str) -> dict[str, float]:
    """Measure one contender once."""
    if name == LLAMA_CPP:
        return child(
            [llama_python, str(Path(__file__).parent / "peers" / "llama_cpp_steps.py"), str(time.time())], work
        )
    port = free_port()
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in work.options.items()]
    sizes = ["--threads", str(work.threads), "--max-total-tokens", str(work.tokens)]
    server = [sys.executable, "-m", "sluice", "serve", work.model, "--port", str(port), *sizes, *flags]
    return {"start_s": started(server, port)} | child([sys.executable, __file__, "--child"], work)


def report(rows: Mapping[str, Mapping[str, float]], file_mb: float) -> str:
    """Return a table in Markdown."""
    lines = [
        f"The file has {file_mb:.0f} MB.",
        "",
        "| | start, s | memory, MB | batch 1, ms | batch 8, ms | batch 8, tokens/s | prefill, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        start, memory, one, eight, prefill = (row[figure] for figure in FIGURES)
        speed = 8000 / eight
        lines.append(f"| {name} | {start:.2f} | {memory:.0f} | {one:.1f} | {eight:.1f} | {speed:.0f} | {prefill:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[*OURS], help="variants, with commas")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=LONG_PROMPT, help=f"tokens of the prompt (default: {LONG_PROMPT})")
    parser.add_argument("--llama-python", default="", help="a Python that has llama-cpp-python")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured_here(Work(**json.load(sys.stdin)))))
        return
    if args.model is None or not args.model.is_file():
        parser.error(f"MODEL must be a GGUF file, got {args.model}")
    unknown = set(args.only) - set(OURS)
    if unknown:
        parser.error(f"unknown variants {', '.join(sorted(unknown))}; known: {', '.join(OURS)}")
    if not PROMPT <= args.prompt < TOKENS:
        parser.error(f"--prompt must be from {PROMPT} to {TOKENS - 1}, got {args.prompt}")
    names = [*args.only, *([LLAMA_CPP] if args.llama_python else [])]
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    load = os.getloadavg()
    for turn in range(args.turns):
        for name in names:
            drawn = prompts(turn, args.prompt)
            work = Work(str(args.model.resolve()), args.threads, OURS.get(name, {}), drawn, STEPS, TOKENS)
            turns[name].append(measured(name, work, args.llama_python))
            print(turn, name, turns[name][-1], file=sys.stderr, flush=True)
    rows = {name: {each: statistics.median(one[each] for one in of) for each in FIGURES} for name, of in turns.items()}
    file_mb = args.model.stat().st_size / 1e6
    print(report(rows, file_mb))
    if args.json is not None:
        result = {
            "model": args.model.name,
            "file_mb": file_mb,
            "threads": args.threads,
            "prompt": args.prompt,
            "load": load,
            "machine": machine(),
            "versions": versions(("torch",)),
            "rows": rows,
            "turns": turns,
        }
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
