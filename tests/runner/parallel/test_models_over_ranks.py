"""Real models over several ranks, in every mode: the tokens and log-probabilities of one rank, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_families
import tiny_models
from drafted import DraftedWorld
from ranks import FakeGrammar, answer_of, running
from slow import slow
from sluice.attention.reference import ReferenceAttention
from sluice.engine.messages import Abort
from sluice.models.base import PagedLM
from sluice.models.loader import load_model
from sluice.parallel.layout import Layout
from sluice.parallel.member import ALONE, Member
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.features.grammars import GrammarMasks
from sluice.runner.runner import TorchRunner
from sluice.types import (
    NO_SAMPLING,
    BatchPlan,
    Chunk,
    ChunkSlice,
    NewSlot,
    PlanError,
    Regime,
    SamplingParams,
    Submit,
    TierLimits,
)
from sluice.types.layer_items import LayerItems
from worlds import Bench, World, assert_same_logprobs, limits_of

pytestmark = pytest.mark.usefixtures("one_thread")
TP, PP, BOTH, THREE = Layout(2), Layout(1, 2), Layout(2, 2), Layout(1, 3)
NAMES = {TP: "tp2", PP: "pp2", BOTH: "tp2 pp2", THREE: "pp3"}
CPU = torch.device("cpu")
GRAMMAR = FakeGrammar(tiny_models.VOCAB_SIZE)
FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": tiny_models.llama,
    "gpt2": lambda: tiny_models.gpt2(n_embd=32, n_head=4),
    "layers of two sizes": tiny_families.gemma4_31b,
}
LAYERS = {"itl_target": 1, "sliced_chunk_size": 16, "num_layers": 3, "part_tokens": 3}
MODES: dict[str, dict[str, Any]] = {
    "mixed": {},
    "prefill first": {"schedule": "prefill-first"},
    "whole prompts": {"chunk": 0, "batch": 64},
    "chunks of five": {"chunk": 5},
    "preemption": {"num_pages": 9},
    "lookahead": {"lookahead": 1},
    "layers": LAYERS,
    "layers, preemption": LAYERS | {"num_pages": 9},
    "layers, lookahead": LAYERS | {"lookahead": 1},
    "layers, one part": LAYERS | {"part_tokens": 64},
    "layers, two prompts": LAYERS | {"max_partial_prefills": 2},
    "no cache": {"prefix_caching": False},
    "host tier": {"num_pages": 9, "tiers": TierLimits(host_pages=40)},
}


CASES = [
    *(("llama", "mixed", TP), ("llama", "lookahead", PP), ("llama", "host tier", BOTH), ("gpt2", "mixed", BOTH)),
    *(("llama", "layers", TP), ("llama", "layers", PP), ("llama", "layers, preemption", THREE)),
    *(slow("llama", mode, layout) for mode in MODES if "layers" in mode for layout in (BOTH, THREE)),
    ("layers of two sizes", "host tier", BOTH),
    *(slow("llama", "preemption", layout) for layout in (TP, PP, BOTH)),
    *(slow("llama", mode, BOTH) for mode in MODES if mode not in ("preemption", "host tier") and "layers" not in mode),
    *(slow("gpt2", "mixed", layout) for layout in (TP, PP)),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each family."""
    found = {}
    for family, make in FAMILIES.items():
        found[family] = tmp_path_factory.mktemp(family)
        make().save_pretrained(found[family])
    return found


def submits() -> list[Submit]:
    """Requests that ask for all there is, two of them with the same beginning."""
    params = {"max_tokens": 9, "temperature": 0.0, "seed": 0, "ignore_eos": True}
    asked: list[tuple[dict[str, Any], str]] = [
        ({"logprobs": 3}, ""),
        ({"temperature": 1.0, "seed": 3}, ""),
        ({"temperature": 1.0, "seed": 4, "top_k": 20, "top_p": 0.9, "logprobs": 0}, ""),
        ({"frequency_penalty": 1.2, "repetition_penalty": 1.4, "logit_bias": {5: 3.0, 100: 2.0}}, ""),
        ({"prompt_logprobs": 2, "logprobs": 1}, "any"),
        ({"temperature": 1.0, "min_p": 0.1, "presence_penalty": 0.5}, "any"),
    ]
    prompts = [tiny_models.prompt(length, seed % 4) for seed, length in enumerate((11, 3, 17, 6, 9, 8))]
    found = [
        Submit(i, prompts[i], SamplingParams(**params | changes), grammar=grammar)
        for i, (changes, grammar) in enumerate(asked)
    ]
    found.append(Submit(6, prompts[0] + (7, 8, 9), SamplingParams(**params)))
    return [*found, Submit(7, prompts[2], NO_SAMPLING, embeds=True)]


def world_of(layout: Layout, **options: Any) -> World:
    places = {name: options.pop(name) for name in ("num_pages", "prefix_caching", "tiers") if name in options}
    is_ahead = layout.pipeline_size == 1
    limits = limits_of(
        **{"chunk": 8, "running": 3, "lookahead": int(is_ahead), "pipeline_stages": layout.pipeline_size, **options}
    )
    return World(limits, **{"num_pages": 40, "page_size": 4, "depth": layout.pipeline_size + 1, **places})


