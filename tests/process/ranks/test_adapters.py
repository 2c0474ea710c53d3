"""Adapters of a model that several ranks compute: each rank has its part of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tiny_models
from lora_makers import Lora, wide
from slow import slow
from sluice import LLM, AsyncLLM, SamplingParams
from tokenizer_makers import byte_tokenizer

LORAS = {"a": Lora(1, rank=3), "b": Lora(2, rank=6)}
PROMPT = [7, 11, 13, 17, 19, 23, 29, 31, 37]
OPTIONS = {"dtype": "float64", "max_total_tokens": 512, "threads": 1}
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)


@pytest.mark.parametrize("sizes", [{"tp_size": 2}, slow({"pp_size": 2})], ids=str)
def test_ranks_answer_as_models_with_the_adapters_merged(sizes: dict[str, int], tmp_path: Path) -> None:
    """With one place, so that adapters give it up on all ranks; one is loaded while the ranks serve."""
    expected = {}
    for name in ("", *LORAS):
        model = wide(tiny_models.llama(vocab_size=257))
        if name:
            LORAS[name].save(model, tmp_path / name)
            LORAS[name].merge(model)
        model.save_pretrained(tmp_path / f"model{name}")
        byte_tokenizer().save(str(tmp_path / f"model{name}" / "tokenizer.json"))
        with LLM(tmp_path / f"model{name}", **OPTIONS) as llm:
            expected[name] = list(llm.generate(PROMPT, GREEDY)[0].samples[0].token_ids)

    async def test() -> None:
        lora = {"a": tmp_path / "a"}
        async with AsyncLLM(tmp_path / "model", lora=lora, max_loras=1, **OPTIONS, **sizes) as llm:

            async def tokens(name: str) -> list[int | None]:
                return [piece.token_id async for piece in llm.generate(PROMPT, GREEDY, adapter=name)]

            await llm.load_adapter("b", tmp_path / "b")
            names = ["a", "b", "", "a"]
            assert await asyncio.gather(*map(tokens, names)) == [expected[name] for name in names]

    asyncio.run(asyncio.wait_for(test(), 300))
