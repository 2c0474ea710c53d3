"""Use Sluice as a library: answer several questions together, then stream an answer.

    .venv/bin/python examples/library.py [MODEL]

MODEL is a folder with a Hugging Face checkpoint or a hub id; without it the default model runs.
"""

from __future__ import annotations

import sys

from sluice import LLM, SamplingParams


def asked(question: str) -> list[dict[str, str]]:
    """Return a conversation of one question."""
    return [{"role": "user", "content": question}]


def main(model: str | None = None) -> None:
    with LLM(model, max_total_tokens=4096) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=32)
        for result in llm.chat([asked("What is a sluice?"), asked("What is the capital of France?")], greedy):
            print(f"{result.num_cached_tokens} tokens cached, {result.finish_reason}: {result.text!r}")

        # The second call finds the whole pages of its prompt in the prefix cache.
        facts = "The code of the north gate is 4711. " * 20
        for question in ("What is the code of the north gate?", "Tell me the north gate's code."):
            (result,) = llm.chat(asked(facts + question), greedy)
            print(f"{result.num_cached_tokens} of {len(result.prompt_token_ids)} prompt tokens cached: {result.text!r}")

        for piece in llm.stream_chat(asked("Who are you?"), SamplingParams(temperature=0.5, max_tokens=48, seed=7)):
            print(piece.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
