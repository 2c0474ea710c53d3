"""What the kernels did of a forward, done again: against the same done anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import tiny_models
from drafted import Planner, guesser, plain
from lora_makers import Lora
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.states import BLOCK
from sluice.config import EngineConfig
from sluice.engine.heartbeat import Heartbeat, Phase
from sluice.engine.messages import Submit
from sluice.kernels.cpu.library import Kernels, KernelsUnavailable, Library
from sluice.models.native_ops import NativeOps
from sluice.models.ops import Norm
from sluice.runner.forwards import Model
from sluice.runner.kernel_capture import Arena, CaptureError, KernelCapture
from sluice.runner.runner import TorchRunner
from sluice.types import SamplingParams, StateLimits, WindowLimits
from tiny_families import granite_hybrid, qwen3_5
from worlds import Bench, World, limits_of

try:
    LIBRARY = Library()
    LEVEL = LIBRARY.best()
except KernelsUnavailable as error:
    pytest.skip(f"no compiled kernels: {error}", allow_module_level=True)

WORLD = World(limits_of(chunk=32, running=7), num_pages=40, page_size=32)
HEADS_OF_16 = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES = {
    "qwen3": HEADS_OF_16 | {"head_dim": 16},
    "mistral": HEADS_OF_16 | {"head_dim": 32},
    "gpt2": {"n_embd": 64, "n_head": 4},
}
"""Family -> sizes that the kernels take."""


class Counted:
    """A model that counts the steps that its Python ran of each number of rows."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.decodes: list[int] = []

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        if batch.num_decodes == len(batch.q_lens):
            self.decodes.append(batch.num_decodes)
        return self._model.forward(batch, kv, attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden)


def loaded(folder: Path, **more: Any) -> LoadedModel:
    sizes = {"max_total_tokens": WORLD.num_pages * WORLD.page_size, "page_size": WORLD.page_size}
    running = WORLD.limits.max_running_requests
    options = {"model": str(folder), "dtype": "bfloat16", "max_running_requests": running, "threads": 1}
    options["itl_target"] = "off"  # with a target, layers would need the model itself, not what counts its calls
    return load(EngineConfig.from_options(options | sizes | more), progress=False)


def eager_runner(model: LoadedModel) -> TorchRunner:
    attention = model.backend.make(model.shape.device, model.kernels, lambda: None)
    return TorchRunner(model.model, model.state(), attention)


def submits() -> list[Submit]:
    """They come and end one by one, so that steps of every number of rows come in every order."""
    ends = (9, 30, 4, 21, 2, 40, 12, 25, 7, 33)
    prompts = [tiny_models.prompt(length, seed) for seed, length in enumerate((3, 40, 1, 17, 60, 9, 33, 64, 2, 31))]
    params = [SamplingParams(temperature=0.7, seed=seed, max_tokens=end) for seed, end in enumerate(ends)]
    return [Submit(i, prompt, own) for i, (prompt, own) in enumerate(zip(prompts, params, strict=True))]


def answers(
    runner: TorchRunner, adapters: Sequence[str] = ("",), windows: WindowLimits | None = None
) -> list[tuple[int, ...]]:
    """Return the tokens of the requests, which have the adapters with these digests in turn."""
    world = replace(WORLD, limits=replace(WORLD.limits, max_loras=len(adapters) - 1), windows=windows)
    bench = Bench.of(world, runner)
    for number, submit in enumerate(submits()):
        submit = replace(submit, adapter=adapters[number % len(adapters)])
        bench.link.put(submit)
        for _ in range(3):
            bench.engine.step()
    bench.drain(400)
    return [bench.link.tokens(submit.request_id) for submit in submits()]


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_eager_steps(family: str, tmp_path: Path) -> None:
    """A replay over memory that another step had meanwhile, or with the lengths of the capture, gives other tokens."""
    tiny_models.FAMILIES[family](**FAMILIES[family]).save_pretrained(tmp_path)
    model = loaded(tmp_path)
    counted = Counted(model.model)
    replayed = answers(replace(model, model=counted).runner(), windows=model.windows)
    assert sorted(counted.decodes) == sorted(set(counted.decodes)), "each number of rows is captured once"
    assert len(counted.decodes) >= 6
    assert replayed == answers(eager_runner(model), windows=model.windows)


