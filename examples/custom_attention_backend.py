"""Write an attention backend of your own, compare it with the reference, and let an engine use it.

    .venv/bin/python examples/custom_attention_backend.py

The backend below gathers each row's pages and calls torch's `scaled_dot_product_attention`. To offer it as
`--attention-backend sdpa`, put the file into `sluice/attention/` and add its object to `BACKENDS` in
`attention/select.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from sluice.attention.backend import AttentionBackend
from sluice.attention.base import Attention, ForwardBatch, LayerKV, PagedKV
from sluice.attention.reference import ReferenceAttention, ReferenceBackend
from sluice.attention.spec import AttentionSpec, KVShape
from sluice.engine.engine import Engine
from sluice.kernels.cpu.library import Kernels
from sluice.kv.manager import KVManager
from sluice.models.default_model import default_checkpoint
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.runner import TorchRunner
from sluice.scheduler.scheduler import Scheduler
from sluice.testing import ManualLink, resolved
from sluice.types import SchedulerLimits, Submit

CPU = torch.device("cpu")


class SDPAAttention(Attention):
    """Attention row by row through `scaled_dot_product_attention`."""

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if need_lse:
            raise TypeError("scaled_dot_product_attention does not return the log-sum-exp")
        rows, start = [], 0
        for row, (q_len, kv_len) in enumerate(zip(batch.q_lens, batch.kv_lens_host, strict=True)):
            k, v = kv.gather(batch.page_table[row, : -(-kv_len // kv.page_size)])
            k, v = (part.flatten(0, 1)[:kv_len].transpose(0, 1) for part in (k, v))
            # The row's queries are its last tokens: query i sees the keys up to its own position.
            seen = torch.arange(kv_len) <= torch.arange(kv_len - q_len, kv_len)[:, None]
            queries = q[start : start + q_len].transpose(0, 1)
            out = functional.scaled_dot_product_attention(
                queries, k, v, attn_mask=seen, scale=spec.scale, enable_gqa=True
            )
            rows.append(out.transpose(0, 1))
            start += q_len
        return torch.cat(rows), None


class SDPABackend(AttentionBackend):
    """Describes the backend: its name, what it supports, its pages, and how to make it."""

    name = "sdpa"

    def supports(self, spec: AttentionSpec, page_size: int, device: torch.device) -> str | None:
        if spec.window is not None or spec.softcap is not None:
            return "it supports neither windows nor soft caps"
        return None

    def make(self, device: torch.device, kernels: Kernels | None, tick: Callable[[], None]) -> Attention:
        return SDPAAttention()


def largest_difference() -> float:
    """Compare with the reference on a mixed batch: a decode at 9 tokens, and a chunk of 5 that ends at 12."""
    torch.manual_seed(0)
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, dtype=torch.float32, scale=8**-0.5)
    kv = LayerKV.empty(KVShape(6, 4, 2, 8, torch.float32, CPU))
    kv.k.normal_()
    kv.v.normal_()
    batch = ForwardBatch(
        input_ids=torch.zeros(6, dtype=torch.int64),
        positions=torch.tensor([8, 7, 8, 9, 10, 11]),
        kv_slots=torch.zeros(6, dtype=torch.int64),
        page_table=torch.tensor([[5, 0, 3], [1, 4, 2]], dtype=torch.int32),
        q_starts=torch.tensor([0, 1, 6], dtype=torch.int32),
        kv_lens=torch.tensor([9, 12], dtype=torch.int32),
        logit_rows=torch.tensor([0, 5]),
        q_lens=(1, 5),
        kv_lens_host=(9, 12),
        num_decodes=1,
    )
    q = torch.randn(6, 4, 8)
    expected, _ = ReferenceAttention().attend(q, kv, batch, spec)
    found, _ = SDPAAttention().attend(q, kv, batch, spec)
    return float((found - expected).abs().max())


def answer(backend: AttentionBackend, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Continue a prompt with the default model, in chunks, through an engine that uses the backend."""
    model, spec = load_model(default_checkpoint(None), dtype="float32", device=CPU, progress=False)
    problem = backend.supports(spec.attention, page_size=16, device=CPU)
    assert problem is None, problem
    shape = DeviceShape.of(spec, CPU, num_slots=4, num_pages=16, page_size=16, row_pages=16)
    state = DeviceState(shape, lambda layer: backend.new_kv(layer, None))
    runner = TorchRunner(model, state, backend.make(CPU, None, lambda: None))
    limits = SchedulerLimits(schedule="mixed", chunked_prefill_size=32, max_batch_tokens=64, max_running_requests=4)
    link = ManualLink()
    engine = Engine(Scheduler(limits, KVManager(num_pages=16, page_size=16)), runner, link)
    link.put(Submit(0, prompt, resolved(max_tokens=12)))
    engine.step()
    while not engine.is_idle:
        engine.step()
    return link.tokens(0)


def main() -> None:
    print(f"largest difference from the reference: {largest_difference():.1e}")
    prompt = tuple(range(3, 103))
    found, expected = answer(SDPABackend(), prompt), answer(ReferenceBackend(), prompt)
    print("tokens by sdpa:     ", found)
    print("tokens by reference:", expected)
    assert found == expected


if __name__ == "__main__":
    main()
