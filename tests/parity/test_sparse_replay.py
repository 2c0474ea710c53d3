"""Streams under a sparse policy that are computed again, as after a death of the engine: they go on as they did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from slow import slow
from sluice import LLM, SamplingParams
from sluice.llm.runs import LocalLink, LocalRequest

PROMPT = tiny_models.prompt(333, 2)
TOKENS = 30
SAMPLING = SamplingParams(max_tokens=TOKENS, temperature=0.8, seed=5, ignore_eos=True, logprobs=0)
OPTIONS: dict[str, Any] = {"page_size": 8, "chunked_prefill_size": 32, "max_total_tokens": 256, "dtype": "float64"}
POLICIES = ("window:8:8", "window:16:40", "quest:384:1")
"""Fewer tokens than the context has."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.llama(head_dim=16).save_pretrained(folder)
    return folder


def answer_of(llm: LLM, begun: tuple[int, ...] = ()) -> tuple[list[int], list[float]]:
    """Return the tokens that follow, with their log-probabilities, where some were delivered by an engine before."""

    def submit(link: LocalLink, *runs: LocalRequest) -> None:
        for run in runs:
            link.runs[run.submit.request_id] = run
            link.inbox.put(replace(run.submit, output_ids=begun, is_resumed=bool(begun)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalLink, "submit", submit)
        (result,) = llm.generate([PROMPT], SAMPLING)
    scored = result.logprobs
    assert scored is not None
    return list(result.token_ids), [each.logprob for each in scored if each is not None]


def engine(folder: Path, tier: Path | None, policy: str) -> LLM:
    options = {"kv_host_bytes": 8 << 20} if tier is None else {"kv_disk": str(tier), "kv_disk_bytes": 8 << 20}
    return LLM(folder, sparse_policy=policy, ring_block_tokens=8, **options, **OPTIONS)


@pytest.mark.parametrize(
    ("policy", "on_disk"),
    [(POLICIES[0], False), *(slow(policy, on_disk) for policy in POLICIES for on_disk in (False, True))],
)
def test_a_stream_that_is_computed_again_goes_on_as_it_did(
    policy: str, on_disk: bool, folder: Path, tmp_path: Path
) -> None:
    """What was delivered was computed as a prompt, which attends to everything: three of four streams went on with
    other tokens."""
    first = tmp_path / "first" if on_disk else None
    with engine(folder, first, policy) as llm:
        tokens, scores = answer_of(llm)
    for count in (7, 20):
        with engine(folder, tmp_path / str(count) if on_disk else None, policy) as llm:
            assert_goes_on(llm, tokens, scores, count)
    if first is not None:  # the tier is there, with what the first engine stored
        with engine(folder, first, policy) as llm:
            assert_goes_on(llm, tokens, scores, 25)


def assert_goes_on(llm: LLM, tokens: list[int], scores: list[float], count: int) -> None:
    again, theirs = answer_of(llm, tuple(tokens[:count]))
    assert again == tokens[count:]
    assert theirs == pytest.approx(scores[count:], abs=1e-9)


def test_a_policy_selects_by_the_position_alone(folder: Path, tmp_path: Path) -> None:
    """Stores that end late or early changed what a token attended to: the answers of two runs differed."""
    with engine(folder, None, POLICIES[0]) as memory, engine(folder, tmp_path / "pages", POLICIES[0]) as disk:
        tokens, scores = answer_of(memory)
        again, theirs = answer_of(disk)
    assert again == tokens
    assert theirs == pytest.approx(scores, abs=1e-9)
