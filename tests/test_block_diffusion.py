"""Models of block diffusion, through `LLM`: the tokens of a reference that computes all again in every pass."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import diffusion_reference
import tiny_models
from diffusion_reference import Answer, Rule
from slow import slow
from sluice import LLM, SamplingParams
from sluice.config import ConfigError
from sluice.tracing.file import TraceReader
from sluice.tracing.format import Step
from sluice.tracing.replay import replay
from sluice.tracing.run import read_run
from sluice.tracing.summary import report, summarize
from sluice.types.request_limits import LimitError

GREEDY = SamplingParams(max_tokens=11, temperature=0.0, seed=0, ignore_eos=True)
WARM = SamplingParams(max_tokens=11, temperature=1.2, top_p=0.9, seed=3, ignore_eos=True)
PROMPTS = [tiny_models.prompt(length, seed) for seed, length in enumerate((41, 1, 20, 8))]
ALGORITHMS = {
    "low_confidence_dynamic": "LowConfidence",
    "low_confidence_static": "LowConfidenceStatic",
    "sequential": "Sequential",
}
Folder = Callable[[int], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The checkpoint of a tiny model, by the size of its blocks."""

    @functools.cache
    def of_size(block_size: int) -> Path:
        return tiny_models.save_sdar(tmp_path_factory.mktemp(f"blocks-of-{block_size}"), block_size)

    return of_size


@functools.cache
def expected(folder: Path, prompt: tuple[int, ...], sampling: SamplingParams, rule: Rule) -> Answer:
    """The answer of the reference."""
    return diffusion_reference.generate(reference(folder), prompt, sampling, rule)


@functools.cache
def reference(folder: Path) -> Any:
    return diffusion_reference.load(folder, torch.float64)


def serve(folder: Path, rule: Rule, **options: Any) -> LLM:
    """Serve it in float64, by a rule of the reference."""
    given: dict[str, float] = {"denoising_steps": rule.steps} if rule.steps else {}
    if rule.strategy == "low_confidence_dynamic":
        given["threshold"] = rule.threshold
    algorithm = {"dllm_algorithm": ALGORITHMS[rule.strategy], "dllm_algorithm_config": json.dumps(given)}
    return LLM(folder, dtype="float64", **{"max_total_tokens": 1024, **algorithm, **options})


def check(llm: LLM, folder: Path, rule: Rule, sampling: SamplingParams) -> list[int]:
    """Check the answers to all prompts at once. Returns the cached tokens of each."""
    results = llm.generate(PROMPTS, sampling)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.token_ids) == expected(folder, prompt, sampling, rule).token_ids
    return [result.num_cached_tokens for result in results]


@pytest.mark.parametrize(
    "rule",
    [
        *(Rule(size, threshold=0.05) for size in (4, 16)),
        *(slow(Rule(size, threshold=0.05)) for size in (1, 2, 8, 32)),
        Rule(4, threshold=0.5),
        *(slow(Rule(4, threshold=threshold)) for threshold in (0.0, 1.0)),
        Rule(8, threshold=0.05, steps=3),
        Rule(8, "low_confidence_static", steps=3),
        Rule(8, "sequential", steps=4),
    ],
    ids=str,
)
def test_the_answer_of_the_reference(rule: Rule, folder: Folder) -> None:
    """At every block size, threshold and strategy, of prompts in one batch, cold and from the cache."""
    checkpoint = folder(rule.block_size)
    with serve(checkpoint, rule) as llm:
        assert check(llm, checkpoint, rule, GREEDY) == [0, 0, 0, 0]
        assert check(llm, checkpoint, rule, WARM) == [32, 0, 0, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"page_size": 4, "chunked_prefill_size": 8},
        {"page_size": 8, "chunked_prefill_size": 19, "schedule": "prefill-first"},
        {"chunked_prefill_size": -1},
        {"page_size": 4, "max_total_tokens": 64},
        {"depth": 2, "max_running_requests": 2},
    ],
    ids=str,
)
def test_nothing_else_changes_an_answer(options: dict[str, Any], folder: Folder) -> None:
    """Cuts of prompts, pages, preemptions, and steps in flight."""
    rule = Rule(4, threshold=0.05)
    with serve(folder(4), rule, **options) as llm:
        check(llm, folder(4), rule, GREEDY)


