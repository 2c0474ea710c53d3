"""Steps that only decode, replayed over fixed addresses, against the same steps run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny_models
from slow import products
from sluice.attention.base import Attention, ForwardBatch
from sluice.device.queues import DeviceQueues, inline_queues, plain_host_buffer
from sluice.device.transport import staged_transport, transport_for
from sluice.engine.messages import Submit
from sluice.models.base import CausalLM
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.forwards import EagerForwards, Forwards
from sluice.runner.graphs import Captured, CudaCapture, DecodeGraphs, graph_sizes
from sluice.runner.runner import TorchRunner
from sluice.testing import ManualLink
from sluice.testing.device import StaticAttention, late_queues, recorded_steps
from sluice.types import SamplingParams
from worlds import Bench, World, limits_of

Folder = Callable[[str], Path]
WORLD = World(limits_of(chunk=16, running=7), num_pages=40, page_size=8)
SIZES = (1, 2, 4, 7)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder = tiny_models.save("qwen3", tmp_path_factory.mktemp("qwen3"))
    loaded = load_model(folder, dtype="float64", device=torch.device("cpu"), progress=False)[0]
    assert isinstance(loaded, CausalLM)
    return loaded


def state_for(model: CausalLM, world: World, *, watched: bool = False) -> DeviceState:
    """Empty state, its KV NaN throughout."""
    spec = model.spec
    shape = DeviceShape.of(
        spec,
        torch.device("cpu"),
        num_slots=world.limits.max_running_requests,
        num_pages=world.num_pages,
        page_size=world.page_size,
        row_pages=12,
        scratch_pages=1,
    )
    state = DeviceState(shape, watched=watched)
    for layer in state.kv:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    return state


class Counted:
    """Counts the steps that a forward ran by itself."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.rows: list[int] = []

    def forward(self, batch: ForwardBatch, kv: object, attention: Attention) -> torch.Tensor:
        self.rows.append(len(batch.q_lens))
        return self.model.forward(batch, kv, attention)


def graphs_over(model: CausalLM, state: DeviceState, eager: Forwards, sizes: tuple[int, ...] = SIZES) -> DecodeGraphs:
    graphs = DecodeGraphs(eager, model, state, StaticAttention(), recorded_steps, sizes)
    graphs.capture_all()
    return graphs


def submits() -> list[Submit]:
    """Greedy and sampled, with penalties, log-probabilities of outputs and of a prompt, of all lengths."""
    greedy = SamplingParams(temperature=0.0, seed=0, max_tokens=9)
    asked = [
        greedy,
        SamplingParams(seed=1, max_tokens=14),
        SamplingParams(seed=2, max_tokens=5, top_k=7, logprobs=2),
        replace(greedy, max_tokens=12, prompt_logprobs=1),
        SamplingParams(seed=3, max_tokens=8, frequency_penalty=0.7),
        greedy,
        SamplingParams(seed=4, max_tokens=3, top_p=0.8),
        greedy,
    ]
    lengths = (3, 20, 1, 17, 8, 30, 2, 9)
    prompts = [tiny_models.prompt(length, seed) for seed, length in enumerate(lengths)]
    return [Submit(i, prompt, params) for i, (prompt, params) in enumerate(zip(prompts, asked, strict=True))]


def answers(world: World, runner: TorchRunner) -> list[tuple[object, ...]]:
    bench = Bench.of(world, runner)
    for submit in submits():
        bench.link.put(submit)
        bench.engine.step()
    bench.drain(400)
    return [answer(bench.link, submit.request_id) for submit in submits()]


def answer(link: ManualLink, request_id: int) -> tuple[object, ...]:
    """Return tokens, finish reason, and log-probabilities up to rounding."""
    logprobs = (*link.logprobs(request_id), *link.prompt_logprobs(request_id))
    likely = [round(number, 9) for item in logprobs for number in (item.logprob, *(value for _, value in item.top))]
    return link.tokens(request_id), link.end(request_id).finish_reason, likely


def runner_with_graphs(
    model: CausalLM, state: DeviceState, queues: DeviceQueues, sizes: tuple[int, ...] = SIZES
) -> tuple[TorchRunner, Counted]:
    counted = Counted(model)
    eager = EagerForwards(counted, state, StaticAttention())
    transport = staged_transport(queues, state.shape.device, plain_host_buffer, num_buffers=2)
    forwards = graphs_over(model, state, eager, sizes)
    return TorchRunner(model, state, StaticAttention(), transport=transport, forwards=forwards), counted


@pytest.fixture(scope="module")
def eager_answers(model: CausalLM) -> list[tuple[object, ...]]:
    return answers(WORLD, TorchRunner(model, state_for(model, WORLD), StaticAttention()))


@products(eager=[(), ("inputs",), ("compute", "results"), DeviceQueues._fields], lookahead=[1, 0])
def test_replays_give_the_tokens_of_eager_steps(
    lookahead: int, eager: tuple[str, ...], model: CausalLM, eager_answers: list[tuple[object, ...]]
) -> None:
    """Inputs that are frozen in the graph, or of another step; a token of the step before that is not there yet."""
    world = replace(WORLD, limits=replace(WORLD.limits, lookahead=lookahead), depth=1 + lookahead)
    state = state_for(model, world, watched=lookahead > 0)
    runner, counted = runner_with_graphs(model, state, late_queues(eager))
    assert answers(world, runner) == eager_answers
    assert len(counted.rows) < 20, f"prompts alone are run eagerly, not {counted.rows}"


