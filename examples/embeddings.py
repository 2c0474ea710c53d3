"""Order texts by their likeness to a question, by embeddings, with asyncio.

    .venv/bin/python examples/embeddings.py [MODEL]

MODEL is a folder with a Hugging Face checkpoint or a hub id, such as Qwen/Qwen3-Embedding-0.6B; without it the default
model runs, which was not made for embeddings: its order means little.
"""

from __future__ import annotations

import asyncio
import sys

from sluice import AsyncLLM

TEXTS = ["The code of the north gate is 4711.", "The mill stands still in winter.", "Owls sing at night."]


async def main(model: str | None = None) -> None:
    async with AsyncLLM(model, max_total_tokens=4096) as llm:
        question, *found = await llm.embed(["What is the code of the north gate?", *TEXTS])
        print(f"vectors of {len(question.vector)} numbers; the cosine of their angle with the question's:")
        scores = [(float(question.vector @ each.vector), text) for each, text in zip(found, TEXTS, strict=True)]
        for score, text in sorted(scores, reverse=True):
            print(f"{score:6.3f} {text}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
