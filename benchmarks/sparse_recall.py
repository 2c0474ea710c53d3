"""Count what is found with sparse policies, and the share of the true attention that they keep.

    python benchmarks/sparse_recall.py --policies full,quest:512:1,quest:2048:1 --disk build/pages
    python benchmarks/sparse_recall.py --model bundled --length 4000 --policies full,quest:512 --disk build/pages

The first checkpoint recalls exactly (`exact_recall`), so with `full` every answer is right. It is asked for needles in
a haystack of few words and in one of random words, which widen the bounds of every page until they tell nothing: there
Quest is known to fail. The bundled model is asked for facts in prose, as `training.recall` does.

The last lines of each haystack are a run with exact attention, which compares what the policies would have selected
(`long_context/kept_mass.py`): the share of the weights in each layer, and of each of its heads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tokenizers import Tokenizer

from benchmarks.exact_recall import SHAPES, Needle, needle_prompts, write_recall_checkpoint
from benchmarks.exact_recall.fillers import among_fillers
from benchmarks.long_context import kept_mass
from sluice import LLM, SamplingParams
from sluice.assembly.offloading import policy_of
from sluice.config import ConfigError, OffloadConfig
from sluice.models.hub import BUNDLED
from training.planted import Question, question

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
FACTS_EACH = 4
"""Questions for each depth."""


@dataclass(frozen=True, slots=True)
class Haystack:
    """Questions about long prompts."""

    label: str
    tokens: int
    """Of the longest prompt, about."""
    ask: Callable[[LLM], int]
    """Asks all questions, and returns how many answers are right."""
    questions: int


def of_needles(label: str, needles: Sequence[Needle]) -> Haystack:
    def ask(llm: LLM) -> int:
        results = llm.generate([each.prompt for each in needles], SamplingParams(temperature=0.0, max_tokens=8))
        return sum(result.token_ids == each.answer for result, each in zip(results, needles, strict=True))

    return Haystack(label, len(needles[0].prompt), ask, len(needles))


def of_facts(length: int) -> Haystack:
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    asked: list[Question] = [
        question(seed, length, depth, lambda text: len(tokenizer.encode(text).ids))
        for depth in DEPTHS
        for seed in range(FACTS_EACH)
    ]

    def ask(llm: LLM) -> int:
        talks = [[{"role": "user", "content": each.prompt}] for each in asked]
        results = llm.chat(talks, SamplingParams(temperature=0.0, max_tokens=40))
        return sum(each.is_answered_by(result.text) for result, each in zip(results, asked, strict=True))

    return Haystack("facts", length, ask, len(asked))


def engine(folder: Path, disk: Path, haystack: Haystack, policy: str, page_size: int) -> LLM:
    """Return an engine whose page file is empty."""
    disk.unlink(missing_ok=True)
    options: dict[str, Any] = {"max_total_tokens": 1536, "offload_above": 1024, "chunked_prefill_size": 256}
    size = (4096 * haystack.questions if folder == BUNDLED else 2048) * haystack.tokens + (16 << 20)
    options |= {"kv_disk": str(disk), "kv_disk_bytes": size, "page_size": page_size}
    return LLM(folder, dtype="bfloat16", sparse_policy=policy, **options)


def shares_of(
    folder: Path, disk: Path, haystack: Haystack, policies: Sequence[str], page_size: int
) -> Mapping[str, Mapping[int, kept_mass.Share]]:
    """Return the share that each policy keeps in each layer."""
    made = {name: policy_of(OffloadConfig(sparse_policy=name), page_size) for name in policies}
    with closing(engine(folder, disk, haystack, kept_mass.POLICY, page_size)) as llm:
        watched = kept_mass.watch(llm, made)
        haystack.ask(llm)
        return watched.shares()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("recall", "bundled"), default="recall")
    parser.add_argument("--length", type=int, default=8192, help="tokens of the prompts (default: 8192)")
    parser.add_argument("--policies", default="full,quest:512:1,quest:2048:1", help="policies, separated by commas")
    parser.add_argument("--page-size", type=int, default=16, help="tokens of a page (default: 16)")
    parser.add_argument(
        "--disk", type=Path, required=True, metavar="FILE", help="page file of the engine, created empty"
    )
    args = parser.parse_args(arguments)
    policies = args.policies.split(",")
    with tempfile.TemporaryDirectory(prefix="sluice-recall-") as name:
        if args.model == "bundled":
            folder, haystacks = BUNDLED, [of_facts(args.length)]
        else:
            folder = write_recall_checkpoint(Path(name), SHAPES["small"])
            random_words = needle_prompts(SHAPES["small"], args.length, DEPTHS, seed=7)
            few_words = among_fillers(SHAPES["small"], random_words)
            haystacks = [of_needles("few words", few_words), of_needles("random words", random_words)]
        try:
            for haystack in haystacks:
                print(f"{haystack.label}, {haystack.tokens} tokens")
                for policy in policies:
                    with closing(engine(folder, args.disk, haystack, policy, args.page_size)) as llm:
                        right = haystack.ask(llm)
                    print(f"  {policy:<16} {right} of {haystack.questions} right", flush=True)
                for policy, layers in shares_of(folder, args.disk, haystack, policies, args.page_size).items():
                    for layer, (mean, heads) in layers.items():
                        of_heads = " ".join(f"{share:.3f}" for share in heads)
                        print(f"  {policy:<16} layer {layer}: {mean:.3f} kept, by head {of_heads}", flush=True)
        except ConfigError as error:
            print(f"sparse_recall: error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
