"""LLM: the engine in this process, as users call it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import sluice
from random_checkpoint import random_checkpoint
from sluice import LLM, SamplingParams
from sluice.config import ConfigError
from sluice.llm.outputs import GenerationError
from sluice.models.checkpoint import CheckpointError
from sluice.text.tokenizer_files import load_tokenizer
from sluice.types import FinishReason
from sluice.types.request_limits import LimitError

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
IDS = [7, 8, 9, 300]
"""Ids of a vocabulary of 384 tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, max_total_tokens=512, page_size=16) as llm:
        yield llm


@pytest.fixture
def bare(folder: Path, tmp_path: Path) -> Path:
    """A checkpoint without a tokenizer."""
    copy = tmp_path / "bare"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("tokenizer*"))
    return copy


def test_texts_and_token_ids_are_the_same_prompts(llm: LLM, folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    texts = ["The river rises.", "Good evening"]
    by_text = llm.generate(texts, GREEDY)
    by_ids = llm.generate([tokenizer.encode(text) for text in texts], GREEDY)
    mixed = llm.generate([texts[0], tokenizer.encode(texts[1])], GREEDY)
    assert [r.token_ids for r in by_text] == [r.token_ids for r in by_ids] == [r.token_ids for r in mixed]
    for result, text in zip(by_text, texts, strict=True):
        assert result.prompt_token_ids == tuple(tokenizer.encode(text))
        assert result.text == tokenizer.decode(result.token_ids)
        assert (len(result.token_ids), result.finish_reason) == (12, "length")


@pytest.mark.parametrize("prompt", ["alone", IDS, tuple(IDS), np.array(IDS)])
def test_one_prompt_alone_is_a_list_of_one(llm: LLM, prompt: Any) -> None:
    (result,) = llm.generate(prompt, GREEDY)
    (listed,) = llm.generate([prompt], GREEDY)
    assert result.token_ids == listed.token_ids


def test_no_prompts_give_no_results(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_sampling_params_one_each(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=count, seed=1, ignore_eos=True) for count in (1, 5, 3)]
    results = llm.generate([IDS] * 3, params)
    assert [len(result.token_ids) for result in results] == [1, 5, 3]
    assert results[1].token_ids[:3] == results[2].token_ids


def test_defaults_are_those_of_sampling_params(llm: LLM) -> None:
    (result,) = llm.generate([IDS])
    assert 1 <= len(result.token_ids) <= SamplingParams().max_tokens


def test_cached_tokens_are_reported(llm: LLM) -> None:
    prompt = list(range(50, 90))
    (cold,) = llm.generate([prompt], GREEDY)
    (warm,) = llm.generate([prompt], GREEDY)
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 32)
    assert cold.token_ids == warm.token_ids


def test_a_stop_token_ends_the_text_and_is_not_part_of_it(llm: LLM, folder: Path) -> None:
    (free,) = llm.generate([IDS], GREEDY)
    stop = free.token_ids[5]
    first = free.token_ids.index(stop)
    (stopped,) = llm.generate([IDS], SamplingParams(max_tokens=12, temperature=0.0, stop_token_ids=(stop,)))
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert stopped.finish_reason == "stop"
    assert stopped.text == load_tokenizer(folder).decode(free.token_ids[:first])


def test_a_stop_string_ends_the_request_and_frees_its_pages(llm: LLM) -> None:
    """The engine sees no text, so without an abort the request would run on to max_tokens."""
    (free,) = llm.generate([IDS], GREEDY)
    assert len(free.text) > 6
    stop = free.text[3:5]
    (stopped,) = llm.generate([IDS], SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True, stop=(stop,)))
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.finish_reason == "stop"
    assert len(stopped.token_ids) < 12
    fills_the_pool = SamplingParams(max_tokens=512 - len(IDS), temperature=0.0, ignore_eos=True)
    (whole,) = llm.generate([IDS], fills_the_pool)
    assert len(whole.token_ids) == 512 - len(IDS)


