"""A seeded request gives the same tokens alone, in company, cut otherwise, and after losing its pages."""

from __future__ import annotations

from dataclasses import replace

from expectations import Checkpoints, Prompt
from slow import products
from sluice import LLM, SamplingParams

MAX_TOKENS = 12
SAMPLINGS = [
    SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, seed=7),
    SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, seed=7, temperature=0.7, top_k=20),
    SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, seed=8, temperature=1.3, top_p=0.9),
    SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, seed=-1, min_p=0.05),
    SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, temperature=0.0),
    SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, seed=7, frequency_penalty=0.8, repetition_penalty=1.4),
    SamplingParams(max_tokens=MAX_TOKENS, min_tokens=MAX_TOKENS, seed=9, presence_penalty=2, logit_bias={2: 30}),
]


@products(
    family=["llama", "qwen3", "gpt2"],
    options=[
        {"page_size": 1, "chunked_prefill_size": 5},
        {"page_size": 16, "chunked_prefill_size": 33, "depth": 2, "lookahead": 1},
        {"page_size": 4, "chunked_prefill_size": 6, "max_total_tokens": 64, "max_running_requests": 2},
        {"page_size": 4, "max_total_tokens": 120, "enable_prefix_caching": False, "schedule": "prefill-first"},
    ],
)
def test_company_and_schedule_change_no_sampled_token(
    family: str, options: dict[str, object], checkpoint: Checkpoints, prompts: list[Prompt]
) -> None:
    asked = [prompts[2], prompts[1], prompts[2], prompts[1], prompts[2], prompts[1], prompts[2]]
    alone = []
    with LLM(checkpoint(family), dtype="float64", max_total_tokens=512, page_size=16) as llm:
        for prompt, params in zip(asked, SAMPLINGS, strict=True):
            alone += [result.token_ids for result in llm.generate([prompt], params)]
    with LLM(checkpoint(family), dtype="float64", **{"max_total_tokens": 512} | options) as llm:
        together = [result.token_ids for result in llm.generate(asked, SAMPLINGS)]
        backwards = [result.token_ids for result in llm.generate(asked[::-1], SAMPLINGS[::-1])]
    assert together == alone
    assert backwards == alone[::-1]
    assert len({*alone}) == len(alone)


def test_seeds_decide(checkpoint: Checkpoints, prompts: list[Prompt]) -> None:
    """The same seed repeats itself, other seeds differ, and a seed left open is a new one each time."""
    with LLM(checkpoint("llama"), dtype="float64", max_total_tokens=512, page_size=16) as llm:

        def tokens(seed: int | None) -> Prompt:
            return llm.generate([prompts[1]], replace(SAMPLINGS[0], seed=seed))[0].token_ids

        assert tokens(3) == tokens(3)
        seeds = [0, 1, -1, 2**64 - 1, -(2**63), None, None]
        assert len({tokens(seed) for seed in seeds}) == len(seeds)
