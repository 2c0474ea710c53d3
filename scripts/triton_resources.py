"""Print the registers and shared memory of the attention kernels, for every shape in use, without a device.

.venv/bin/python scripts/triton_resources.py 80 90
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from paged import Row, forward_batch
from paper_gpu import compiled, use
from sluice.attention.base import LayerKV
from sluice.attention.spec import AttentionSpec
from sluice.attention.triton import decode, extend
from sluice.attention.triton.backend import TritonAttention
from sluice.attention.triton.tiles import Arch

SHAPES = ((64, 16, torch.bfloat16), (128, 32, torch.bfloat16), (256, 8, torch.bfloat16), (128, 8, torch.float32))
"""Head size, query heads for 8 KV heads, dtype."""


def main(archs: list[int]) -> None:
    for arch in archs:
        use(arch)
        for head_dim, heads, dtype in SHAPES:
            for stored in (dtype, torch.float8_e4m3fn):
                for kernel in (extend._extend, decode._decode, decode._reduce):
                    kernel.device_caches.clear()
                backend = TritonAttention(Arch((arch // 10, arch % 10), 132))
                batch = forward_batch([Row([0], 100, [0, 1]), Row([0] * 40, 60, [2, 3])], 64)
                kv = LayerKV(*(torch.empty(4, 64, 8, head_dim).to(stored) for _ in range(2)))
                q = torch.empty(41, heads, head_dim, dtype=dtype)
                backend.attend(q, kv, batch, AttentionSpec.of(q, 8, 0.1))
                for found in compiled(extend._extend, decode._decode, decode._reduce):
                    marks = [mark for mark in ("wgmma", "mma.sync", "cp.async.wait_group \t2;") if mark in found.ptx]
                    print(
                        f"sm{arch} {head_dim:4} {heads:3} {str(dtype)[6:]:9} {str(stored)[6:]:14} {found.name:8} "
                        f"{found.registers:4} registers, {found.spilled:5} B spilled, {found.shared / 1024:6.1f} KiB",
                        *(mark.replace("\t", "") for mark in marks),
                        flush=True,
                    )


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [80, 90])
