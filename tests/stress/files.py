"""Damage files of each kind that Sluice reads, one way at a time, and look what becomes of them.

    nice python tests/stress/files.py --count 1000 --json files.json

Each file is read in a process of its own, whose time and memory are those of this file:

    gguf              a checkpoint in one file: model and tokenizer
    safetensors       the weights of a checkpoint
    config            its config.json
    tokenizer         its tokenizer.json
    tokenizer_config  its tokenizer_config.json, with the chat template
    generation        its generation_config.json
    trace             the file of --trace, summed up and replayed
    pages             the file of --kv-disk, looked into and opened

A third of the files have one to four flipped bits, most of them in the head; a sixth are cut off; the others lie: a
number or a text is replaced by another one, drawn over every key. A file is *read*, or *refused* by one sentence.
Everything else is wrong: a traceback, an end by a signal, more than `MOST_SECONDS`, or more than 1.2 times the memory
that the whole file takes. The exit status is 1 if anything is wrong. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1:3])  # tests, and the repository

import torch
import transformers

from gguf_makers import write_gguf
from random_checkpoint import random_checkpoint
from sluice import LLM, SamplingParams
from sluice.cli import main as cli
from sluice.config import ConfigError
from sluice.http.base.early_checks import check_model
from sluice.models.checkpoint import CheckpointError
from sluice.models.hub import resolve_checkpoint
from sluice.models.loader import load_model
from sluice.text.tokenizer import TokenizerError
from sluice.text.tokenizer_files import load_tokenizer
from stress.written import show

MOST_SECONDS, MEMORY_FACTOR, KILLED_AFTER = 5.0, 1.2, 20
LIES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 1 << 20, 1 << 31, (1 << 63) - 1, 1 << 64, 0.5, -1.5, 1e308),
    *("", "x", "\ud800", "a" * 100_000, None, True, [], {}, [[]], {"a": {}}, [0] * 10_000),
)
MOST_LINES = 2
"""Lines of a refusal: the sentence, and a note of the command that wrote it."""
HEAD = 4096
"""Bytes at the beginning, which most flips are in."""


class Result(NamedTuple):
    """What became of a file."""

    kind: str
    """`read`, `refused`, or what is wrong."""
    detail: str
    seconds: float
    mib: float


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Args:
        path: of the whole file.
        read: reads what is at this path. Raises one of `REFUSALS`, or returns why the file is refused.
        lie: returns the bytes of a file with one thing replaced; None: bits are flipped instead.
    """

    path: Path
    read: Callable[[], str | None]
    lie: Callable[[bytes, random.Random], bytes] | None = None


REFUSALS = (CheckpointError, TokenizerError, ConfigError)


def load_folder(folder: Path) -> None:
    load_model(folder, device=torch.device("cpu"), dtype="auto", progress=False)


