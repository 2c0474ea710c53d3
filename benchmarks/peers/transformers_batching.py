"""Runs transformers' continuous batching in process. Its manager has a thread; another thread sends its results on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import in_process
from benchmarks.peers.peer import Settings
from benchmarks.transformers_pages import pages_option
from sluice.bench.engine_target import ThreadLink
from sluice.bench.results import installed_versions
from sluice.engine.messages import Shutdown, Submit
from sluice.types import FinishReason, Output

PAGE_SIZE = 32
NO_EOS = -1
"""An id that no token has, so that no token ends the answer."""


class Transformers:
    """transformers of this environment, which the tests compare with."""

    name = "transformers"
    packages: Sequence[str] = ("transformers", "torch")
    weights: Sequence[str] = ("bf16",)
    module = "benchmarks.peers.transformers_batching"

    def set_up(self) -> None:
        """Do nothing: `make setup` installs it."""

    def versions(self) -> dict[str, str]:
        return installed_versions(self.packages)

    def prepare(self, settings: Settings) -> None:
        """Do nothing: transformers reads Hugging Face folders."""

    def interpreter(self) -> Path:
        return Path(sys.executable)

    def environment(self, settings: Settings) -> Mapping[str, str]:
        return {"OMP_NUM_THREADS": str(settings.threads), "HF_HUB_OFFLINE": "1"}


class TransformersLoop:
    """Passes messages to the manager, and reads its results on a thread."""

    def __init__(self, manager: Any, link: ThreadLink) -> None:
        self._manager = manager
        self._link = link
        self._seen: dict[int, int] = {}
        self._reader = threading.Thread(target=self._read, name="reader", daemon=True)

    def run(self) -> None:
        self._manager.start()
        self._reader.start()
        while True:
            for message in self._link.receive(block=True):
                if isinstance(message, Shutdown):
                    return
                assert isinstance(message, Submit), f"unexpected message {message}"
                self._manager.add_request(
                    list(message.prompt),
                    request_id=str(message.request_id),
                    max_new_tokens=message.sampling.max_tokens,
                    eos_token_id=list(message.sampling.stop_token_ids) or NO_EOS,
                    streaming=True,
                )

    def close(self) -> None:
        if self._manager.is_running():
            self._manager.stop(block=True, hard_stop=True)

    def _read(self) -> None:
        """A streamed result holds all tokens so far."""
        for result in self._manager:
            request_id = int(result.request_id)
            start = self._seen.get(request_id, 0)
            tokens = tuple(result.generated_tokens[start:])
            self._seen[request_id] = start + len(tokens)
            reason = None
            if result.is_finished():
                reason = FinishReason.LENGTH if result.error is None else FinishReason.ERROR
            self._link.send([Output(request_id, start, tokens, 0, reason, result.error)])
        self._link.fail_all("the manager has ended")


def load(settings: Settings, link: ThreadLink) -> tuple[TransformersLoop, dict[str, Any]]:
    """Load the checkpoint behind a link."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    torch.set_num_threads(settings.threads)
    model = AutoModelForCausalLM.from_pretrained(settings.checkpoint, dtype="auto", attn_implementation="sdpa").eval()
    config = {
        pages_option(): PAGE_SIZE,
        "num_blocks": settings.kv_tokens // PAGE_SIZE,
        "max_requests_per_batch": settings.max_running,
        "allow_block_sharing": False,
    }
    if settings.budget is not None:
        config["max_batch_tokens"] = settings.budget
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=NO_EOS),
        continuous_batching_config=ContinuousBatchingConfig(**config),
    )
    return TransformersLoop(manager, link), {"continuous_batching": config, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    sys.exit(in_process.main(load))
