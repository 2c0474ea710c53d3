"""Properties that the interpreter cannot show: compiled for several GPUs, and on the device if there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from kernels.triton.test_sampling import rows_of
from sluice.runner.triton_logit_ops import TritonLogitOps
from sluice.types import SamplingParams
from triton_device import IS_INTERPRETED

ROOT = Path(__file__).parents[3]
COMPILE = """
import torch
from paper_gpu import compiled, use
from sluice.attention.triton.kv import TritonKV
from sluice.models.ops import Angles, HeadNorms, Norm
from sluice.models.triton_ops import TritonOps
from sluice.kernels.triton import experts, fp8, gates, int4_linear, lora, norms, penalties, rotary, sampling, totals

use(90)
dtype, ops, vocab = torch.bfloat16, TritonOps(), 151936
half, whole = torch.float64, torch.int64
weight = torch.empty(1024)
head_norms = HeadNorms(*[Norm(torch.empty(64), 1e-6)] * 2)
pages = TritonKV(*torch.empty(2, 8, 64, 2, 64, dtype=dtype))
for rows in (1, 2, 3, 16, 17):
    x = torch.empty(rows, 1024, dtype=dtype)
    ops.norm(x, Norm(weight, 1e-6))
    ops.add_norm(x, x, Norm(weight, 1e-6))
    ops.add_norm(x, x, Norm(weight, 1e-5, weight))
    ops.gate_and_mul(*torch.empty(rows, 6144, dtype=dtype).chunk(2, 1), "silu")
    ops.add_norm(x, x, Norm(weight, 1e-6, is_fp8=True))
    ops.gate_and_mul(*torch.empty(rows, 28672, dtype=dtype).chunk(2, 1), "silu", to_fp8=True)
    fp8.quantize_rows(x)
    numbers = torch.empty(96, 512, dtype=torch.uint8), torch.empty(96, 32, dtype=dtype)
    int4_linear.int4_linear(x, *numbers, numbers[1], None)
    int4_linear.int4_linear(x, numbers[0], torch.empty(96, 8, dtype=dtype), None, None)
    pairs = experts.sort_pairs(torch.zeros(rows, 8, dtype=whole), 64)
    weights = experts.ExpertWeights(torch.empty(64, dtype=whole), None, 1024, is_aligned=True)
    experts.expert_linear(x, weights, pairs, is_sorted=False)
    inner = torch.empty(8 * rows, 512, dtype=dtype)
    found = experts.expert_linear(inner, weights, pairs, is_sorted=True)
    experts.weighted_sums(found, pairs, torch.empty(rows, 8))
    a, b = torch.empty(4, 2, 16, 1024, dtype=dtype), torch.empty(4, 16, 224, dtype=dtype)[..., :192]
    ranks = torch.empty(4, 2, dtype=torch.int32)
    matrices = lora.LoraMatrices(a, b, ranks, torch.empty(4, 2), (128, 64))
    lora.add_lora(torch.empty(rows, 192, dtype=dtype), x, torch.empty(rows, dtype=torch.int32), matrices)
    q, k, v = torch.empty(rows, 8, 64, dtype=dtype).split((4, 2, 2), 1)
    angles = Angles(*(torch.empty(rows, 1, 64, dtype=dtype) for _ in range(2)))
    # Parts of one buffer, aligned only for some numbers of rows.
    numbers, slots = torch.ones(8, rows, dtype=half), torch.zeros(4, rows, dtype=whole)
    ops.rotate_and_store(q, k, v, angles, head_norms, pages, slots[1])
    logits = torch.empty(rows, vocab, dtype=dtype)
    ranked = slots[2]
    sampling.sample_rows(logits, numbers[0], numbers[1], slots[0], numbers[2], slots[1], slots[3], ranked, 2)
    sampling.sample_rows(logits, numbers[1], numbers[2], slots[1], numbers[3], slots[2], slots[0], None, 2)
    counts = torch.empty(4, vocab, dtype=torch.bool), torch.empty(4, vocab, dtype=torch.int32)
    penalties.penalize(logits.float(), slots[1], *counts, slots[2], numbers[1], numbers[2], numbers[3])
    totals.totals(logits)
every = [norms._norm_rows, gates._gate_rows, rotary._rotate_and_store, penalties._penalize]
every += [gates._gate_rows_to_fp8, fp8._quantize_rows, int4_linear._int4_linear]
every += [experts._expert_linear, experts._weighted_sums, lora._shrink, lora._expand]
every += [totals._partial, totals._combine, sampling._maxima, sampling._write_keys, sampling._thresholds]
for found in compiled(*every, sampling._best, sampling._choose):
    print(found.name, found.spilled)
"""


@pytest.mark.slow
def test_compiles_once_for_all_batches(tmp_path: Path) -> None:
    """A kernel that is compiled again for some number of rows stalls every stream for seconds.

    Also excluded: code that only the interpreter accepts, and values that do not fit into registers.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "PYTHONPATH": os.pathsep.join([*(str(ROOT / part) for part in ("src", "tests", "scripts"))]),
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found = [line.split() for line in run.stdout.splitlines()]
    times = Counter(name for name, _ in found)
    assert times.pop("_norm_rows") == 4, "alone, with a residual, a layer norm, and quantised"
    assert times.pop("_int4_linear") == 4, "for a few rows and for more, in two kinds of groups"
    assert times.pop("_expert_linear") == 2, "of rows for several pairs each, and of rows of pairs"
    assert set(times.values()) == {1}, times
    assert len(times) == 15
    assert all(spilled == "0" for _, spilled in found), found


@pytest.mark.gpu
@pytest.mark.skipif(IS_INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device")
def test_sampling_does_not_wait_for_the_device() -> None:
    """A value that is copied to the host ends the overlap of steps."""
    device = torch.device("cuda")
    logits = torch.randn(5, 32_000, device=device, dtype=torch.bfloat16)
    rows_params = [(SamplingParams(seed=i, top_p=0.9, top_k=50 * (i % 2)), i) for i in range(5)]
    rows, groups = rows_of(rows_params, 32_000, device)
    ops = TritonLogitOps()
    expected = ops.sample(logits, rows, groups)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = ops.sample(logits, rows, groups)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, expected)