def test_steps_with_adapters_are_captured_by_themselves(tmp_path: Path) -> None:
    """A replay with the adapters that the rows of the capture had; or steps without any that pay for those."""
    tiny = tiny_models.qwen3(**FAMILIES["qwen3"])
    tiny.save_pretrained(tmp_path)
    model = loaded(tmp_path, enable_lora=True, max_loras=3, max_lora_rank=8)
    assert model.adapters is not None
    digests = [""]
    for seed, rank in ((1, 8), (2, 3), (3, 5)):
        adapter = model.adapters.read(str(seed), str(Lora(seed, rank).save(tiny, tmp_path / str(seed))))
        model.adapters.load(adapter)
        digests.append(adapter.info.digest)
    counted = Counted(model.model)
    runner = replace(model, model=counted).runner()
    without = answers(runner)
    captured = len(counted.decodes)
    replayed = answers(runner, digests)
    assert captured < len(counted.decodes) <= 2 * captured, "each number of rows is captured once with adapters"
    assert answers(runner) == without == answers(eager_runner(model))
    assert replayed == answers(eager_runner(model), digests)
    assert [each for each, old in zip(replayed, without, strict=True) if each == old] == without[::4]


@pytest.mark.parametrize("family", [qwen3_5, granite_hybrid])
def test_rows_with_states_find_their_own_in_a_replay(
    family: Callable[..., transformers.PreTrainedModel], tmp_path: Path
) -> None:
    """A replay with the slots and positions of its capture; or one that moves no anchor and makes no record."""
    of_kernels = dict.fromkeys(("head_dim", "linear_key_head_dim", "linear_value_head_dim", "mamba_d_state"), 16)
    sizes = HEADS_OF_16 | of_kernels | {"mamba_n_heads": 4, "mamba_expand": 1}
    family(**sizes).save_pretrained(tmp_path)
    model = loaded(tmp_path)
    states = StateLimits(BLOCK, model.shape.num_records, spacing=BLOCK)
    counted = Counted(model.model)
    replayed, hits = two_turns(replace(model, model=counted).runner(), states)
    assert max(Counter(counted.decodes).values()) == 1, "each number of rows is captured once"
    assert hits
    assert (replayed, hits) == two_turns(eager_runner(model), states)


def two_turns(runner: TorchRunner, states: StateLimits) -> tuple[list[tuple[int, ...]], int]:
    """Return the tokens of two turns of conversations, and how many second ones begin with a record of the first."""
    bench = Bench.of(replace(WORLD, limits=replace(WORLD.limits, states=states)), runner)
    first = [replace(each, sampling=replace(each.sampling, max_tokens=70)) for each in submits()]
    for submit in first:
        bench.link.put(submit)
        bench.engine.step()
    bench.drain(400)
    told = [(*submit.prompt, *bench.link.tokens(submit.request_id), 5) for submit in first]
    bench.link.put(*(replace(each, request_id=50 + i, prompt=told[i]) for i, each in enumerate(first)))
    bench.drain(400)
    ends = [bench.link.end(50 + i) for i in range(len(first))]
    hits = sum(end.num_cached_tokens > 0 for end in ends)
    return [bench.link.tokens(i) for i in (*range(len(first)), *range(50, 50 + len(first)))], hits


