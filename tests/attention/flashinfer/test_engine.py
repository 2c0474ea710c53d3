"""A whole engine by FlashInfer's plans: every step must have its own."""

from __future__ import annotations

import torch

import fake_flashinfer
from any_checkpoint import any_checkpoint
from sluice.attention.base import Attention
from sluice.attention.flashinfer.attention import FlashInferAttention
from sluice.attention.reference import ReferenceAttention
from sluice.engine.messages import Submit
from sluice.models.base import CausalLM
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.forwards import EagerForwards
from sluice.runner.runner import TorchRunner
from sluice.types import SamplingParams
from worlds import Bench, World, limits_of

CPU = torch.device("cpu")
WORLD = World(limits_of(chunk=24, running=4, lookahead=1), num_pages=24, page_size=8, depth=2)


class Fence:
    """Of a host that copies at once."""

    def set(self) -> None: ...

    def wait(self) -> None: ...


def tokens(model: CausalLM, attention: Attention) -> list[object]:
    spec = model.spec
    shape = DeviceShape.of(
        spec,
        CPU,
        num_slots=4,
        num_pages=WORLD.num_pages,
        page_size=WORLD.page_size,
        row_pages=WORLD.num_pages,
    )
    state = DeviceState(shape)
    for layer in state.kv:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    forwards = EagerForwards(model, state, attention)
    bench = Bench.of(WORLD, TorchRunner(model, state, attention, forwards=forwards))
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=9)
    for number, length in enumerate((3, 40, 17, 1, 9, 30)):
        bench.link.put(Submit(number, tuple(100 + 7 * number + at for at in range(length)), params))
        bench.engine.step()
    bench.drain(300)
    return [bench.link.tokens(number) for number in range(6)]


def test_an_engine_gives_the_tokens_of_the_reference() -> None:
    """A step that runs by the plan of another: mixed steps, decodes alone, rows that come and go, a preemption."""
    model, _ = load_model(any_checkpoint(), dtype="bfloat16", device=CPU, progress=False)
    assert isinstance(model, CausalLM)
    flashinfer = FlashInferAttention(fake_flashinfer, CPU, to_host=torch.from_numpy, fence=Fence, workspace_bytes=1024)
    assert tokens(model, flashinfer) == tokens(model, ReferenceAttention())