def part(folder: Path, member: Member) -> PagedLM:
    return load_model(folder, dtype="float64", device=CPU, progress=False, member=member)[0]


def shape_of(folder: Path, world: World, member: Member) -> DeviceShape:
    spec = part(folder, ALONE).spec.of(member.place)
    pages = world.num_pages
    return DeviceShape.of(spec, CPU, num_slots=3, num_pages=pages, page_size=world.page_size, row_pages=pages)


def answers(bench: Bench) -> list[object]:
    """Everything that all requests were sent, in a run to the end."""
    asked = submits()
    bench.link.put(*asked[:5])
    for _ in range(6):
        bench.step()
    bench.link.put(*asked[5:])
    bench.drain(2000)
    return [answer_of(bench, each) for each in asked]


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, list[object]]:
    """What one rank answers, which no mode changes."""
    world, found = world_of(Layout()), {}
    for family, folder in folders.items():
        state = DeviceState(shape_of(folder, world, ALONE), new_grammars=partial(GrammarMasks, grammars=GRAMMAR))
        found[family] = answers(Bench.of(world, TorchRunner(part(folder, ALONE), state, ReferenceAttention())))
    return found


@pytest.mark.parametrize(("family", "mode", "layout"), CASES, ids=lambda each: NAMES.get(each, each))
def test_no_layout_and_no_mode_changes_an_answer(
    folders: dict[str, Path], expected: dict[str, list[object]], family: str, mode: str, layout: Layout
) -> None:
    world, folder = world_of(layout, **MODES[mode]), folders[family]
    tier, is_ahead = world.tiers.host_pages, world.limits.lookahead > 0
    parts = partial(part, folder), partial(shape_of, folder, world)
    with running(layout, *parts, GRAMMAR, host_pages=tier, is_ahead=is_ahead) as ranks:
        bench = Bench.of(world, ranks.leader)
        assert answers(bench) == expected[family]
        occupancy = bench.scheduler.occupancy()
        timed = bench.engine.meter.totals().itl
    assert "layers" not in mode or (timed is not None and timed.regimes.keys() & {Regime.SLICED, Regime.LAYERS})
    assert occupancy.preemptions > 0 or mode not in ("preemption", "layers, preemption", "host tier")
    assert mode != "host tier" or (occupancy.tiers[0].loaded > 0 and occupancy.tiers[0].failed_loads == 0)


@pytest.mark.parametrize("layout", [PP, slow(THREE)], ids=NAMES.get)
def test_an_open_chunk_that_is_aborted_changes_no_other_answer(
    folders: dict[str, Path], expected: dict[str, list[object]], layout: Layout
) -> None:
    """Whichever stage computes it: what it has sent is no other chunk's, in the slot that it leaves."""
    world, folder = world_of(layout, **LAYERS), folders["llama"]
    asked, aborted = submits(), set[int]()
    with running(layout, partial(part, folder), partial(shape_of, folder, world), GRAMMAR) as ranks:
        bench = Bench.of(world, ranks.leader)
        requests = bench.scheduler.state.requests
        params = SamplingParams(max_tokens=1, seed=0)
        bench.link.put(Submit(10, tiny_models.prompt(3), replace(params, max_tokens=60, ignore_eos=True)))
        for _ in range(9):
            bench.step()
        bench.link.put(*(Submit(11 + seed, tiny_models.prompt(40, seed), params) for seed in range(4)))
        bench.step()
        while not bench.is_idle:
            halves = [r for r in requests.values() if r.sliced and r.sliced.planned > max(aborted, default=0)]
            for request in halves[:1]:
                bench.link.put(Abort(request.id))
                aborted.add(request.sliced.planned if request.sliced else 0)
            bench.step()
        bench.link.put(*asked)
        bench.drain(2000)
        assert [answer_of(bench, each) for each in asked] == expected["llama"]
    assert len(aborted) > 1


