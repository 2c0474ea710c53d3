"""The same prompts in eight lives, in each of the families: token for token what transformers generates in float64.

`make test` has two families in all lives, and the others in one each, by turns. The logits of each family, in chunks
beside those of other prompts, are compared in `tests/models/test_families.py`.

A prompt is computed whole, in chunks, from the prefix cache, beside others, again after it was preempted, again after
the device's state was lost, with drafts of which most are rejected, and layer by layer between the steps of others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_families
import tiny_models
from parity.test_draft_models import with_every_draft
from recording import RecordingRunner
from slow import slow
from sluice import LLM, SamplingParams
from sluice.assembly.load import load
from sluice.attention.reference import ReferenceAttention
from sluice.config import EngineConfig
from sluice.runner.device_state import DeviceState
from sluice.runner.runner import TorchRunner
from sluice.testing import ManualLink
from sluice.types import Submit
from tiny_models import VOCAB_SIZE

MAX_TOKENS = 12
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True, seed=0)
Prompts = Sequence[Sequence[int]]


def prompts_of(length: int, short: int, common: int, times: int) -> Prompts:
    """Return prompts of which two begin alike, and one repeats itself."""
    first = tiny_models.prompt(length)
    return [
        first,
        tiny_models.prompt(short, 1),
        first[:common] + tiny_models.prompt(8, 2),
        tiny_models.prompt(7, 3) * times,
    ]


USUAL = prompts_of(49, 11, 33, 5)
"""Longer than a window, and than the context of a scaled rotation."""
LONG = prompts_of(150, 70, 135, 12)
"""For families whose layers have a state: longer than a block of tokens behind which it is kept."""
Life = Callable[[Path, Prompts], list[list[int]]]
"""Returns what the model in a folder generates for the prompts."""
Expected = Callable[[str, list[list[int]]], list[list[int]]]
"""Returns what transformers generates with a family; quickly, if that was guessed."""


def room(prompts: Prompts) -> int:
    """Return tokens of KV that are enough for all prompts and outputs."""
    return 512 if prompts is USUAL else 1024


def generated(folder: Path, prompts: Prompts, **options: Any) -> list[list[int]]:
    with LLM(folder, dtype="float64", **({"max_total_tokens": room(prompts)} | options)) as llm:
        return [list(result.token_ids) for result in llm.generate([list(prompt) for prompt in prompts], GREEDY)]


def whole(folder: Path, prompts: Prompts) -> list[list[int]]:
    return [generated(folder, [prompt], chunked_prefill_size=-1, page_size=16)[0] for prompt in prompts]


def chunked(folder: Path, prompts: Prompts) -> list[list[int]]:
    """Cut every prompt in chunks of one, two, three, and around the lengths of pages and windows."""
    cuts = ((3, 1), (2, 1), (31, 4), (1, 1))
    return [
        generated(folder, [prompt], chunked_prefill_size=cut, page_size=page_size)[0]
        for prompt, (cut, page_size) in zip(prompts, cuts, strict=True)
    ]


def cached(folder: Path, prompts: Prompts) -> list[list[int]]:
    with LLM(folder, dtype="float64", page_size=4, max_total_tokens=2 * room(prompts)) as llm:
        asked = [list(prompt) for prompt in prompts]
        llm.generate(asked, GREEDY)
        results = llm.generate(asked, GREEDY)
        assert all(result.num_cached_tokens > 4 for result in results)
        return [list(result.token_ids) for result in results]


def mixed(folder: Path, prompts: Prompts) -> list[list[int]]:
    return generated(folder, prompts, chunked_prefill_size=9, page_size=4, max_running_requests=3)


def drafted(folder: Path, prompts: Prompts) -> list[list[int]]:
    return generated(folder, prompts, speculative_algorithm="ngram", speculative_num_steps=3, page_size=4)


def guessed(folder: Path, prompts: Prompts) -> list[list[int]]:
    """Let the model draft for itself, with pages of the sizes of its own layers."""
    drafting = {"speculative_algorithm": "draft-model", "speculative_draft_model": folder}
    with LLM(folder, dtype="float64", page_size=4, max_total_tokens=512, **drafting) as llm:
        drafter = with_every_draft(llm)
        results = llm.generate([list(prompt) for prompt in prompts], GREEDY)
        assert drafter.accepted > 0.8 * drafter.drafted > 10
        return [list(result.token_ids) for result in results]


def from_tier(folder: Path, prompts: Prompts, **options: Any) -> list[list[int]]:
    """Take prompts from a tier that the pool has no room for together."""
    with LLM(folder, dtype="float64", page_size=4, max_total_tokens=72, **options) as llm:
        for _ in range(2):
            results = [llm.generate([list(prompt)], GREEDY)[0] for prompt in prompts]
        assert all(result.num_host_tokens + result.num_disk_tokens > 0 for result in results)
        return [list(result.token_ids) for result in results]


def from_host(folder: Path, prompts: Prompts) -> list[list[int]]:
    return from_tier(folder, prompts, kv_host_bytes=1 << 20)


def from_disk(folder: Path, prompts: Prompts) -> list[list[int]]:
    return from_tier(folder, prompts, kv_disk=folder / "pages", kv_disk_bytes=4 << 20)


def with_engine(folder: Path, prompts: Prompts, crash_after: int | None, **options: Any) -> list[list[int]]:
    """Generate with an engine whose pages are NaN where they were not written, and which may lose them once."""
    asked = {"model": str(folder), "dtype": "float64", "page_size": 4, "chunked_prefill_size": 10} | options
    model = load(EngineConfig.from_options({"max_running_requests": 3} | asked), progress=False)

    def runner() -> RecordingRunner:
        state = DeviceState(model.shape)
        for layer in state.kv:
            layer.k.fill_(torch.nan)
            layer.v.fill_(torch.nan)
        return RecordingRunner(TorchRunner(model.model, state, ReferenceAttention()))

    link, first = ManualLink(), runner()
    engine = model.engine(link, first)
    link.put(*(Submit(i, prompt, GREEDY) for i, prompt in enumerate(prompts)))
    steps = 0
    while steps == 0 or not engine.is_idle:
        if steps == crash_after:
            assert not engine.in_flight
            engine.scheduler.forget_device()
            engine.runner = runner()
        engine.step()
        steps += 1
    if crash_after is None:
        admitted = [new.request_id for plan in first.plans for new in plan.new_slots]
        assert len(admitted) > len(set(admitted)), "no request was preempted"
    else:
        assert steps > crash_after, "nothing was lost"
    return [list(link.tokens(i)) for i in range(len(prompts))]


def preempted(folder: Path, prompts: Prompts) -> list[list[int]]:
    return with_engine(
        folder, prompts, None, max_total_tokens=72 if prompts is USUAL else 228, schedule_conservativeness=0.0
    )


def recovered(folder: Path, prompts: Prompts) -> list[list[int]]:
    return with_engine(folder, prompts, 9, max_total_tokens=room(prompts))


def sliced(folder: Path, prompts: Prompts) -> list[list[int]]:
    """Divide chunks among steps by their layers, and lose the device between two layers of one."""
    asked = {"itl_target": "1ms", "sliced_chunk_size": 16, "page_size": 4, "max_running_requests": 3}
    options = {"model": str(folder), "dtype": "float64", "max_total_tokens": room(prompts), **asked}
    model = load(EngineConfig.from_options(options), progress=False)
    link, runner = ManualLink(), RecordingRunner(model.runner())
    engine = model.engine(link, runner)
    link.put(*(Submit(i, prompt, GREEDY) for i, prompt in enumerate(prompts)))
    losses = 0
    while not losses or not engine.is_idle:
        engine.step()
        is_open = any(request.sliced is not None for request in engine.scheduler.state.requests.values())
        if is_open and engine.scheduler.state.decoding and not losses and not engine.in_flight:
            losses += 1
            engine.scheduler.forget_device()
            runner = RecordingRunner(model.runner())
            engine.runner = runner
    assert any(
        part.is_resident and not part.completes and plan.num_decodes for plan in runner.plans for part in plan.slices
    )
    return [list(link.tokens(i)) for i in range(len(prompts))]


LIVES: tuple[Life, ...] = (whole, chunked, cached, mixed, preempted, recovered, drafted, sliced)
UNEQUAL = ("gemma4", "gemma4-31b")
"""Families whose layers have keys and values of different sizes, which tiers and draft models keep, too."""
IN_ALL = ("gemma3", "lfm2")


def of_family(family: str) -> Prompts:
    return LONG if family in tiny_families.WITH_STATES else USUAL


def lives_of(family: str) -> Sequence[Life]:
    """Return all lives of a family."""
    if family in tiny_families.WITH_STATES:  # see test_state_lives.py
        return [life for life in LIVES if life not in (cached, preempted)]
    return LIVES


def cases() -> Iterator[Any]:
    """Yield families and lives, marked slow but for one life of each family and all of two families."""
    for number, family in enumerate(tiny_families.FAMILIES):
        every = lives_of(family)
        for life in every:
            # By this offset gated delta nets and Mamba-2 meet drafts that are rejected.
            is_fast = family in IN_ALL or life is every[(number + 4) % len(every)]
            yield (family, life) if is_fast else slow(family, life)
    # Whether layers of different sizes reach each tier whole shows in one family of them.
    for life in (guessed, from_host, from_disk):
        yield from ((UNEQUAL[0], life), slow(UNEQUAL[1], life))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @functools.cache
    def saved(family: str) -> Path:
        path = tmp_path_factory.mktemp(family)
        tiny_families.FAMILIES[family]().save_pretrained(path)
        return path

    return saved


@pytest.fixture(scope="module")
def expected(folder: Callable[[str], Path]) -> Expected:
    known: dict[str, list[list[int]]] = {}

    def tokens(family: str, guesses: list[list[int]]) -> list[list[int]]:
        if family not in known:
            reference = tiny_families.load_reference(folder(family), torch.float64)
            prompts = zip(of_family(family), guesses, strict=True)
            known[family] = [tiny_models.greedy(reference, prompt, MAX_TOKENS, guess) for prompt, guess in prompts]
        return known[family]

    return tokens


@pytest.mark.parametrize(("family", "life"), [*cases()], ids=lambda value: getattr(value, "__name__", value))
def test_a_life_changes_no_token(family: str, life: Life, folder: Callable[[str], Path], expected: Expected) -> None:
    found = life(folder(family), of_family(family))
    assert all(token < VOCAB_SIZE for tokens in expected(family, found) for token in tokens)
    assert found == expected(family, found)
