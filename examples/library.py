"""Use Sluice as a library: continue several prompts together, then stream one.

    .venv/bin/python examples/library.py [MODEL]

MODEL is a folder with a Hugging Face checkpoint or a hub id; without it the bundled model runs.
"""

from __future__ import annotations

import sys

from sluice import LLM, SamplingParams


def main(model: str | None = None) -> None:
    with LLM(model, max_total_tokens=4096) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=16)
        for result in llm.generate(["A sluice is", "Once upon a time"], greedy):
            print(f"{result.num_cached_tokens} tokens cached, {result.finish_reason}: {result.text!r}")

        # The second call finds the whole pages of its prompt in the prefix cache.
        facts = "The code of the north gate is 4711. " * 20
        for question in ("Which gate?", "Which code?"):
            (result,) = llm.generate(facts + question, greedy)
            print(f"{result.num_cached_tokens} of {len(result.prompt_token_ids)} prompt tokens cached")

        for piece in llm.stream("The water", SamplingParams(max_tokens=24, seed=7)):
            print(piece.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
