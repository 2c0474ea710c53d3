"""Adapters in an engine: each request's tokens are those of a model with its adapter merged into the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from drafted import Planner
from lora_makers import ATTENTION, Lora, wide
from recording import RecordingRunner
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.config import EngineConfig
from sluice.testing.link import ManualLink
from sluice.types import BatchPlan, Chunk, ChunkSlice, NewSlot, SamplingParams, Submit

LORAS = (
    Lora(1, rank=1),
    Lora(2, rank=3, alpha=5.0),
    Lora(3, rank=16, alpha=4.0, use_rslora=True),
    Lora(4, rank=8, targets=ATTENTION),
    Lora(5, rank=2, targets=("q_proj", "v_proj")),
    Lora(6, rank=5, targets=("gate_proj", "down_proj")),
    Lora(7, rank=4, rank_pattern={"layers.0.self_attn.q_proj": 7}, alpha_pattern={"up_proj": 1.5}),
    Lora(8, rank=6, targets=("o_proj", "up_proj", "k_proj")),
)
BY_NAME = {f"lora-{lora.seed}": lora for lora in LORAS}
MOST = 12
PROMPTS = [tiny_models.prompt(length, number) for number, length in enumerate((5, 17, 30, 9, 41, 3, 22, 12, 26, 8))]


Asked = tuple[str, Sequence[int]]
"""The adapter of a request, and its prompt."""


class Served:
    """An engine over a model with adapters."""

    def __init__(self, folder: Path, loras: Mapping[str, Path], **options: Any) -> None:
        options = {"model": str(folder), "dtype": "float64", "max_total_tokens": 2048, "page_size": 8} | options
        if loras:
            options |= {"enable_lora": True, "max_loras": 8, "max_lora_rank": 16}
        self.loaded: LoadedModel = load(EngineConfig.from_options(options), progress=False)
        self.digests: dict[str, str] = {"": ""}
        for name, path in loras.items():
            assert self.loaded.adapters is not None
            adapter = self.loaded.adapters.read(name, str(path))
            self.loaded.adapters.load(adapter)
            self.digests[name] = adapter.info.digest

    def submit(self, number: int, asked: Asked) -> Submit:
        """Return a request."""
        name, prompt = asked
        sampling = SamplingParams(max_tokens=MOST, temperature=0.0, ignore_eos=True)
        resolved = sampling.resolved(eos_ids=(), room=MOST, seed=0)
        return Submit(number, tuple(prompt), resolved, adapter=self.digests[name], extra_key=self.digests[name])

    def tokens(self, asked: Sequence[Asked], lose_after: int | None = None) -> list[tuple[int, ...]]:
        """Return the tokens of requests that run together.

        Args:
            lose_after: the device loses everything after so many steps.
        """
        link = ManualLink()
        self.runner = RecordingRunner(self.loaded.runner())
        self.engine = self.loaded.engine(link, self.runner)
        link.put(*(self.submit(number, each) for number, each in enumerate(asked)))
        steps = 0
        while not steps or not self.engine.is_idle:
            if steps == lose_after:
                assert not self.engine.in_flight
                self.engine.scheduler.forget_device()
                self.engine.runner = RecordingRunner(self.loaded.runner())
            self.engine.step()
            steps += 1
        assert lose_after is None or steps > lose_after, "nothing was lost"
        return [link.tokens(number) for number in range(len(asked))]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    wide(tiny_models.llama()).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, model = tmp_path_factory.mktemp("adapters"), tiny_models.llama()
    return {name: lora.save(model, folder / name) for name, lora in BY_NAME.items()}


class Merged:
    """Models with one adapter in their weights, each loaded when it is first asked."""

    def __init__(self, base: Path, folder: Path) -> None:
        self._base = base
        self._folder = folder
        self._served: dict[str, Served] = {}

    def tokens(self, name: str, prompt: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of a prompt with an adapter, or without one."""
        if name not in self._served:
            folder = self._base
            if name:
                model, folder = wide(tiny_models.llama()), self._folder / name
                BY_NAME[name].merge(model)
                model.save_pretrained(folder)
            self._served[name] = Served(folder, {})
        return self._served[name].tokens([("", prompt)])[0]


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Merged:
    return Merged(base, tmp_path_factory.mktemp("merged"))


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    """Return a request for each adapter, and two without one."""
    return list(zip((*BY_NAME, "", ""), PROMPTS, strict=True))