def test_prompts_by_the_block_as_sglang_cuts_them(folder: Folder, tmp_path: Path) -> None:
    """Row 1.13 of the prior systems: the chunk is the model's block, whatever the chunk size. Both runs replay."""
    rule = Rule(4, threshold=0.05)
    longest = {}
    for how in ("block", "chunks"):
        path = tmp_path / how
        with serve(folder(4), rule, dllm_prefill=how, chunked_prefill_size=64, trace=path) as llm:
            check(llm, folder(4), rule, GREEDY)
        with TraceReader(path) as trace:
            assert replay(trace).steps
        with TraceReader(path) as trace:
            plans = [line.record.plan for line in trace if isinstance(line.record, Step)]
        longest[how] = max(chunk.length for plan in plans for chunk in plan.chunks)
    assert longest == {"block": 8, "chunks": 44}, "a whole block and an open one; all of a prompt"


def test_stop_tokens_and_max_tokens_cut_a_block(folder: Folder) -> None:
    """A block is filled in any order; what the client gets ends at its first stop token."""
    rule, prompt = Rule(8, threshold=0.05), PROMPTS[0]
    whole = expected(folder(8), prompt, GREEDY, rule).token_ids
    stop = whole[5]
    with serve(folder(8), rule) as llm:
        (result,) = llm.generate([prompt], SamplingParams(max_tokens=11, temperature=0.0, stop_token_ids=[stop]))
        assert list(result.token_ids) == whole[: whole.index(stop) + 1]
        assert result.finish_reason == "stop"


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"logprobs": 0}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"regex": "a+"}, "regex"),
    ],
    ids=str,
)
def test_requests_that_are_refused(sampling: dict[str, Any], param: str, folder: Folder) -> None:
    with (
        serve(folder(4), Rule(4)) as llm,
        pytest.raises(LimitError, match=f"{param} is not supported by this model of block diffusion"),
    ):
        llm.generate([PROMPTS[1]], SamplingParams(max_tokens=4, **sampling))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"page_size": 2}, "--page-size must be a multiple of the model's block_size 4, got 2"),
        ({"page_size": 16, "dllm_algorithm_config": '{"block_size": 32}'}, "block_size 32, got 16"),
        ({"chunked_prefill_size": 48, "dllm_algorithm_config": '{"block_size": 64}'}, "block_size 64, got 32"),
        ({"dllm_algorithm_config": '{"block_size": 6}'}, "block_size 6, got 32"),
        ({"override_generation_config": '{"repetition_penalty": 1.1}'}, "repetition_penalty 1.1 is not supported by"),
        ({"enable_overlap": True}, "--enable-overlap has no effect on a model of block diffusion"),
        ({"speculative_algorithm": "ngram"}, "--speculative-algorithm ngram is not supported by a model of block diff"),
        ({"itl_target": "20ms"}, "--itl-target 20ms is not supported by a model of block diffusion"),
        ({"dynamic_chunking": 0}, "--dynamic-chunking 0 is not supported"),
        ({"max_batch_tokens": 64, "max_running_requests": 8}, "larger than 8 times --max-running-requests.*64 with 8"),
        ({"dllm_algorithm": "JointThreshold"}, "must be one of LowConfidence, LowConfidenceStatic, Sequential"),
        ({"dllm_algorithm_config": '{"denoising_steps": 5}'}, "at most block_size 4, got 5"),
        ({"dllm_algorithm_config": '{"threshold": 2}'}, "a probability from 0 to 1, got 2"),
        ({"dllm_algorithm_config": '{"thresh": 2}'}, "thresh is not supported; supported are threshold"),
        ({"dllm_algorithm_config": '{"mask_id": 131}'}, "mask_token_id must be below vocab_size = 131, got 131"),
        ({"dllm_algorithm_config": "missing.yaml"}, "missing.yaml cannot be read"),
        (
            {"dllm_algorithm": "Sequential", "dllm_algorithm_config": '{"threshold": 0.5}'},
            "threshold 0.5 has no effect with --dllm-algorithm Sequential",
        ),
        ({"dllm_prefill": "block", "chunked_prefill_size": -1}, "--dllm-prefill block cuts prompts"),
    ],
    ids=str,
)
def test_options_that_are_refused(options: dict[str, Any], problem: str, folder: Folder) -> None:
    with pytest.raises(ValueError, match=problem):
        LLM(folder(4), **options)


