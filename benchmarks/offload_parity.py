"""Compare prompts longer than the KV pool with the same prompts in a pool that holds them, token for token, in float32.

    python benchmarks/make_checkpoint.py --shape llama-3.2-1b --tiny --out build/checkpoints/llama-3.2-1b-tiny
    python benchmarks/offload_parity.py --checkpoint build/checkpoints/llama-3.2-1b-tiny --disk build/pages \
        --json benchmarks/results/offload_parity.json

It runs an engine whose pool holds a quarter of a prompt, for each size of chunk, block and ring. It prints how many
tokens were the same, the largest difference between log-probabilities of the same token, and where tokens differ, how
far apart the two were in the resident run (0 is a tie).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from sluice import LLM, SamplingParams
from sluice.bench.results import machine, versions
from sluice.llm.outputs import Result

PAGE_SIZE = 32
OUTPUTS = 16
TIE = 1e-3
"""Difference below which two log-probabilities in float32 may change places."""


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    draw = random.Random(0)
    vocab = json.loads((args.checkpoint / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    prompts = [[draw.randrange(vocab) for _ in range(args.length - 100 * i)] for i in range(args.prompts)]
    resident = _run(args.checkpoint, prompts, max_total_tokens=2 * args.length * args.prompts)
    found = []
    for chunk, block, ring in product(args.chunks, args.blocks, args.rings):
        options = {"chunked_prefill_size": chunk, "ring_block_tokens": block, "ring_blocks": ring}
        offloaded = _run(
            args.checkpoint,
            prompts,
            max_total_tokens=args.length // 4,
            kv_disk=str(args.disk),
            kv_disk_bytes=args.disk_bytes,
            **options,
        )
        found.append(options | _compared(resident, offloaded))
        print(json.dumps(found[-1]), flush=True)
        args.disk.unlink()
    if args.json is not None:
        record = {"benchmark": "offload_parity", "length": args.length, "machine": machine(), "runs": found}
        args.json.write_text(json.dumps(record | {"versions": versions()}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(run["is_same"] for run in found) else 1


def _run(checkpoint: Path, prompts: list[list[int]], **options: Any) -> list[Result]:
    sampling = SamplingParams(max_tokens=OUTPUTS, temperature=0.0, ignore_eos=True, logprobs=2)
    with LLM(checkpoint, dtype="float32", page_size=PAGE_SIZE, **options) as llm:
        return llm.generate(prompts, sampling)


def _compared(resident: list[Result], offloaded: list[Result]) -> dict[str, Any]:
    same, apart, gaps = 0, 0.0, []
    for one, other in zip(resident, offloaded, strict=True):
        for mine, theirs in zip(one.logprobs or (), other.logprobs or (), strict=True):
            if mine.token_id != theirs.token_id:
                by_token = dict(mine.top)
                gaps.append(abs(mine.logprob - by_token.get(theirs.token_id, float("-inf"))))
                break
            same += 1
            apart = max(apart, abs(mine.logprob - theirs.logprob))
    is_same = apart <= TIE and all(gap <= TIE for gap in gaps)
    total = sum(len(result.token_ids) for result in resident)
    return {"is_same": is_same, "same_tokens": same, "of": total, "apart": apart, "ties": gaps}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--disk", type=Path, required=True, metavar="FILE", help="page file, created and removed")
    parser.add_argument("--disk-bytes", type=int, default=1 << 30, help="size of the page file (default: 1 GiB)")
    parser.add_argument("--length", type=int, default=16_384, help="tokens of a prompt (default: 16384)")
    parser.add_argument("--prompts", type=int, default=2, help="number of prompts (default: 2)")
    parser.add_argument("--chunks", type=int, nargs="+", default=[256, 1024], help="chunk sizes (default: 256 1024)")
    parser.add_argument(
        "--blocks", type=int, nargs="+", default=[512, 2048], help="tokens of a ring block (default: 512 2048)"
    )
    parser.add_argument("--rings", type=int, nargs="+", default=[2, 3, 8], help="blocks of the ring (default: 2 3 8)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
