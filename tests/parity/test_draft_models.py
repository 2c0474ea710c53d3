"""Answers with a draft model or an EAGLE-3 head are those without, token for token, wherever their KV has been."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_eagle3
import tiny_models
from any_checkpoint import any_checkpoint
from slow import slow
from sluice import LLM, SamplingParams
from sluice.assembly.resolve import resolve
from sluice.config import ConfigError, EngineConfig
from sluice.llm.outputs import Result
from sluice.scheduler.request import Request

PROMPTS = [tiny_models.prompt(length, seed) for seed, length in enumerate((61, 5, 34, 1))]
PROMPTS += [PROMPTS[0][:40] + PROMPTS[2], PROMPTS[0], PROMPTS[2]]
"""With prefixes in common, so that some come from the cache."""
ENDLESS = {"max_tokens": 16, "ignore_eos": True}
PARAMS = [
    SamplingParams(**ENDLESS, temperature=0.0),
    SamplingParams(**ENDLESS, seed=3),
    SamplingParams(**ENDLESS, seed=4, temperature=0.7, top_k=20, logprobs=1),
    SamplingParams(**ENDLESS, seed=5, temperature=1.2, top_p=0.9),
    SamplingParams(**ENDLESS, seed=6, frequency_penalty=0.8, repetition_penalty=1.4),
    SamplingParams(**ENDLESS, temperature=0.0, n=2),
    SamplingParams(max_tokens=24, seed=9, min_p=0.05, logit_bias={2: 3}, min_tokens=5),
]
MODES: dict[str, dict[str, Any]] = {
    "plain": {"max_total_tokens": 1024, "page_size": 16},
    "chunks": {"max_total_tokens": 1024, "page_size": 1, "chunked_prefill_size": 5},
    "lookahead": {"max_total_tokens": 1024, "page_size": 16, "chunked_prefill_size": 33, "depth": 2, "lookahead": 1},
    "preemption": {"max_total_tokens": 160, "page_size": 4, "chunked_prefill_size": 16, "max_running_requests": 4},
    "disk tier": {"max_total_tokens": 160, "page_size": 8, "kv_disk_bytes": 16 << 20, "max_running_requests": 2},
    "offloaded": {
        "max_total_tokens": 96,
        "page_size": 8,
        "chunked_prefill_size": 16,
        "kv_disk_bytes": 16 << 20,
        "ring_block_tokens": 16,
        "ring_blocks": 3,
        "offload_above": 50,
        "max_running_requests": 2,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `target`, `other` (another model of its vocabulary) and `head`."""
    folder = tmp_path_factory.mktemp("drafting")
    tiny_eagle3.target().save_pretrained(folder / "target")
    tiny_models.llama(num_hidden_layers=2).save_pretrained(folder / "other")
    tiny_eagle3.make(folder / "head")
    return folder


class EveryDraft:
    """Wants every draft that there may be: how many pay depends on the time of steps."""

    in_runner = True

    def __init__(self) -> None:
        self.drafted = 0
        self.accepted = 0

    def wants(self, request: Request) -> bool:
        return True

    def pays(self, rows: int) -> bool:
        return True

    def awake(self, requests: Sequence[Request]) -> Sequence[Request]:
        return requests

    def propose(self, request: Request, at_most: int) -> Sequence[int]:
        return (0,) * at_most

    def propose_alone(self, request: Request, costs: Sequence[float]) -> Sequence[int]:
        return (0,) * (len(costs) - 1)

    def choose(self, rows: int, found: Mapping[int, Sequence[int]], at_most: int) -> Mapping[int, Sequence[int]]:
        chosen = dict[int, Sequence[int]]()
        for request_id, drafts in found.items():
            count = min(len(drafts), at_most)
            at_most -= count
            if count:
                chosen[request_id] = drafts[:count]
        return chosen

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted

    def stepped(self, rows: int, drafts: int, micros: int) -> None:
        pass

    def ended(self, request: Request) -> None:
        pass

    def flush(self) -> None:
        pass


def with_every_draft(llm: LLM) -> EveryDraft:
    assert llm._engine is not None
    drafter = llm._engine.scheduler.state.drafter = EveryDraft()
    return drafter


def engine(folder: Path, kind: str | None = None, **options: Any) -> LLM:
    drafting: dict[str, Any] = {}
    if kind is not None:
        algorithm = "eagle3" if kind == "head" else "draft-model"
        drafting = {"speculative_algorithm": algorithm, "speculative_draft_model": folder / kind}
    return LLM(folder / "target", dtype="float64", **(drafting | options))


def plain(results: Sequence[Result]) -> list[object]:
    return [
        [(sample.token_ids, [round(one.logprob, 9) for one in sample.logprobs or ()]) for sample in result.samples]
        for result in results
    ]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[object]:
    with engine(folder, **MODES["plain"]) as llm:
        return plain(llm.generate(PROMPTS, PARAMS))


RUNS = [
    *(slow("target", mode) for mode in ("plain", "lookahead", "preemption")),
    *(("other", "chunks"), ("head", "lookahead")),
    *(slow("head", mode) for mode in ("plain", "preemption", "disk tier", "offloaded")),
]


