"""Measure what a model answers, through Sluice: `python -m training.evaluate --model FOLDER`.

Every question is one chat at temperature 0. Prints the share of right answers by group; `--json` writes each reply.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from sluice import LLM, SamplingParams
from sluice.models.hub import BUNDLED
from training import arguments
from training.questions import Case, absent_case, copy_case, fact_case, handwritten

LENGTHS = (200, 1000, 3800)
MAX_TOKENS = 72


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=BUNDLED, help="folder of a checkpoint (default: the bundled one)")
    parser.add_argument("--each", type=arguments.count, default=50, help="questions of each kind and length")
    parser.add_argument("--lengths", type=arguments.length, nargs="+", default=LENGTHS, help="tokens of the texts")
    parser.add_argument("--json", type=arguments.new_file, help="write every question's reply to this file")
    options = parser.parse_args(given)
    if not (options.model / "tokenizer.json").is_file():
        parser.error(f"--model {options.model} is not the folder of a checkpoint: it has no tokenizer.json")
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    asked = list(cases(options.each, options.lengths, lambda text: len(tokenizer.encode(text).ids)))
    replies = answers(options.model, asked)
    print_table(asked, replies)
    if options.json:
        rows = [
            {"group": case.group, "right": case.is_right(reply), "answers": case.answers, "reply": reply}
            for case, reply in zip(asked, replies, strict=True)
        ]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def cases(each: int, lengths: Sequence[int], count: Callable[[str], int]) -> Iterator[Case]:
    """Yield every question, in the order of the table."""
    for length in lengths:
        yield from (fact_case(seed, length, count, unseen=False) for seed in range(each))
    for length in lengths:
        yield from (fact_case(seed, length, count, unseen=True) for seed in range(each))
    for length in lengths:
        yield from (absent_case(seed, length, count) for seed in range(each))
    yield from (copy_case(seed) for seed in range(each))
    yield from handwritten()


def answers(model: Path, asked: Sequence[Case]) -> list[str]:
    """Return the replies, each to a conversation of its own."""
    with LLM(model, max_total_tokens=24_000) as llm:
        talks = [[{"role": "user", "content": case.prompt}] for case in asked]
        return [result.text for result in llm.chat(talks, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS))]


def print_table(asked: Sequence[Case], replies: Sequence[str]) -> None:
    """Print a line for each group: questions, and the share that is right."""
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for case, reply in zip(asked, replies, strict=True):
        outcomes[case.group].append(case.is_right(reply))
    print("| group | questions | right |\n|---|---|---|")
    for group, right in outcomes.items():
        print(f"| {group} | {len(right)} | {sum(right) / len(right):.0%} |")


if __name__ == "__main__":
    main()
