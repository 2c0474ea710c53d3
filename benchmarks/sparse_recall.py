"""Count the needles that sparse policies find, in a haystack of few words and in one of random words.

    python benchmarks/sparse_recall.py --length 8192 --policies full,quest:512:1,quest:2048:1 --disk build/pages

The checkpoint recalls exactly (`exact_recall`), so with `full` every answer is right. Random words widen the bounds of
every page until they tell nothing: there Quest is known to fail.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.exact_recall import SHAPES, Needle, needle_prompts, write_recall_checkpoint
from benchmarks.exact_recall.fillers import among_fillers
from sluice import LLM, SamplingParams

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def found(folder: Path, disk: Path, policy: str, page_size: int, needles: Sequence[Needle]) -> tuple[int, int]:
    """Return how many answers are right, and how many of their tokens."""
    disk.unlink(missing_ok=True)
    options = {"max_total_tokens": 1536, "offload_above": 1024, "chunked_prefill_size": 256, "page_size": page_size}
    size = 1024 * len(needles[0].prompt) + (16 << 20)
    with LLM(folder, dtype="bfloat16", kv_disk=disk, kv_disk_bytes=size, sparse_policy=policy, **options) as llm:
        results = llm.generate([needle.prompt for needle in needles], GREEDY)
    pairs = list(zip(results, needles, strict=True))
    right = sum(result.token_ids == needle.answer for result, needle in pairs)
    return right, sum(a == b for result, needle in pairs for a, b in zip(result.token_ids, needle.answer, strict=False))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8192, help="tokens of the prompts (default: 8192)")
    parser.add_argument("--policies", default="full,quest:512:1,quest:2048:1", help="policies, separated by commas")
    parser.add_argument("--page-size", type=int, default=16, help="tokens of a page (default: 16)")
    parser.add_argument(
        "--disk", type=Path, required=True, metavar="FILE", help="page file of the engine, created empty"
    )
    args = parser.parse_args(arguments)
    random_words = needle_prompts(SHAPES["small"], args.length, DEPTHS, seed=7)
    few_words = among_fillers(SHAPES["small"], random_words)
    with tempfile.TemporaryDirectory(prefix="sluice-recall-") as name:
        folder = write_recall_checkpoint(Path(name), SHAPES["small"])
        for policy in args.policies.split(","):
            for label, needles in (("few words", few_words), ("random words", random_words)):
                right, tokens = found(folder, args.disk, policy, args.page_size, needles)
                print(f"{policy:<16} {label:<12} {right} of {len(needles)} needles, {tokens} tokens", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