@pytest.mark.parametrize(("kind", "mode"), RUNS)
def test_no_drafter_changes_an_answer(
    kind: str, mode: str, folder: Path, expected: list[object], tmp_path: Path
) -> None:
    options = MODES[mode]
    if "kv_disk_bytes" in options:
        options = options | {"kv_disk": tmp_path / "pages"}
    with engine(folder, kind, **options) as llm:
        drafter = with_every_draft(llm)
        assert plain(llm.generate(PROMPTS, PARAMS)) == expected
        assert plain(llm.generate(PROMPTS[2:0:-1], PARAMS[2:0:-1])) == expected[2:0:-1]
    assert drafter.drafted > 50
    # Penalties, which no drafter knows of, make some of the model's own guesses wrong.
    assert drafter.accepted > 0.8 * drafter.drafted if kind == "target" else drafter.accepted < drafter.drafted


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["target", "other", "head"])
def test_no_drafter_changes_an_answer_on_cuda(kind: str, folder: Path) -> None:
    """Where decodes without drafts replay CUDA graphs."""
    options = MODES["plain"] | {"device": "cuda", "attention_backend": "reference"}
    with engine(folder, **options) as llm:
        wanted = plain(llm.generate(PROMPTS, PARAMS))
    with engine(folder, kind, **options) as llm:
        with_every_draft(llm)
        assert plain(llm.generate(PROMPTS, PARAMS)) == wanted


@pytest.mark.parametrize("algorithm", ["draft-model", "eagle3"])
def test_drafts_come_as_they_pay(algorithm: str, folder: Path) -> None:
    """With the drafter that the options make: nothing but steps differs."""
    kind, greedy = "head" if algorithm == "eagle3" else "target", SamplingParams(temperature=0.0, max_tokens=48)
    with engine(folder, **MODES["plain"]) as llm:
        without = plain(llm.generate(PROMPTS[:2], greedy))
    with engine(folder, kind, **MODES["lookahead"]) as llm:
        assert plain(llm.generate(PROMPTS[:2], greedy)) == without
        assert llm._engine is not None
        assert llm._engine.scheduler.state.drafter.in_runner


def test_what_a_drafter_keeps_is_counted(folder: Path) -> None:
    """In the size of the pool and in the report: the memory would run out, or be left unused."""
    options = MODES["plain"]
    with engine(folder, **options) as llm:
        without = llm.memory_report()
    tokens = options["max_total_tokens"]
    assert without["draft_bytes"] == 0
    with engine(folder, "other", **options) as llm:
        report = llm.memory_report()
        assert report["draft_bytes"] == tokens * (2 * 2 * 2 * 8 * 8 + 8)  # keys and values, layers, heads, ids
        assert report["weights_bytes"] > without["weights_bytes"]
        assert report["pool_bytes"] == without["pool_bytes"]
        assert llm.memory_report(100)["draft_bytes"] == report["draft_bytes"]
    with engine(folder, "head", **options) as llm:
        report = llm.memory_report()
        assert report["draft_bytes"] == tokens * (2 * 1 * 2 * 6 * 8 + 32 * 8 + 8)  # and states


@pytest.fixture(scope="module")
def misfits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("misfits")
    tiny_models.llama(vocab_size=140).save_pretrained(folder / "vocabulary")
    tiny_models.llama(max_position_embeddings=256).save_pretrained(folder / "context")
    tiny_eagle3.make(folder / "head", target_hidden_size=48)
    tiny_models.save_sdar(folder / "blocks", 4)
    return folder


@pytest.mark.parametrize(
    ("algorithm", "name", "named"),
    [
        ("draft-model", "vocabulary", ("140", "131")),
        ("draft-model", "context", ("256", "512")),
        ("draft-model", "head", ("LlamaForCausalLMEagle3",)),
        ("draft-model", "blocks", ("SDARForCausalLM", "blocks of tokens")),
        ("eagle3", "head", ("48", "32")),
        ("eagle3", "vocabulary", ("LlamaForCausalLM",)),
    ],
)
def test_drafters_that_do_not_fit_are_refused(
    algorithm: str, name: str, named: tuple[str, ...], folder: Path, misfits: Path
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        LLM(
            folder / "target",
            dtype="float64",
            speculative_algorithm=algorithm,
            speculative_draft_model=misfits / name,
            **MODES["plain"],
        )
    assert all(each in str(caught.value) for each in named), caught.value


def test_another_vocabulary_of_the_same_size_is_refused(tmp_path: Path) -> None:
    """Llama 2 and Mistral both have 32,000 tokens. A draft model of the other would guess at random."""
    for file in any_checkpoint().iterdir():
        shutil.copy(file, tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    one, other = (next(token for token, number in vocab.items() if number == wanted) for wanted in (700, 900))
    vocab |= {one: 900, other: 700}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    options = {"speculative_algorithm": "draft-model", "max_total_tokens": 256}
    with pytest.raises(ConfigError, match=re.escape(f"token 700 is {other!r}, and {one!r} for the model")):
        LLM(any_checkpoint(), speculative_draft_model=tmp_path, **options)
    with LLM(any_checkpoint(), speculative_draft_model=any_checkpoint(), **options) as llm:
        assert llm.memory_report()["draft_bytes"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculative_algorithm": "eagle3"}, "eagle3 needs --speculative-draft-model PATH"),
        ({"speculative_algorithm": "ngram", "speculative_draft_model": "x"}, "draft-model or eagle3, got 'ngram'"),
        ({"speculative_draft_model": "x"}, "--speculative-draft-model x needs --speculative-algorithm"),
        (
            {
                "speculative_algorithm": "draft-model",
                "speculative_draft_model": "x",
                "speculative_ngram_capacity": 100,
            },
            "--speculative-ngram-capacity 100 needs --speculative-algorithm ngram, got 'draft-model'",
        ),
        (
            {"speculative_algorithm": "draft-model", "speculative_draft_model": "x", "tp_size": 2},
            "needs one rank, got --tp-size 2 and --pp-size 1",
        ),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(EngineConfig.from_options(options), "cpu")