def test_open_max_tokens_means_what_fits(llm: LLM) -> None:
    (result,) = llm.generate([[5, 6] * 250], SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True))
    assert len(result.token_ids) == 12


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "parts"),
    [
        ("", 1, ["prompt 1", "empty"]),
        ([], 1, ["prompt 1", "empty"]),
        ([5, 384], 1, ["prompt 1", "384", "0 to 383"]),
        ([5, -1], 1, ["-1", "0 to 383"]),
        (IDS, 509, ["4 tokens", "509", "512"]),
        ([5] * 512, None, ["512 tokens", "at least 1 more"]),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_before_any_prompt_runs(
    llm: LLM, prompt: Any, max_tokens: int | None, parts: list[str]
) -> None:
    with pytest.raises(LimitError) as caught:
        llm.generate([IDS, prompt], SamplingParams(max_tokens=max_tokens))
    for part in parts:
        assert part in str(caught.value)
    assert len(llm.generate([IDS], GREEDY)[0].token_ids) == 12


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((5,), "got 5"),
        (([IDS, [1.5]],), "prompt 1 must be"),
        (([[True]],), "prompt 0 must be"),
        (([IDS, None],), "prompt 1 must be"),
        (([IDS], [GREEDY, GREEDY]), "each of 1 prompts, got 2"),
        (([IDS], {"max_tokens": 3}), "sampling must be SamplingParams"),
        (([IDS], [{"max_tokens": 3}]), "sampling must be SamplingParams"),
    ],
)
def test_wrong_types_are_named(llm: LLM, arguments: tuple[Any, ...], part: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        llm.generate(*arguments)
    assert part in str(caught.value)


def test_a_stream_of_no_prompt_is_refused(llm: LLM) -> None:
    """A number alone was taken for a prompt of that token."""
    with pytest.raises(ValueError, match="prompt 0 must be a text or a list of token ids, got 5"):
        llm.stream(5, GREEDY)


def test_stream_gives_a_piece_for_each_token(llm: LLM) -> None:
    (whole,) = llm.generate([IDS], GREEDY)
    pieces = list(llm.stream(IDS, GREEDY))
    assert tuple(piece.token_id for piece in pieces) == whole.token_ids
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [piece.finish_reason for piece in pieces] == [None] * 11 + [FinishReason.LENGTH]


def test_streams_run_side_by_side_and_may_be_closed(llm: LLM) -> None:
    """Two half-read streams and a batch share the engine; closing a stream ends its request and frees its pages."""
    whole = [result.token_ids for result in llm.generate([IDS, IDS[::-1]], GREEDY)]
    first, second = llm.stream(IDS, GREEDY), llm.stream(IDS[::-1], GREEDY)
    started = [next(first).token_id, next(second).token_id]
    assert llm.generate([IDS], GREEDY)[0].token_ids == whole[0]
    first.close()
    assert [started[1], *(piece.token_id for piece in second)] == list(whole[1])
    assert started[0] == whole[0][0]
    fills_the_pool = SamplingParams(max_tokens=512 - len(IDS), temperature=0.0, ignore_eos=True)
    assert len(llm.generate([IDS], fills_the_pool)[0].token_ids) == 512 - len(IDS)


def test_without_a_tokenizer_token_ids_work(bare: Path, llm: LLM) -> None:
    with LLM(bare, max_total_tokens=512) as without:
        (result,) = without.generate([IDS], GREEDY)
        assert result.token_ids == llm.generate([IDS], GREEDY)[0].token_ids
        assert result.text == ""
        with pytest.raises(ValueError, match=r"no tokenizer; give token ids"):
            without.generate(["text"], GREEDY)
        with pytest.raises(ValueError, match=r"no tokenizer; use stop_token_ids"):
            without.generate([IDS], SamplingParams(stop=("x",)))


def test_a_failed_request_raises_and_the_next_one_runs(folder: Path, tmp_path: Path) -> None:
    """Weights with a NaN for one token: a prompt with it fails, others go on."""
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][IDS[3]] = torch.nan
    save_file(weights, broken / "model.safetensors")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with LLM(broken, max_total_tokens=512) as llm:
        with pytest.raises(GenerationError, match="NaN"):
            llm.generate([IDS[:3], IDS], GREEDY)
        (result,) = llm.generate([IDS[:3]], GREEDY)
        assert len(result.token_ids) == 12
        with pytest.raises(GenerationError, match="NaN"):
            list(llm.stream(IDS, GREEDY))


