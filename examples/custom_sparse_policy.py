"""Write a sparse policy of your own for contexts longer than the device, and let an engine use it.

    .venv/bin/python examples/custom_sparse_policy.py

A server takes it as well, from a folder on `PYTHONPATH`: `--sparse-policy import:custom_sparse_policy:Strided`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from sluice import LLM, SamplingParams
from sluice.runner.offload.sparse import SparsePolicy


class Strided(SparsePolicy):
    """Lets decoded tokens attend to every fourth page, and to the last 128 tokens."""

    def __init__(self, page_size: int) -> None:
        self.recent = 128 // page_size

    def select(self, slot: int, layer: int, num_pages: int, q: torch.Tensor | None) -> Sequence[int]:
        first_recent = max(0, num_pages - self.recent)
        return [*range(0, first_recent, 4), *range(first_recent, num_pages)]


def main() -> None:
    prompt, greedy = list(range(3, 2003)), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    for policy in ("full", "import:custom_sparse_policy:Strided"):
        with tempfile.TemporaryDirectory() as folder:
            disk = {"kv_disk": str(Path(folder) / "pages"), "kv_disk_bytes": 16 << 20}
            with LLM(max_total_tokens=1024, page_size=16, sparse_policy=policy, **disk) as llm:
                print(f"{policy}: {llm.generate(prompt, greedy)[0].token_ids}")


if __name__ == "__main__":
    main()