def read_tokenizer(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    try:
        tokenizer.decode(tokenizer.encode("The river rises."))
    finally:
        tokenizer.close()


def read_gguf(path: Path, cache: Path) -> None:
    folder = resolve_checkpoint(str(path), cache=cache)
    load_folder(folder)
    read_tokenizer(folder)


def run_commands(*commands: tuple[str, ...]) -> str | None:
    """Run commands of the command line. Returns what one wrote that failed."""
    for command in commands:
        written = io.StringIO()
        with contextlib.redirect_stderr(written), contextlib.redirect_stdout(io.StringIO()):
            status = cli(list(command))
        if status:
            return written.getvalue() or f"status {status}"
    return None


def lie_in_json(content: bytes, draw: random.Random) -> bytes:
    """Replace one value of a JSON file, or of one line of several, wherever it is."""
    lines = content.splitlines(keepends=True)
    is_lines = len(lines) > 1 and lines[0].lstrip().startswith(b"{") and lines[0].rstrip().endswith(b"}")
    at = draw.randrange(len(lines)) if is_lines else 0
    value = json.loads(lines[at] if is_lines else content)
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        items = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        found = list(items)
        places += [(each, key) for key, _ in found[:200]]
        waiting += [inner for _, inner in found if isinstance(inner, dict | list)]
    if not places:
        return content[:-1]
    holder, key = draw.choice(places)
    if isinstance(holder, dict) and draw.random() < 0.1:
        del holder[key]
    else:
        holder[key] = draw.choice(LIES)
    text = json.dumps(value).encode()
    return b"".join([*lines[:at], text, b"\n", *lines[at + 1 :]]) if is_lines else text


def lie_in_safetensors(content: bytes, draw: random.Random) -> bytes:
    """Replace one value of the header, or its length."""
    size = int.from_bytes(content[:8], "little")
    if draw.random() < 0.1:
        wrong = draw.choice([0, 1, size - 1, size + 8, len(content), 1 << 31, (1 << 64) - 1])
        return wrong.to_bytes(8, "little") + content[8:]
    header = lie_in_json(content[8 : 8 + size], draw)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def lie_in_numbers(content: bytes, draw: random.Random) -> bytes:
    """Replace eight bytes of the head by a number that asks for much, or for nothing."""
    at = draw.randrange(0, min(len(content), HEAD) - 8)
    number = draw.choice([0, 1, 0xFF, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
    width = draw.choice([1, 4, 8])
    wrong = (number % (1 << 8 * width)).to_bytes(width, "little")
    return content[:at] + wrong + content[at + width :]


def damaged(kind: Kind, content: bytes, draw: random.Random) -> bytes:
    """Return a file with one thing wrong."""
    what = draw.random()
    if what < 1 / 6:
        return content[: draw.randrange(len(content))]
    if what < 1 / 2 or kind.lie is None:
        copy = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            end = min(len(copy), HEAD) if draw.random() < 0.8 else len(copy)
            copy[draw.randrange(end)] ^= 1 << draw.randrange(8)
        return bytes(copy)
    return kind.lie(content, draw)


def tried(read: Callable[[], str | None]) -> tuple[str, str]:
    """Read a file. Returns the kind of the result, and what was said."""
    try:
        said = read()
    except REFUSALS as error:
        said = str(error)
    except MemoryError:
        return "memory", ""
    except BaseException as error:  # noqa: BLE001 - that is what is looked for
        return "traceback", f"{type(error).__name__}: {error}"[:300]
    if said is None:
        return "read", ""
    if "Traceback" in said or len(said.strip().splitlines()) > MOST_LINES:
        return "traceback", said[-300:]
    return "refused", said[-300:]


def apart(read: Callable[[], str | None], log: Path) -> Result:
    """Read a file in a process of its own."""
    answer, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        with log.open("ab") as errors:
            os.dup2(errors.fileno(), 2)
        signal.alarm(KILLED_AFTER)
        os.write(ours, json.dumps(tried(read)).encode()[: 1 << 15])
        os._exit(0)
    os.close(ours)
    began = time.monotonic()
    with open(answer, "rb") as said:
        text = said.read()
    _, status, used = os.wait4(pid, 0)
    seconds, mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    if not text:
        kind = "slow" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else "crash"
        return Result(kind, f"status {status} after {time.monotonic() - began:.1f} s", seconds, mib)
    kind, detail = json.loads(text)
    return Result(kind, detail, seconds, mib)


def kinds(folder: Path) -> dict[str, Kind]:
    """Write whole files of each kind."""
    _ = transformers.AutoModelForCausalLM, transformers.LlamaForCausalLM  # some configs are read by it: its own memory
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    random_checkpoint(checkpoint)
    gguf, _ = write_gguf(checkpoint, folder / "whole.gguf", "Q8_0")
    trace, pages = folder / "trace.jsonl", folder / "pages"
    options = {"max_total_tokens": 512, "page_size": 16, "kv_disk": str(pages), "kv_disk_bytes": 4 << 20}
    with LLM(checkpoint, trace=str(trace), **options) as llm:
        prompts = [[1 + number, *range(1, 90)] for number in range(6)]
        llm.generate(prompts, SamplingParams(max_tokens=8, ignore_eos=True))

    def json_file(name: str, read: Callable[[], None]) -> Kind:
        return Kind(checkpoint / name, read, lie_in_json)

    def config() -> None:
        check_model_folder(checkpoint)
        load_folder(checkpoint)

    return {
        "gguf": Kind(gguf, lambda: read_gguf(gguf, folder / "cache"), lie_in_numbers),
        "safetensors": Kind(checkpoint / "model.safetensors", lambda: load_folder(checkpoint), lie_in_safetensors),
        "config": json_file("config.json", config),
        "tokenizer": json_file("tokenizer.json", lambda: read_tokenizer(checkpoint)),
        "tokenizer_config": json_file("tokenizer_config.json", lambda: read_tokenizer(checkpoint)),
        "generation": json_file("generation_config.json", config),
        "trace": Kind(trace, lambda: run_commands(("trace", str(trace)), ("replay", str(trace))), lie_in_json),
        "pages": Kind(pages, lambda: run_commands(("cache", "inspect", "--verify", str(pages))), lie_in_numbers),
    }


def check_model_folder(folder: Path) -> None:
    from sluice.config import ModelConfig

    check_model(ModelConfig(model=str(folder)))


def storm(kind: Kind, count: int, seed: int, log: Path) -> dict[str, Any]:
    """Damage a file so many times. Returns what became of it, and what is wrong."""
    whole, draw = kind.path.read_bytes(), random.Random(seed)
    calm = apart(kind.read, log)
    assert calm.kind == "read", f"{kind.path} as it was written: {calm}"
    found: Counter[str] = Counter()
    wrong: list[str] = []
    seconds, mib = [], []
    for number in range(count):
        kind.path.write_bytes(damaged(kind, whole, draw))
        result = apart(kind.read, log)
        name = result.kind
        if name in ("read", "refused") and result.seconds > MOST_SECONDS:
            name = "slow"
        elif name in ("read", "refused") and result.mib > MEMORY_FACTOR * calm.mib:
            name = "memory"
        if name not in ("read", "refused"):
            wrong.append(f"{number}: {name}: {result.detail} ({result.seconds:.1f} s, {result.mib:.0f} MiB)")
        found[name] += 1
        seconds.append(result.seconds)
        mib.append(result.mib)
    kind.path.write_bytes(whole)
    return {
        "found": dict(found),
        "seconds_max": max(seconds),
        "mib_whole": calm.mib,
        "mib_max": max(mib),
        "wrong": wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="damaged files of each kind")
    parser.add_argument("--only", nargs="+", default=[], help="kinds of files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        found = kinds(Path(folder))
        for name in args.only or found:
            figures[name] = storm(found[name], args.count, args.seed, Path(folder) / "log")
            print(name, {key: value for key, value in figures[name].items() if key != "wrong"}, flush=True)
            print(*figures[name]["wrong"][:20], sep="\n", flush=True)
    show({"count": args.count, "seed": args.seed, "kinds": figures}, args.json)
    return int(any(each["wrong"] for each in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
