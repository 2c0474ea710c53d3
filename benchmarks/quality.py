"""Measure what formats of weights and of KV cost a model: perplexity, and agreement with float32, on a text of ours.

    python benchmarks/quality.py MODEL.gguf --json benchmarks/results/quality.json
    python benchmarks/quality.py MODEL.gguf --only stored,int8 --tokens 2048
    python benchmarks/quality.py MODEL.gguf --llama-python VENV/bin/python    # a Python with llama-cpp-python

The text is English and code (`benchmarks/texts`), in windows of 512 tokens. All variants read the same token ids. The
reference has the same weights, dequantised, and computes in float32. For each variant:

    perplexity      and its change from the reference, in percent, with the standard error of the change
    same            positions at which the likeliest token is the reference's, in percent
    apart           root mean square of the differences of the log-probabilities of the text's tokens. Half of its
                    square is what a change of the perplexity would be on text that the model itself wrote
    largest         the largest of these differences

The variants of llama.cpp are computed by it, from the same file: with KV in float16, and in q8_0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sluice import LLM, SamplingParams
from sluice.bench.results import machine, versions
from sluice.text.tokenizer_files import load_tokenizer

TEXTS = tuple(Path(__file__).parent / "texts" / name for name in ("english.txt", "code.txt"))
WINDOW = 512
REFERENCE = "float32"
VARIANTS: Mapping[str, Mapping[str, str]] = {
    REFERENCE: {"dtype": "float32", "quantization": "none"},
    "bfloat16": {"dtype": "bfloat16", "quantization": "none"},
    "stored": {},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "bfloat16 kv int8": {"dtype": "bfloat16", "quantization": "none", "kv_cache_dtype": "int8"},
    "stored kv int8": {"kv_cache_dtype": "int8"},
}
"""Options of `LLM`; none: those of the file."""
LLAMA_CPP = {"llama.cpp": "f16", "llama.cpp kv q8_0": "q8_0"}
"""KV types."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What a variant says of each token but the first of every window."""

    logprobs: Sequence[float]
    """Of the text's tokens."""
    likeliest: Sequence[int]
    """Token ids."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a variant costs. The fields are described at the head of this file."""

    perplexity: float
    change: float
    change_error: float
    same: float
    apart: float
    largest: float
    seconds: float


def windows(llm: LLM, tokens: int) -> list[list[int]]:
    """Return the token ids of the texts in windows, the same number of each text."""
    of_each = max(1, tokens // WINDOW // len(TEXTS))
    found: list[list[int]] = []
    tokenizer = load_tokenizer(llm.info.tokenizer_folder, chat=False)
    for path in TEXTS:
        ids = tokenizer.encode(path.read_text(encoding="utf-8"))[: of_each * WINDOW]
        found += [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)]
    return found


def scored(llm: LLM, parts: Sequence[Sequence[int]]) -> Scored:
    """Return what a loaded model says of windows."""
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    logprobs, likeliest = [], []
    for part in parts:
        (result,) = llm.generate([list(part)], params)
        assert result.prompt_logprobs is not None
        for token in result.prompt_logprobs[1:]:
            assert token is not None
            logprobs.append(token.logprob)
            likeliest.append(token.top[0][0])
    return Scored(logprobs, likeliest)


def scored_by_llama_cpp(python: str, model: Path, kv: str, parts: Sequence[Sequence[int]]) -> Scored:
    """Return what llama.cpp says of windows."""
    script = Path(__file__).parent / "peers" / "llama_cpp_scores.py"
    request = json.dumps({"model": str(model), "kv": kv, "windows": parts})
    done = subprocess.run([python, str(script)], input=request, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"llama.cpp failed: {done.stderr[-2000:]}")
    return Scored(**json.loads(done.stdout))


def figures(found: Scored, reference: Scored, seconds: float) -> Figures:
    """Compare a variant with the reference."""
    differences = [ours - theirs for ours, theirs in zip(reference.logprobs, found.logprobs, strict=True)]
    mean, count = statistics.fmean(differences), len(differences)
    spread = statistics.pstdev(differences) / math.sqrt(count)
    equal = sum(ours == theirs for ours, theirs in zip(reference.likeliest, found.likeliest, strict=True))
    return Figures(
        perplexity=math.exp(-statistics.fmean(found.logprobs)),
        change=100 * math.expm1(mean),
        change_error=100 * spread,
        same=100 * equal / count,
        apart=math.sqrt(statistics.fmean(each * each for each in differences)),
        largest=max(map(abs, differences)),
        seconds=seconds,
    )


def report(rows: Mapping[str, Figures]) -> str:
    """Return a table in Markdown."""
    lines = ["| | perplexity | change | same | apart | largest |", "|---|---|---|---|---|---|"]
    for name, row in rows.items():
        change = f"{row.change:+.2f}% ({row.change_error:.2f})"
        lines.append(
            f"| {name} | {row.perplexity:.3f} | {change} | {row.same:.1f}% | {row.apart:.3f} | {row.largest:.2f} |"
        )
    return "\n".join(lines)


def measured(args: argparse.Namespace, parts: list[list[int]]) -> dict[str, Figures]:
    """Run the variants, the reference first."""
    chosen = [name for name in VARIANTS if name == REFERENCE or not args.only or name in args.only]
    rows: dict[str, Figures] = {}
    reference: Scored | None = None
    for name in chosen:
        options: dict[str, Any] = {**VARIANTS[name], "max_total_tokens": 4 * WINDOW, "threads": args.threads}
        start = time.perf_counter()
        with LLM(args.model, **options) as llm:
            if not parts:
                parts += windows(llm, args.tokens)
            found = scored(llm, parts)
        reference = reference or found
        rows[name] = figures(found, reference, round(time.perf_counter() - start, 1))
        print(name, rows[name], file=sys.stderr, flush=True)
    for name, kv in LLAMA_CPP.items() if args.llama_python else ():
        assert reference is not None
        start = time.perf_counter()
        found = scored_by_llama_cpp(args.llama_python, Path(args.model), kv, parts)
        rows[name] = figures(found, reference, round(time.perf_counter() - start, 1))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint folder, or a GGUF file")
    parser.add_argument("--only", type=lambda text: text.split(","), help="variants beside the reference, with commas")
    parser.add_argument("--tokens", type=int, default=5120, help="tokens of the text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--llama-python", help="a Python that has llama-cpp-python")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    unknown = set(args.only or ()) - set(VARIANTS)
    if unknown:
        parser.error(f"unknown variants {', '.join(sorted(unknown))}; known: {', '.join(VARIANTS)}")
    parts: list[list[int]] = []
    rows = measured(args, parts)
    print(report(rows))
    if args.json is not None:
        result = {
            "model": Path(args.model).name,
            "text": hashlib.sha256(b"".join(path.read_bytes() for path in TEXTS)).hexdigest(),
            "tokens": sum(map(len, parts)),
            "window": WINDOW,
            "machine": machine(),
            "versions": versions(("torch", "gguf")),
            "rows": {name: asdict(row) for name, row in rows.items()},
        }
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
