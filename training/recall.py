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
from training.arguments import count, length, new_file
from training.planted import Question, question

LENGTHS = (128, 256, 512, 1024, 2000, 3000, 4050)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_TOKENS = 40


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--tokenizer", type=Path, default=BUNDLED / "tokenizer.json", help="of the model served there")
    parser.add_argument("--lengths", type=length, nargs="+", default=LENGTHS, help="tokens of the prompts")
    parser.add_argument("--each", type=count, default=8, help="questions for each length and depth")
    parser.add_argument("--concurrency", type=count, default=8, help="questions at once")
    parser.add_argument("--json", type=new_file, help="write every question's outcome to this file")
    options = parser.parse_args(arguments)
    if not options.tokenizer.is_file():
        parser.error(f"--tokenizer {options.tokenizer} is not a file")
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    asked = [
        (tokens, depth, question(seed, tokens, depth, lambda text: len(tokenizer.encode(text).ids)))
        for tokens in options.lengths
        for depth in DEPTHS
        for seed in range(options.each)
    ]
    try:
        answers = asyncio.run(ask_all(options.url, [each for _, _, each in asked], options.concurrency))
    except httpx.HTTPError as error:
        parser.exit(1, f"{options.url} did not answer: {error}\n")
    rows = [
        {
            "length": asked_tokens,
            "depth": depth,
            "prompt_tokens": tokens,
            "right": each.is_answered_by(text),
            "word_for_word": text == each.answer,
            "expected": each.answer,
            "answer": text,
        }
        for (asked_tokens, depth, each), (text, tokens) in zip(asked, answers, strict=True)
    ]
    print_table(rows, options.lengths)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


async def ask_all(url: str, questions: Sequence[Question], concurrency: int) -> list[tuple[str, int]]:
    """Return the answers, and the tokens of their prompts."""
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
    """Print the share of right answers, a line for each length and a column for each depth."""
    cells: dict[tuple[object, object], list[bool]] = defaultdict(list)
    for row in rows:
        cells[row["length"], row["depth"]].append(bool(row["right"]))
        cells[row["length"], "all"].append(bool(row["right"]))
    print("| prompt tokens | questions | " + " | ".join(f"depth {depth:g}" for depth in DEPTHS) + " | all |")
    print("|---" * (len(DEPTHS) + 3) + "|")
    for tokens in lengths:
        shares = [share(cells[tokens, depth]) for depth in (*DEPTHS, "all")]
        print(f"| {tokens} | {len(cells[tokens, 'all'])} | " + " | ".join(shares) + " |")


def share(outcomes: Sequence[bool]) -> str:
    """Return the share that is true, in percent."""
    return f"{sum(outcomes) / len(outcomes):.1%}"


if __name__ == "__main__":
    main()
