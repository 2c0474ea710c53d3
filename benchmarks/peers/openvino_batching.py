"""Runs OpenVINO GenAI's continuous batching in process: a loop around `ContinuousBatchingPipeline.step`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import in_process
from benchmarks.peers.environment import HOME, Environment, run
from benchmarks.peers.peer import Settings
from sluice.bench.engine_target import ThreadLink
from sluice.engine.messages import Shutdown, Submit
from sluice.types import FinishReason, Output

KV_BLOCK = 32
"""Tokens in a KV block of the CPU plugin."""
WEIGHT_FORMATS = {"bf16": "fp16", "int8": "int8", "int8-f32": "int8", "int4": "int4", "int4-f32": "int4"}
"""Formats of weights, and what the exporter calls them. fp16 keeps the checkpoint's bfloat16.

Those with -f32 compute the rest in float32: only then does the CPU plugin quantise activations, and multiply in 8 bits.
"""


class OpenVINO:
    """Reads models converted by optimum-intel."""

    name = "openvino"
    packages: Sequence[str] = ("openvino", "openvino-genai", "openvino-tokenizers")
    weights: Sequence[str] = tuple(WEIGHT_FORMATS)
    module = "benchmarks.peers.openvino_batching"

    def __init__(self) -> None:
        self._environment = Environment("openvino")
        self._converter = Environment("convert")

    def set_up(self) -> None:
        self._environment.set_up()
        self._converter.set_up()

    def versions(self) -> dict[str, str]:
        return self._environment.versions(self.packages)

    def prepare(self, settings: Settings) -> None:
        folder = model_folder(settings)
        if folder.is_dir():
            return
        part = folder.with_name(f"{folder.name}.part")
        exporter = [str(self._converter.python), "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        what = ["--model", str(settings.checkpoint), "--task", "text-generation-with-past", "--weight-format"]
        run([*exporter, *what, WEIGHT_FORMATS[settings.weights], str(part)])
        part.replace(folder)

    def interpreter(self) -> Path:
        return self._environment.python

    def environment(self, settings: Settings) -> Mapping[str, str]:
        return {}


def model_folder(settings: Settings) -> Path:
    """Return the folder of the converted checkpoint."""
    weights = WEIGHT_FORMATS[settings.weights]
    return HOME / "models" / f"{settings.checkpoint.resolve().name}-{weights}-openvino"


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    handle: Any
    seen: int = 0


class OpenVINOLoop:
    """Steps the pipeline while it has requests, and waits for messages while it has none."""

    def __init__(self, pipeline: Any, link: ThreadLink) -> None:
        self._pipeline = pipeline
        self._link = link
        self._open: dict[int, _Open] = {}

    def run(self) -> None:
        while True:
            # The pipeline holds Python's interpreter lock during a step: let threads that wait for it go first.
            time.sleep(0)
            for message in self._link.receive(block=not self._open):
                if isinstance(message, Shutdown):
                    return
                assert isinstance(message, Submit), f"unexpected message {message}"
                self._add(message)
            self._pipeline.step()
            outputs = [output for request_id in list(self._open) for output in self._read(request_id)]
            self._link.send(outputs)

    def close(self) -> None:
        """Do nothing: the pipeline holds nothing to free."""

    def _add(self, submit: Submit) -> None:
        import numpy
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = submit.sampling.max_tokens
        config.do_sample = False
        config.ignore_eos = not submit.sampling.stop_token_ids
        config.stop_token_ids = set(submit.sampling.stop_token_ids)
        prompt = openvino.Tensor(numpy.array([submit.prompt], dtype=numpy.int64))
        self._open[submit.request_id] = _Open(self._pipeline.add_request(submit.request_id, prompt, config))

    def _read(self, request_id: int) -> list[Output]:
        """Return the new tokens of one request, as at most one output."""
        import openvino_genai

        status = openvino_genai.GenerationStatus
        entry = self._open[request_id]
        tokens: list[int] = []
        while entry.handle.can_read():
            for part in entry.handle.read().values():
                tokens += part.generated_ids
        state = entry.handle.get_status()
        start, reason, error = entry.seen, None, None
        if state == status.FINISHED:
            reason = FinishReason.LENGTH
        elif state != status.RUNNING:
            reason, error = FinishReason.ERROR, f"the pipeline gave the request up: {state.name}"
        if not tokens and reason is None:
            return []
        entry.seen += len(tokens)
        if reason is not None:
            del self._open[request_id]
        return [Output(request_id, start, tuple(tokens), 0, reason, error)]


def load(settings: Settings, link: ThreadLink) -> tuple[OpenVINOLoop, dict[str, Any]]:
    """Load the converted model behind a link."""
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = settings.kv_tokens // KV_BLOCK
    scheduler.max_num_seqs = settings.max_running
    scheduler.enable_prefix_caching = False
    scheduler.dynamic_split_fuse = True
    if settings.budget is not None:
        scheduler.max_num_batched_tokens = settings.budget
    precision = "f32" if settings.weights.endswith("f32") else "bf16"
    # As the other engines have it: the default is KV in 8 bits.
    properties = {
        "INFERENCE_NUM_THREADS": settings.threads,
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
    }
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(model_folder(settings)), scheduler, "CPU", properties)
    configured = {"scheduler": scheduler.to_string(), "properties": properties}
    return OpenVINOLoop(pipeline, link), configured


if __name__ == "__main__":
    sys.exit(in_process.main(load))
