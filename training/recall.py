"""Ask a running server for planted facts: `python -m training.recall --url http://127.0.0.1:8000`.

Prints accuracy by prompt length and by the place of the fact, and writes each question's outcome with `--json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import httpx
from tokenizers import Tokenizer

from sluice.models.hub import BUNDLED
from training.questions import Question, question

LENGTHS = (128, 256, 512, 1024, 2000, 3000, 4050)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_TOKENS = 40


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--tokenizer", type=Path, default=BUNDLED / "tokenizer.json")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--each", type=int, default=8, help="questions for each length and depth")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    asked = [
        (length, depth, question(seed, length, depth, lambda text: len(tokenizer.encode(text).ids)))
        for length in options.lengths
        for depth in DEPTHS
        for seed in range(options.each)
    ]
    answers = asyncio.run(ask_all(options.url, [each for _, _, each in asked], options.concurrency))
    rows = [
        {
            "length": length,
            "depth": depth,
            "prompt_tokens": tokens,
            "right": each.is_answered_by(text),
            "word_for_word": text == each.answer,
            "expected": each.answer,
            "answer": text,
        }
        for (length, depth, each), (text, tokens) in zip(asked, answers, strict=True)
    ]
    print_table(rows, options.lengths)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


async def ask_all(url: str, questions: Sequence[Question], concurrency: int) -> list[tuple[str, int]]:
    """The answers, and the tokens of their prompts."""
    gate = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=600.0) as client:
        model = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]

        async def ask(each: Question) -> tuple[str, int]:
            body = {
                "model": model,
                "messages": [{"role": "user", "content": each.prompt}],
                "max_tokens": MAX_TOKENS,
                "temperature": 0,
            }
            async with gate:
                reply = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
            return reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens"]

        return await asyncio.gather(*(ask(each) for each in questions))


def print_table(rows: Sequence[dict[str, object]], lengths: Sequence[int]) -> None:
    cells: dict[tuple[object, object], list[bool]] = defaultdict(list)
    for row in rows:
        cells[row["length"], row["depth"]].append(bool(row["right"]))
        cells[row["length"], "all"].append(bool(row["right"]))
    print("| prompt tokens | questions | " + " | ".join(f"depth {depth:g}" for depth in DEPTHS) + " | all |")
    print("|---" * (len(DEPTHS) + 3) + "|")
    for length in lengths:
        shares = [share(cells[length, depth]) for depth in (*DEPTHS, "all")]
        print(f"| {length} | {len(cells[length, 'all'])} | " + " | ".join(shares) + " |")


def share(outcomes: Sequence[bool]) -> str:
    return f"{sum(outcomes) / len(outcomes):.1%}"


if __name__ == "__main__":
    main()