@pytest.mark.parametrize("block_size", [64, 512])
def test_an_open_page_size_grows_to_the_block(block_size: int, folder: Folder) -> None:
    """Each default is below the block: of a page, 32 tokens; of a chunk, 128 or 256."""
    given = json.dumps({"block_size": block_size, "threshold": 0})
    with LLM(folder(4), device="cpu", dllm_algorithm_config=given, max_running_requests=2) as llm:
        config = llm.info.config
        assert config.cache.page_size == block_size
        assert llm.info.reasons["page_size"] == "the model's block_size"
        assert (config.scheduler.chunked_prefill_size or 0) >= block_size
        assert len(llm.generate([PROMPTS[1]], GREEDY)[0].token_ids) == 11


def test_a_penalty_of_the_checkpoint_is_left_out(
    folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every request was refused that did not ask for a penalty of 1."""
    (tmp_path / "generation_config.json").write_text('{"repetition_penalty": 1.1, "top_k": 7}')
    with LLM(folder(4), generation_config=str(tmp_path), max_total_tokens=1024) as llm:
        assert llm.info.sampling_defaults.as_dict() == {"top_k": 7}
        told = "without repetition_penalty 1.1, which block diffusion does not support"
        assert llm.info.reasons["generation_config"] == f"top_k 7, {told}"
        assert told in caplog.text
        asked = llm.info.sampling_defaults.fill(GREEDY, ())
        assert len(llm.generate([PROMPTS[1]], asked)[0].token_ids) == 11


def test_other_models_have_no_blocks(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    with pytest.raises(ConfigError, match="--dllm-algorithm LowConfidence needs a model of block diffusion"):
        LLM(tmp_path, dllm_algorithm="LowConfidence")


def test_a_file_as_sglang_reads_it(folder: Folder, tmp_path: Path) -> None:
    """Comments, and a block of another size than the checkpoint's."""
    path = tmp_path / "config.yaml"
    path.write_text("# Confidence\nthreshold: 0.05   # of a token\n\nblock_size: 2\n")
    with LLM(folder(4), dtype="float64", max_total_tokens=1024, dllm_algorithm_config=str(path)) as llm:
        check(llm, folder(4), Rule(2, threshold=0.05), GREEDY)


def test_passes_are_counted(folder: Folder, tmp_path: Path) -> None:
    """Steps per block, by which a threshold is chosen: those of the reference."""
    rule = Rule(8, threshold=0.05)
    passes = [expected(folder(8), prompt, GREEDY, rule).passes for prompt in PROMPTS]
    path = tmp_path / "trace"
    with serve(folder(8), rule, trace=path) as llm:
        llm.generate(PROMPTS, GREEDY)
        assert llm._engine is not None
        totals = llm._engine.meter.totals()
    assert totals.blocks == sum(map(len, passes))
    assert totals.passes == sum(map(sum, passes))
    with TraceReader(path) as trace:
        summary = summarize(trace.header, read_run(trace), 1000)
    assert summary.blocks == (8, totals.blocks, totals.passes)
    assert f"blocks of 8 tokens: {totals.blocks} filled in by {totals.passes} passes" in report(summary, table=False)
    assert totals.prefill_tokens == sum(-(-(len(prompt) + 1) // 8) * 8 for prompt in PROMPTS)
