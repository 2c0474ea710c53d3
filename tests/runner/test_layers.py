"""Layers of a resident chunk between other steps: the same results as the whole chunk in one step."""

from __future__ import annotations

import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tiny_families
import tiny_models
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.assembly.memory import open_chunk_bytes
from sluice.config import EngineConfig
from sluice.device.memory import tensor_bytes
from sluice.models.decoder import Decoder
from sluice.types import BatchPlan, Chunk, ChunkSlice, NewSlot, PlanError, SamplingParams, Submit

GREEDY = SamplingParams(max_tokens=4, temperature=0.0, seed=0, logprobs=2, prompt_logprobs=1)
PROMPT = tiny_models.prompt(40)
OTHER = tiny_models.prompt(9, 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = tmp_path_factory.mktemp("gemma3")
    tiny_families.FAMILIES["gemma3"]().save_pretrained(path)
    options = {"model": str(path), "dtype": "float32", "page_size": 4, "max_total_tokens": 256, "itl_target": "9ms"}
    return load(EngineConfig.from_options(options | {"sliced_chunk_size": 64}), progress=False)


def new_slot(slot: int) -> NewSlot:
    return NewSlot(slot, Submit(slot, (), GREEDY), 1)


def whole_chunk(slot: int, tokens: tuple[int, ...], first_page: int) -> Chunk:
    pages = tuple(range(first_page, first_page + -(-len(tokens) // 4)))
    return Chunk(slot, slot, 0, len(tokens), tokens, pages, True, tokens[1:], new_window_pages=pages)


def slice_of(chunk: Chunk, first: int, stop: int, total: int) -> ChunkSlice:
    return ChunkSlice(chunk, (), 0, (), first, stop, total, is_resident=True)


def test_layers_between_other_steps_give_what_one_step_gives(model: LoadedModel) -> None:
    chunk, other, layers = whole_chunk(0, PROMPT, 0), whole_chunk(1, OTHER, 20), model.spec.num_layers
    expected = model.runner().launch(BatchPlan(0, (new_slot(0),), (chunk,))).wait()
    runner = model.runner()
    runner.launch(BatchPlan(0, (new_slot(0),), (), slices=(slice_of(chunk, 0, 1, layers),))).wait()
    found = runner.launch(BatchPlan(1, (new_slot(1),), (other,), slices=(slice_of(chunk, 1, 2, layers),))).wait()
    assert len(found.token_ids) == 1, "only the other prompt brings a token"
    for number in range(2, layers - 1):
        runner.launch(BatchPlan(number, (), (), slices=(slice_of(chunk, number, number + 1, layers),))).wait()
    decode = Chunk(1, 1, len(OTHER), 1, (), (), True)
    last = slice_of(chunk, layers - 1, layers, layers)
    done = runner.launch(BatchPlan(layers, (), (decode, chunk), num_decodes=1, slices=(last,))).wait()
    assert done.token_ids[1] == expected.token_ids[0]
    # torch multiplies by the head in another order beside another row.
    (one,), (other_one,) = done.logprobs[1], expected.logprobs[0]
    assert one.logprob == pytest.approx(other_one.logprob, abs=1e-5)
    (scored,), (expected_scored,) = done.prompt_logprobs, expected.prompt_logprobs
    assert [each.token_id for each in scored] == list(PROMPT[1:])
    assert [each.logprob for each in scored] == pytest.approx([each.logprob for each in expected_scored], abs=1e-5)


def test_the_next_token_reads_what_the_layers_have_written(model: LoadedModel) -> None:
    chunk, layers = whole_chunk(0, PROMPT, 0), model.spec.num_layers
    decode = Chunk(0, 0, len(PROMPT), 1, (), (10,), True, new_window_pages=(10,))
    found = []
    for cuts in ([0, layers], [0, 1, layers - 1, layers]):
        runner = model.runner()
        for number, (first, stop) in enumerate(pairwise(cuts)):
            new, chunks = (new_slot(0),) if not first else (), (chunk,) if stop == layers else ()
            part = slice_of(chunk, first, stop, layers)
            runner.launch(BatchPlan(number, new, chunks, slices=(part,))).wait()
        found.append(runner.launch(BatchPlan(9, (), (decode,), num_decodes=1)).wait())
    assert found[0] == found[1]


def test_layers_that_follow_on_nothing_are_refused(model: LoadedModel) -> None:
    chunk, layers = whole_chunk(0, PROMPT, 0), model.spec.num_layers
    runner = model.runner()
    runner.launch(BatchPlan(0, (new_slot(0),), (), slices=(slice_of(chunk, 0, 1, layers),))).wait()
    with pytest.raises(ValueError, match=r"layers 2 to 3 of .* follow on"):
        runner.launch(BatchPlan(1, (), (), slices=(slice_of(chunk, 2, 3, layers),))).wait()


def test_a_new_request_in_the_slot_drops_what_is_half_done(model: LoadedModel) -> None:
    chunk, layers = whole_chunk(0, PROMPT, 0), model.spec.num_layers
    runner = model.runner()
    runner.launch(BatchPlan(0, (new_slot(0),), (), slices=(slice_of(chunk, 0, 1, layers),))).wait()
    runner.launch(BatchPlan(1, (new_slot(0),), (whole_chunk(0, OTHER, 0),))).wait()
    with pytest.raises(ValueError, match="follow on None"):
        runner.launch(BatchPlan(2, (), (), slices=(slice_of(chunk, 1, 2, layers),))).wait()


def test_what_is_given_up_is_dropped_with_the_next_step(model: LoadedModel) -> None:
    """Its slot may not be used again for long, and the hidden states of a long chunk are large."""
    chunk, other, layers = whole_chunk(0, PROMPT, 0), whole_chunk(1, OTHER, 20), model.spec.num_layers
    for beside in ({"new_slots": (new_slot(1),), "chunks": (other,)}, {"slices": (slice_of(chunk, 1, 2, layers),)}):
        runner = model.runner()
        runner.launch(BatchPlan(0, (new_slot(0),), (), slices=(slice_of(chunk, 0, 1, layers),))).wait()
        found: Any = runner._slices.layers
        kept = weakref.ref(found._half_done[0].parts[0].batch.input_ids)
        runner.launch(BatchPlan(1, **{"new_slots": (), "chunks": (), "given_up": (0,)} | beside)).wait()
        assert kept() is None


def test_a_model_without_layers_to_divide_refuses_the_plan(tmp_path: Path) -> None:
    tiny_families.FAMILIES["gemma3"]().save_pretrained(tmp_path)
    options = {"model": str(tmp_path), "dtype": "float32", "page_size": 4, "max_total_tokens": 64, "itl_target": "off"}
    model = load(EngineConfig.from_options(options), progress=False)
    chunk = whole_chunk(0, PROMPT, 0)
    with pytest.raises(PlanError, match="divides the layers of a chunk"):
        model.runner().launch(BatchPlan(0, (new_slot(0),), (), slices=(slice_of(chunk, 0, 1, model.spec.num_layers),)))


def test_nothing_is_kept_of_a_chunk_that_is_complete(model: LoadedModel) -> None:
    chunk, layers = whole_chunk(0, PROMPT, 0), model.spec.num_layers
    runner = model.runner()
    runner.launch(BatchPlan(0, (new_slot(0),), (chunk,), slices=(slice_of(chunk, 0, layers, layers),))).wait()
    with pytest.raises(ValueError, match="follow on None"):
        runner.launch(BatchPlan(1, (), (chunk,), slices=(slice_of(chunk, 1, layers, layers),))).wait()


@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_a_half_done_chunk_keeps_no_more_than_is_reserved(family: str, tmp_path: Path) -> None:
    """On a GPU the KV pool leaves this much for all of them."""
    tiny_families.FAMILIES[family]().save_pretrained(tmp_path)
    options = {"model": str(tmp_path), "dtype": "float32", "page_size": 4, "max_total_tokens": 256, "itl_target": "9ms"}
    model = load(EngineConfig.from_options(options | {"sliced_chunk_size": len(PROMPT)}), progress=False)
    assert isinstance(model.model, Decoder)
    chunk, runner = whole_chunk(0, PROMPT, 0), model.runner()
    runner.launch(BatchPlan(0, (new_slot(0),), (), slices=(slice_of(chunk, 0, 1, model.spec.num_layers),))).wait()
    layers: Any = runner._slices.layers
    found = layers._half_done[0].parts[0].walk.gi_frame.f_locals
    kept = [each for name in ("x", "delta") if (each := found[name]) is not None]
    kept += [each for angles in found["angles"] for each in angles]
    kept += [each for each in found["extras"] if each is not None]
    limits = replace(model.info.config.scheduler.limits(), max_partial_prefills=1)
    assert 0 < tensor_bytes(kept) <= open_chunk_bytes(limits, model.model)