class Shapes(Counted):
    """Notes the tokens of each row of the steps that its Python ran."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        self.shapes.append(batch.q_lens)
        return super().forward(batch, kv, attention)


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_with_drafts_are_captured_where_rows_are_equal(family: str, tmp_path: Path) -> None:
    """Other steps with drafts, and prompts, run as ever; and all bring what they bring without a capture."""
    tiny_models.FAMILIES[family](**FAMILIES[family]).save_pretrained(tmp_path)
    model = loaded(tmp_path)
    model = replace(model, shape=replace(model.shape, window=None))  # steps planned by hand know no pages of windows
    asked = [replace(each, sampling=replace(each.sampling, max_tokens=30)) for each in submits()[:3]]

    def answered(runner: TorchRunner, count: int, how: str) -> list[object]:
        planner = Planner(runner, WORLD.num_pages, WORLD.page_size, chunk=64)
        return plain(planner.run(asked[:count], guesser(known, how, tiny_models.VOCAB_SIZE)))

    known = Planner(eager_runner(model), WORLD.num_pages, WORLD.page_size, chunk=64).run(asked)
    for count, how in ((1, "partly"), (3, "wrong"), (3, "partly")):
        counted = Shapes(model.model)
        assert answered(replace(model, model=counted).runner(), count, how) == answered(eager_runner(model), count, how)
        equal = [lens for lens in counted.shapes[1:] if len(set(lens)) == 1]
        assert sorted(equal) == sorted(set(equal)), "each shape is captured once"
        assert any(lens[0] > 1 for lens in equal) or (count, how) == (3, "partly")


def kernels() -> Kernels:
    return Kernels(LIBRARY, LEVEL, 1)


@torch.inference_mode()
def test_torch_and_kernels_are_done_again_in_their_order() -> None:
    """What torch computed between two calls of the kernels kept the value it had when it was captured."""
    own = kernels()
    ops, norm = NativeOps(own), Norm(torch.rand(64), 1e-6)
    x = torch.randn(3, 64)

    def work() -> torch.Tensor:
        first = ops.norm(x * 2, norm)
        return ops.norm(torch.cat((first, first.roll(1, 0))).exp()[1:4], norm) + 1

    captured = KernelCapture(own)(work)
    for _ in range(3):
        x.normal_()
        captured.replay()
        assert torch.equal(captured.output, work())


def test_every_layer_of_a_replay_is_heard_of(tmp_path: Path) -> None:
    """A step of a large model took longer than the heartbeat waits, and its engine was killed again and again."""
    sizes = FAMILIES["qwen3"]
    tiny_models.FAMILIES["qwen3"](**sizes).save_pretrained(tmp_path)
    model = loaded(tmp_path)
    heartbeat = Counting()
    bench = Bench.of(WORLD, model.runner(heartbeat))
    bench.link.put(submits()[5])
    for _ in range(8):
        bench.engine.step()
    before = heartbeat.ticks
    bench.engine.step()
    assert heartbeat.ticks - before >= model.spec.num_layers


def test_a_captured_step_is_computed_once(tmp_path: Path) -> None:
    """The first step of each number of decodes took twice as long as the others: it was captured, and then replayed."""
    tiny_models.FAMILIES["qwen3"](**FAMILIES["qwen3"]).save_pretrained(tmp_path)
    model, heartbeat = loaded(tmp_path), Counting()
    bench = Bench.of(WORLD, model.runner(heartbeat))
    bench.link.put(submits()[5])
    ticks = []
    for _ in range(4):
        before = heartbeat.ticks
        bench.engine.step()
        ticks.append(heartbeat.ticks - before)
    _, captured, *replayed = ticks
    assert captured <= max(replayed)


class Counting(Heartbeat):
    """Counts signs of life."""

    def __init__(self) -> None:
        self.ticks = 0

    def tick(self, phase: Phase) -> None:
        self.ticks += 1


@torch.inference_mode()
def test_a_step_whose_python_reads_a_value_is_refused() -> None:
    """The branch that was taken would be taken for ever."""
    x = torch.ones(1)
    with pytest.raises(CaptureError, match="item"):
        KernelCapture(kernels())(lambda: x + 1 if x.item() > 0 else x)


def test_an_arena_lends_what_is_free_and_nothing_else() -> None:
    """A view kept its memory no longer than the tensor it was made from."""
    arena = Arena()
    first = arena.empty((4, 8), torch.bfloat16)
    view, address = first[1:], first.data_ptr()
    del first
    other = arena.empty((4, 8), torch.bfloat16)
    assert other.data_ptr() != address
    del view
    assert arena.empty((30,), torch.bfloat16).data_ptr() == address
    assert arena.empty((0, 3), torch.float32).shape == (0, 3)


def test_calls_after_a_capture_are_not_recorded() -> None:
    """An engine went on noting every call it made until memory was full."""
    own = kernels()
    heard: list[object] = []
    with own.reporting_to(lambda *call: heard.append(call)):
        pass
    NativeOps(own).norm(torch.randn(2, 16), Norm(torch.ones(16), 1e-6))
    assert not heard