@pytest.mark.parametrize("layout", [PP, THREE], ids=NAMES.get)
def test_parts_of_a_chunk_are_sampled_scored_and_embedded_as_all_of_it(
    folders: dict[str, Path], layout: Layout
) -> None:
    world, folder = world_of(layout, **LAYERS), folders["llama"]
    asks = SamplingParams(temperature=0.0, seed=0, max_tokens=2, logprobs=2, prompt_logprobs=1)
    prompts = tiny_models.prompt(17), tiny_models.prompt(14, 1)
    chunks = (
        Chunk(0, 0, 0, 17, prompts[0], (0, 1, 2, 3, 4), samples=True, targets=prompts[0][1:]),
        Chunk(1, 1, 0, 14, prompts[1], (5, 6, 7, 8), samples=False, embeds=True),
    )
    new = NewSlot(0, Submit(0, (), asks), 17), NewSlot(1, Submit(1, (), NO_SAMPLING, embeds=True), 14)
    state = DeviceState(shape_of(folder, world, ALONE))
    one = TorchRunner(part(folder, ALONE), state, ReferenceAttention())
    expected = [one.launch(BatchPlan(0, new, chunks)).wait()]
    (token, *_) = expected[0].token_ids
    decode = BatchPlan(99, (), (Chunk(0, 0, 17, 1, token, (), samples=True),), num_decodes=1)
    expected.append(one.launch(decode).wait())
    items = LayerItems.of(3, layout.pipeline_size, 17, 4)
    assert items.parts == 4
    with running(layout, partial(part, folder), partial(shape_of, folder, world)) as ranks:
        for item in range(items.total):
            slices = tuple(
                ChunkSlice(each, (), 0, (), item, item + 1, items.total, is_resident=True) for each in chunks
            )
            done = chunks if item == items.total - 1 else ()
            result = ranks.leader.launch(BatchPlan(item, () if item else new, done, slices=slices)).wait()
        found = [result, ranks.leader.launch(decode).wait()]
    for one_result, other in zip(expected, found, strict=True):
        assert other.token_ids == one_result.token_ids
        assert_same_logprobs(
            [each for row in (*other.logprobs, *other.prompt_logprobs) for each in row],
            [each for row in (*one_result.logprobs, *one_result.prompt_logprobs) for each in row],
        )
    vectors = [np.frombuffer(each[0].embeddings[0], dtype="<f4") for each in (expected, found)]
    assert np.allclose(*vectors, atol=1e-6)
    assert len(found[0].prompt_logprobs[0]) == 16


def test_layers_are_refused_and_answered_by_stage(folders: dict[str, Path]) -> None:
    """A step without rows is over when all stages are done with it. One with layers of two rounds is none."""
    world, folder = world_of(THREE, **LAYERS), folders["llama"]
    prompt, new = tiny_models.prompt(12), NewSlot(0, Submit(0, (), SamplingParams(max_tokens=1, seed=0)), 12)
    chunk = Chunk(0, 0, 0, 12, prompt, (0, 1, 2), samples=True)

    def step(number: int, first: int, stop: int) -> BatchPlan:
        slices = (ChunkSlice(chunk, (), 0, (), first, stop, 3, is_resident=True),)
        return BatchPlan(number, () if first else (new,), (chunk,) if stop == 3 else (), slices=slices)

    with running(THREE, partial(part, folder), partial(shape_of, folder, world)) as ranks:
        with pytest.raises(PlanError, match="work items 0 to 2 of several rounds, each of 1"):
            ranks.leader.launch(step(0, 0, 2))
        results = [ranks.leader.launch(step(number, number, number + 1)).wait() for number in range(3)]
    assert [len(each.stage_micros) for each in results] == [3, 3, 3]
    assert [len(each.token_ids) for each in results] == [0, 0, 1]


@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        *(("lookahead", Layout()), ("preemption", BOTH)),
        *(slow(mode, Layout()) for mode in MODES if mode != "lookahead" and "layers" not in mode),
        *(slow("lookahead", PP), slow("host tier", BOTH)),
    ],
    ids=lambda each: NAMES.get(each, each),
)
def test_drafts_change_no_answer(
    folders: dict[str, Path], expected: dict[str, list[object]], mode: str, layout: Layout
) -> None:
    """Under the real scheduler, on one rank and on several: beside prompts, chunks and rows that overlap, over pages
    that come from the cache or a tier, and after preemptions."""
    known = {number: answer[0] for number, answer in enumerate(expected["llama"])}
    world, folder = world_of(layout, **MODES[mode]), folders["llama"]
    same = {each.name: getattr(world, each.name) for each in fields(world)}
    world = DraftedWorld(**same | {"limits": replace(world.limits, num_draft_tokens=4)}, known=known)
    parts = partial(part, folder), partial(shape_of, folder, world)
    is_ahead = world.limits.lookahead > 0
    with running(layout, *parts, GRAMMAR, host_pages=world.tiers.host_pages, is_ahead=is_ahead) as ranks:
        bench = Bench.of(world, ranks.leader)
        assert answers(bench) == expected["llama"]
    drafter = bench.scheduler.state.drafter
    assert 10 < drafter.accepted < drafter.drafted


def test_a_page_that_one_rank_lost_is_computed_again(
    folders: dict[str, Path], expected: dict[str, list[object]]
) -> None:
    """Only the sum of the checksums is known, and only one of its parts is wrong."""
    world, folder = world_of(BOTH, **MODES["host tier"]), folders["llama"]
    with running(BOTH, partial(part, folder), partial(shape_of, folder, world), GRAMMAR, host_pages=40) as ranks:
        bench = Bench.of(world, ranks.leader)
        asked = submits()
        bench.link.put(*asked)
        bench.drain(2000)
        again = [replace(each, request_id=each.request_id + 10) for each in asked]
        for page in range(40):
            ranks.tiers[2].page(page)[0, 0] ^= 1
        bench.link.put(*again)
        bench.drain(2000)
        assert [answer_of(bench, each) for each in again] == expected["llama"]
        assert bench.scheduler.occupancy().tiers[0].failed_loads > 0
