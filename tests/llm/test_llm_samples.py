"""Several samples, salts of the prefix cache, priorities and overlap, with the real engine in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from random_checkpoint import random_checkpoint
from recording import RecordingRunner
from sluice import LLM, SamplingParams, cli
from sluice.types import BatchPlan
from sluice.types.request_limits import LimitError

PAGE_SIZE = 16
PROMPT = [(7 * i) % 250 + 5 for i in range(100)]
SHARED = 96
"""Tokens in the prompt's full pages."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("random"))


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, max_total_tokens=1024, page_size=PAGE_SIZE) as llm:
        yield llm


def recorded(llm: LLM) -> list[BatchPlan]:
    """Return a list that receives the plans that its engine launches from now on."""
    assert llm._engine is not None
    runner = RecordingRunner(llm._engine.runner)
    llm._engine.runner = runner
    return runner.plans


def prefill_tokens(plans: list[BatchPlan]) -> int:
    return sum(chunk.length for plan in plans for chunk in plan.chunks[plan.num_decodes :])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples_share_the_prompt(llm: LLM, temperature: float) -> None:
    """The full pages of the prompt are computed once for all samples; each sample computes the rest."""
    plans = recorded(llm)
    sampling = SamplingParams(n=4, max_tokens=12, temperature=temperature, seed=5, ignore_eos=True)
    (result,) = llm.generate([PROMPT], sampling)
    assert prefill_tokens(plans) == 100 + 3 * (100 - SHARED)
    assert result.num_cached_tokens == 0
    outputs = [sample.token_ids for sample in result.samples]
    assert [len(output) for output in outputs] == [12] * 4
    assert len(set(outputs)) == (4 if temperature else 1)
    assert (result.token_ids, result.text) == (outputs[0], result.samples[0].text)
    assert all(sample.finish_reason == "length" for sample in result.samples)


def test_more_samples_do_not_change_the_first(llm: LLM) -> None:
    """Nor do other requests in the same steps."""
    params = [SamplingParams(n=n, max_tokens=8, seed=5, ignore_eos=True) for n in (1, 2, 3)]
    alone, two, three = llm.generate([PROMPT] * 3, params)
    assert [len(result.samples) for result in (alone, two, three)] == [1, 2, 3]
    assert alone.samples == two.samples[:1]
    assert two.samples == three.samples[:2]


def test_samples_without_a_seed_share_a_random_one(llm: LLM) -> None:
    one, other = llm.generate([PROMPT] * 2, SamplingParams(n=2, max_tokens=12, ignore_eos=True))
    assert len({sample.token_ids for result in (one, other) for sample in result.samples}) == 4


def test_a_stream_has_one_sample(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"n must be 1, got 2; use LLM\.generate"):
        llm.stream(PROMPT, SamplingParams(n=2))


def test_equal_prompts_under_different_salts_share_nothing(llm: LLM) -> None:
    """Shown by the cached tokens and by page ids: a request gets no page that was cached under another salt."""
    plans = recorded(llm)
    greedy = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    results = [llm.generate([PROMPT], greedy, cache_salt=salt)[0] for salt in ("a", "b", "", "a")]
    assert [result.num_cached_tokens for result in results] == [0, 0, 0, SHARED]
    assert len({result.token_ids for result in results}) == 1
    full = SHARED // PAGE_SIZE
    rows: dict[int, tuple[int, ...]] = {}
    for plan in plans:
        for chunk in plan.chunks:
            rows[chunk.request_id] = rows.get(chunk.request_id, ()) + chunk.new_pages
    pages = [set(row[:full]) for row in rows.values()]
    assert len(pages[0] | pages[1] | pages[2]) == 3 * full
    assert pages[3] == pages[0]


def test_salts_of_a_batch(llm: LLM) -> None:
    """Requests that arrive together share a prefix only within their salt."""
    plans = recorded(llm)
    llm.generate([PROMPT] * 3, SamplingParams(max_tokens=2), cache_salt=["a", "b", "a"])
    assert prefill_tokens(plans) == 2 * 100 + (100 - SHARED)


def test_priorities(folder: Path) -> None:
    with LLM(folder, max_total_tokens=512, schedule_policy="priority", max_running_requests=1) as llm:
        plans = recorded(llm)
        llm.generate([[5, 6], [7, 8], [9, 10]], SamplingParams(max_tokens=2), priority=[0, 1, 5])
        opened = [new.request_id for plan in plans for new in plan.new_slots]
        assert opened == [2, 1, 0]
        assert len(list(llm.stream([5], SamplingParams(max_tokens=1), priority=-3))) == 1


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"priority": 1}, r"prompt 0: priority 1 needs .* \(--schedule-policy priority\)"),
        ({"priority": "batch"}, r"prompt 0: priority 'batch' needs .* \(--schedule-policy deadline\)"),
        ({"priority": "high"}, "one of interactive, standard, batch, got 'high'"),
        ({"priority": ""}, "one of interactive, standard, batch, got ''"),
        ({"priority": 2**63}, "priority must be an integer of at most 64 bits, got 9223372036854775808"),
        ({"priority": 0.5}, r"priority must be int or str or a list of them, got 0\.5"),
        ({"priority": [0, 0]}, "priority must be one int or str, or one for each of 1 prompts, got 2"),
        ({"cache_salt": "x" * 257}, "prompt 0: cache_salt must be a text of 1 to 256 characters, got 257 characters"),
        ({"cache_salt": "\ud800"}, "cache_salt must be valid Unicode"),
        ({"cache_salt": 5}, "cache_salt must be str or a list of them, got 5"),
    ],
)
def test_wrong_salts_and_priorities_are_refused(llm: LLM, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate([PROMPT], **keywords)
    if "priority" in keywords:
        with pytest.raises(ValueError, match="priority"):
            llm.stream(PROMPT, **keywords)
    assert issubclass(LimitError, ValueError)


@pytest.mark.parametrize("name", ["--enable-overlap", "--async-scheduling"])
def test_overlap_from_the_command_line(folder: Path, name: str) -> None:
    """The flag takes effect: a decode is planned before the host knows the token it starts from, and the tokens do not
    change."""
    given = vars(cli.build_parser().parse_args(["generate", str(folder), "--prompt", "x", name, "--page-size", "16"]))
    options = {key: value for key, value in given.items() if key not in ("run", "prompt", "model")}
    sampling = SamplingParams(max_tokens=10, seed=1, ignore_eos=True)
    prompts = [PROMPT, PROMPT[:5], PROMPT[50:]]
    with LLM(folder, max_total_tokens=512, page_size=16) as llm:
        plain = recorded(llm)
        expected = [result.token_ids for result in llm.generate(prompts, sampling)]
    with LLM(given["model"], max_total_tokens=512, **options) as llm:
        assert (llm.info.config.scheduler.depth, llm.info.config.scheduler.lookahead) == (2, 1)
        assert llm.info.reasons["depth"] == llm.info.reasons["lookahead"] == "--enable-overlap"
        plans = recorded(llm)
        assert [result.token_ids for result in llm.generate(prompts, sampling)] == expected
    assert not any(unread(plan) for plan in plain)
    assert sum(unread(plan) for plan in plans) >= 9


def unread(plan: BatchPlan) -> bool:
    return any(len(chunk.token_ids) < chunk.length for chunk in plan.chunks)