def test_a_closed_llm_refuses_calls(folder: Path) -> None:
    llm = LLM(folder, max_total_tokens=64)
    stream = llm.stream(IDS, GREEDY)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate([IDS], GREEDY)
    with pytest.raises(RuntimeError, match="closed"):
        next(stream)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"max_runing_requests": 3}, "unknown option 'max_runing_requests'; did you mean max_running_requests?"),
        ({"dtype": "int8"}, "--dtype must be one of"),
        ({"device": "tpu"}, "--device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        ({"device": "cuda:x"}, "--device must be auto, cpu, cuda or cuda:N, got 'cuda:x'"),
        ({"device": "cuda:999"}, "usable CUDA devices"),
        ({"max_total_tokens": 1 << 50}, "--max-total-tokens 1125899906842624 takes"),
        ({"page_size": 64, "max_total_tokens": 63}, "--max-total-tokens must be at least one page"),
        ({"page_size": 3}, "--page-size must be a power of two"),
        ({"threads": 1 << 20}, "--threads must be at most"),
        ({"lookahead": 1}, "--lookahead must be from 0 to depth - 1"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(folder: Path, options: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(folder, **options)
    assert part in str(caught.value)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no file or folder"):
        LLM(tmp_path / "nothing")


def test_options_have_their_effect(folder: Path) -> None:
    aliases = {"max-num-seqs": 3, "max_num_batched_tokens": 40, "enable_mixed_chunk": False}
    with LLM(folder, dtype="float64", max_total_tokens=100, page_size=8, **aliases) as llm:
        info = llm.info
        assert info.dtype == torch.float64
        assert info.limits.max_request_tokens == 96
        assert info.config.scheduler.max_running_requests == 3
        assert info.config.scheduler.max_batch_tokens == 40
        assert info.config.scheduler.schedule == "prefill-first"
        assert len(llm.generate([[5] * 90], SamplingParams(max_tokens=6, ignore_eos=True))[0].token_ids) == 6


def test_threads_compute(folder: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with LLM(folder, max_total_tokens=100, threads=1) as llm:
            assert llm.info.config.model.threads == 1
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_public_names_load_when_used() -> None:
    """`import sluice` alone loads no torch."""
    assert {"LLM", "EngineConfig", "SamplingParams"} <= set(dir(sluice))
    with pytest.raises(AttributeError, match="LLMs"):
        sluice.LLMs  # noqa: B018
    program = "import sys, sluice; sluice.SamplingParams(); sluice.EngineConfig(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_no_answer_waits_for_torchs_compiler() -> None:
    """Nothing is compiled, but much in torch imports its compiler, which takes as long as all else until an answer."""
    program = (
        "import sys; from sluice import LLM, SamplingParams\n"
        "with LLM(max_total_tokens=256) as llm: llm.generate('a', SamplingParams(max_tokens=3, ignore_eos=True))\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_logprobs_are_returned_if_requested(llm: LLM) -> None:
    """One for each output token and each prompt token but the first; the samples share the prompt's."""
    sampling = SamplingParams(max_tokens=5, seed=1, ignore_eos=True, logprobs=2, prompt_logprobs=1, n=2)
    plain = SamplingParams(max_tokens=5, seed=1, ignore_eos=True)
    result, other = llm.generate([IDS, IDS], [sampling, plain])
    assert [len(sample.logprobs) for sample in result.samples] == [5, 5]
    for sample in result.samples:
        assert tuple(item.token_id for item in sample.logprobs) == sample.token_ids
        assert all(len(item.top) == 2 and item.logprob < 0 for item in sample.logprobs)
    first, *rest = result.prompt_logprobs
    assert first is None
    assert [item.token_id for item in rest] == IDS[1:]
    assert all(len(item.top) == 1 for item in rest)
    assert (other.logprobs, other.prompt_logprobs) == (None, None)
    assert other.token_ids == result.token_ids


def test_a_stream_has_logprobs_of_its_tokens_only(llm: LLM) -> None:
    pieces = list(llm.stream(IDS, SamplingParams(max_tokens=3, ignore_eos=True, logprobs=0)))
    assert [piece.logprobs.token_id for piece in pieces] == [piece.token_id for piece in pieces]
    with pytest.raises(ValueError, match=r"prompt_logprobs must be None, got 0; use LLM\.generate"):
        llm.stream(IDS, SamplingParams(prompt_logprobs=0))
