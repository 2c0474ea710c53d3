"""What the interpreter cannot show, shown by compiling for GPUs on paper, and on the device if there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_cases import make_case
from sluice.attention.triton.attention import TritonAttention
from sluice.attention.triton.tiles import Arch
from triton_device import IS_INTERPRETED

ROOT = Path(__file__).parents[3]

COMPILE = """
import torch
from attention_cases import make_case
from paper_gpu import compiled, use
from sluice.attention.triton import decode, extend, merge, store
from sluice.attention.triton.attention import TritonAttention
from sluice.attention.triton.kv import TritonKV
from sluice.attention.triton.tiles import Arch

arch = {arch}
driver = use(10 * arch[0] + arch[1])
backend = TritonAttention(Arch(arch, 132))
kernels = extend._extend, decode._decode, decode._reduce, merge._merge, store._store
for lengths in ([(1, 5)], [(1, 300), (9, 10)], [(1, 70)] * 16 + [(2, 2000)], [(1, 16)] * 3 + [(70, 900)] * 5):
    case = make_case(0, lengths, heads=8, kv_heads=2, head_dim={head_dim}, page_size={page_size}, dtype=torch.bfloat16)
    kv = TritonKV(case.kv.k.to({stored}), case.kv.v.to({stored}))
    for window in (None, 1, 16, 100) if {windows} else (None,):
        spec = case.spec(scale=0.1, window=window, softcap={softcap})
        out, lse = backend.attend(case.q, kv, case.batch, spec, need_lse=True)
    kv.store(case.batch.kv_slots, case.q[:, :2], case.q[:, 2:4])
    merge.merge_states(out, lse, out, lse)
for found in compiled(*kernels):
    print(found.name, found.spilled, "wgmma" in found.ptx, "cp.async.wait_group \\t2;" in found.ptx)
"""


@pytest.mark.parametrize(
    ("arch", "case"),
    [
        pytest.param(
            (8, 0),
            {"stored": torch.float8_e4m3fn, "windows": False, "head_dim": 80, "page_size": 16, "softcap": 30.0},
            id="sm80",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (9, 0),
            {"stored": torch.bfloat16, "windows": False, "head_dim": 64, "page_size": 64, "softcap": None},
            id="sm90",
        ),
        pytest.param(
            (9, 0),
            {"stored": torch.bfloat16, "windows": True, "head_dim": 64, "page_size": 64, "softcap": None},
            id="sm90, windows",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_compiles_once_for_all_batches(arch: tuple[int, int], case: dict[str, Any], tmp_path: Path) -> None:
    """What compiles anew for some length stalls every stream for seconds, in the middle of serving.

    Also kept out: what only the interpreter accepts, more shared memory than there is, accumulators in memory, and
    loops that wait for all they have fetched before they compute.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "PYTHONPATH": os.pathsep.join([*(str(ROOT / part) for part in ("src", "tests", "scripts"))]),
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    code = COMPILE.format(arch=arch, **case)
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found = {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines()}
    variants = 2 if case["windows"] else 1
    names = sorted(line.split()[0] for line in run.stdout.splitlines())
    assert names == sorted([*["_extend", "_decode", "_reduce"] * variants, "_merge", "_store"])
    assert all(int(spilled) <= 64 for spilled, *_ in found.values()), found
    assert found["_extend"][1] == str(arch >= (9, 0))
    # Two copies may be on their way when a tile is begun: the next one's keys and values.
    assert found["_extend"][2] == found["_decode"][2] == "True"


@pytest.mark.gpu
@pytest.mark.skipif(IS_INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device")
def test_nothing_waits_for_the_device_and_a_graph_serves_other_lengths() -> None:
    """A synchronising call ends the overlap; a grid cut for the lengths of the capture leaves out longer ones' keys."""
    device = torch.device("cuda")
    backend = TritonAttention(Arch.of(device))
    short = make_case(1, [(1, 3), (1, 5), (1, 1), (1, 0)], dtype=torch.bfloat16).to(device)
    long = make_case(2, [(1, 900), (1, 70), (1, 0), (1, 333)], dtype=torch.bfloat16).to(device)
    width = long.batch.page_table.shape[1]
    table = torch.zeros_like(long.batch.page_table)
    table[:, : short.batch.page_table.shape[1]] = short.batch.page_table
    batch = replace(short.batch, page_table=table, kv_lens=short.batch.kv_lens.clone())
    q = short.q.clone()

    def attend() -> torch.Tensor:
        return backend.attend(q, long.kv, batch, long.spec(scale=0.1))[0]

    attend()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        attend()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend()
    assert width == table.shape[1]
    table.copy_(long.batch.page_table)
    batch.kv_lens.copy_(long.batch.kv_lens)
    q.copy_(long.q)
    graph.replay()
    expected, _ = backend.attend(long.q, long.kv, long.batch, long.spec(scale=0.1))
    assert torch.equal(out, expected)