def test_decodes_run_no_code_of_the_model(model: CausalLM) -> None:
    """A step that could be replayed and is not: the host would be the slower one again."""
    state = state_for(model, WORLD)
    runner, counted = runner_with_graphs(model, state, inline_queues())
    bench = Bench.of(WORLD, runner)
    bench.link.put(Submit(0, (1, 2, 3), SamplingParams(temperature=0.0, seed=0, max_tokens=30)))
    bench.drain(100)
    assert counted.rows == [1], "only the prompt's step is run eagerly"


@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_padded_rows_touch_nothing(rows: int, model: CausalLM) -> None:
    """Rows that only fill up a graph must write to no page that a request holds or will hold: NaN must stay NaN."""
    state = state_for(model, WORLD)
    runner, _ = runner_with_graphs(model, state, inline_queues(), (7,))
    bench = Bench.of(WORLD, runner)
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=6)
    bench.link.put(*(Submit(i, (i + 1,), params) for i in range(rows)))
    bench.drain(100)
    written = [torch.isfinite(layer.k[:-1]).all(-1).all(-1).sum() for layer in state.kv]
    assert [int(count) for count in written] == [rows * 6] * len(state.kv)


def test_more_rows_than_any_graph_run_eagerly(model: CausalLM, eager_answers: list[tuple[object, ...]]) -> None:
    runner, counted = runner_with_graphs(model, state_for(model, WORLD), inline_queues(), (1, 2))
    assert answers(WORLD, runner) == eager_answers
    assert max(counted.rows) > 2


class CheckedAttention(StaticAttention):
    """Lays a replay out from what the device and the host know at that moment."""

    def __init__(self, state: DeviceState) -> None:
        super().__init__()
        self._table = state.page_table
        self.replays = 0

    def plan_static(self, batch: ForwardBatch) -> None:
        self.replays += 1
        assert batch.kv_lens.tolist() == list(batch.kv_lens_host)
        page_size = WORLD.page_size
        held = [
            row[: -(-kv_len // page_size)]
            for row, kv_len in zip(batch.page_table.tolist(), batch.kv_lens_host, strict=True)
        ]
        known = [row[: len(pages)] for row in self._table.host.tolist() for pages in held]
        assert all(pages in known or pages == [WORLD.num_pages] for pages in held)


def test_a_replay_is_planned_from_its_own_step(model: CausalLM, eager_answers: list[tuple[object, ...]]) -> None:
    """A plan made from the lengths or the pages of the step before reads one token too few, or another's page."""
    state = state_for(model, WORLD)
    attention = CheckedAttention(state)
    eager = EagerForwards(model, state, attention)
    graphs = DecodeGraphs(eager, model, state, attention, recorded_steps, SIZES)
    graphs.capture_all()
    assert attention.replays == len(SIZES)
    transport = staged_transport(inline_queues(), state.shape.device, plain_host_buffer, num_buffers=2)
    assert answers(WORLD, TorchRunner(model, state, attention, transport=transport, forwards=graphs)) == eager_answers
    assert attention.replays > len(SIZES) + 5


def test_sizes() -> None:
    """Each number of rows must fit, and padding must stay small."""
    assert graph_sizes(1) == (1,)
    assert graph_sizes(3) == (1, 2, 3)
    assert graph_sizes(20) == (1, 2, 4, 8, 16, 20)
    for most in range(1, 70):
        sizes = graph_sizes(most)
        assert sizes == tuple(sorted(set(sizes)))
        assert sizes[-1] == most


def test_the_largest_is_captured_first(model: CausalLM) -> None:
    """The others then fit into its memory; the other way round each takes some of its own."""
    order: list[int] = []

    def noted(work: Callable[[], torch.Tensor]) -> Captured:
        captured = recorded_steps(work)
        order.append(len(captured.output))
        return captured

    state = state_for(model, WORLD)
    eager = EagerForwards(model, state, StaticAttention())
    far: list[tuple[int, int]] = []
    graphs = DecodeGraphs(eager, model, state, StaticAttention(), noted, SIZES)
    graphs.capture_all(lambda done, total: far.append((done, total)))
    assert far == [(done, len(SIZES)) for done in range(len(SIZES))]
    assert order == sorted(SIZES, reverse=True)


def test_the_fake_refuses_what_no_graph_can_hold() -> None:
    """A backend that asks for a length in the middle of a layer would break the capture on a device, and only there."""
    value = torch.ones(3)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        recorded_steps(lambda: value * value.sum().item())
    frozen = [2.0]
    captured = recorded_steps(lambda: value * frozen[0])
    frozen[0], _ = 5.0, value.fill_(3.0)
    captured.replay()
    assert captured.output.tolist() == [6.0] * 3, "tensors are read anew, the host's values are not"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("depth", "lookahead"), [(1, 0), (2, 1)])
def test_cuda_graphs_give_the_tokens_of_eager_steps(
    depth: int, lookahead: int, tmp_path: Path, eager_answers: list[tuple[object, ...]]
) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    loaded = load_model(tiny_models.save("qwen3", tmp_path), dtype="float64", device=device, progress=False)[0]
    assert isinstance(loaded, CausalLM)
    world = replace(WORLD, limits=replace(WORLD.limits, lookahead=lookahead), depth=depth)
    shape = replace(state_for(loaded, world).shape, device=device)
    state = DeviceState(shape)
    eager = EagerForwards(loaded, state, StaticAttention())
    forwards = DecodeGraphs(eager, loaded, state, StaticAttention(), CudaCapture(device), SIZES)
    transport = transport_for(device, num_buffers=depth)
    transport.queues.compute.run(forwards.capture_all)
    runner = TorchRunner(loaded, state, StaticAttention(), transport=transport, forwards=forwards)
    assert answers(world, runner) == eager_answers