@pytest.fixture(scope="module")
def expected(merged: Merged, asked: list[Asked]) -> list[tuple[int, ...]]:
    found = [merged.tokens(name, prompt) for name, prompt in asked]
    assert len(set(found)) == len(found)
    return found


def test_many_adapters_in_one_step(
    base: Path, adapters: dict[str, Path], asked: list[Asked], expected: list[tuple[int, ...]]
) -> None:
    """Rows of one adapter that are computed with another one's matrices, or rows without one that are changed."""
    served = Served(base, adapters)
    assert served.tokens(asked) == expected
    assert max(len(plan.chunks) for plan in served.runner.plans) == len(asked)


def test_slots_of_requests_change_hands(
    base: Path, adapters: dict[str, Path], asked: list[Asked], expected: list[tuple[int, ...]]
) -> None:
    """A slot whose next request is computed with the adapter of the last one; prompts in pieces among decodes."""
    served = Served(base, adapters, chunked_prefill_size=9, page_size=4, max_running_requests=3)
    assert served.tokens(asked) == expected


def test_a_device_that_lost_everything(
    base: Path, adapters: dict[str, Path], asked: list[Asked], expected: list[tuple[int, ...]]
) -> None:
    """Streams that go on without their adapter."""
    served = Served(base, adapters, chunked_prefill_size=10, max_running_requests=4)
    assert served.tokens(asked, lose_after=9) == expected


def test_preempted_requests_keep_their_adapter(
    base: Path, adapters: dict[str, Path], asked: list[Asked], expected: list[tuple[int, ...]]
) -> None:
    """A request that comes back to another slot, and is computed without its adapter there."""
    sizes = {"page_size": 4, "chunked_prefill_size": 10, "max_running_requests": 3, "max_total_tokens": 56}
    served = Served(base, adapters, **sizes, schedule_conservativeness=0.0)
    assert served.tokens(asked) == expected
    admitted = [new.request_id for plan in served.runner.plans for new in plan.new_slots]
    assert len(admitted) > len(set(admitted)), "no request was preempted"


def test_drafts_are_checked_with_the_adapter(
    base: Path, adapters: dict[str, Path], asked: list[Asked], expected: list[tuple[int, ...]]
) -> None:
    """Rows of several tokens of which only the first is computed with its adapter."""
    served = Served(base, adapters)
    runner = served.loaded.runner()
    planner = Planner(runner, served.loaded.shape.num_pages, 8, chunk=64, most=3)

    def guess(submit: Submit, outputs: Sequence[int], at_most: int) -> Sequence[int]:
        """Guess two tokens right and one wrong."""
        rest = expected[submit.request_id][len(outputs) :][:at_most]
        return (*rest[:2], *((token + 1) % tiny_models.VOCAB_SIZE for token in rest[2:]))

    found = planner.run([served.submit(number, each) for number, each in enumerate(asked)], guess)
    assert [tuple(answer.tokens) for answer in found] == expected
    assert planner.accepted > 3 * len(asked)


def test_a_chunk_that_pauses_between_two_layers(
    base: Path, adapters: dict[str, Path], asked: list[Asked], expected: list[tuple[int, ...]]
) -> None:
    """It goes on with its own adapter, although another one's rows were computed between its layers."""
    served = Served(base, adapters, page_size=4, max_running_requests=3, itl_target="9ms", sliced_chunk_size=64)
    chunks = [
        Chunk(
            number, slot, 0, len(prompt), tuple(prompt), tuple(range(20 * slot, 20 * slot + -(-len(prompt) // 4))), True
        )
        for slot, (number, prompt) in enumerate((number, asked[number][1]) for number in (4, 2))
    ]
    slots = [NewSlot(slot, served.submit(number, asked[number]), 1) for slot, number in enumerate((4, 2))]
    first, rest = (
        ChunkSlice(chunks[0], (), 0, (), begin, end, served.loaded.spec.num_layers, is_resident=True)
        for begin, end in ((0, 1), (1, served.loaded.spec.num_layers))
    )
    runner = served.loaded.runner()
    runner.launch(BatchPlan(0, (slots[0],), (), slices=(first,))).wait()
    between = runner.launch(BatchPlan(1, (slots[1],), (chunks[1],))).wait()
    found = runner.launch(BatchPlan(2, (), (chunks[0],), slices=(rest,))).wait()
    assert (between.token_ids[0][0], found.token_ids[0][0]) == (expected[2][0], expected[4][0])
