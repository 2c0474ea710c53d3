"""Tokens a second with draft models, beside none, in turns; and how many guesses were right.

    .venv/bin/python -m benchmarks.draft_models build/draft-models

The target is the bundled model, padded with zeros to the size of a larger one: it computes the same, at the cost of 0.3
billion parameters. So there are drafters of any quality for it: the bundled model itself, which is always right, and
its first layers, which seldom are. It also runs the bundled model as its own drafter, which cannot pay.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file

from sluice import LLM, SamplingParams
from sluice.models.hub import BUNDLED

WIDTH = 6
"""The padded sizes are so many times the bundled ones; the size of a head and the vocabulary are not padded."""
LAYERS = 12
"""Of the padded model: the bundled model's, and layers that add nothing."""
TOKENS = 64
PROMPTS = [
    "A short story about a cat. Once upon a time",
    "The brass key is behind the mill. Ranbert lives in Drilford. Where does Ranbert live?",
    "Who are you? What can you do for me today?",
    "Tell me what you know about the sea, the sky and the birds. First of all",
]
Weights = dict[str, torch.Tensor]


class Case(NamedTuple):
    """A target and a drafter."""

    target: str
    drafter: str | None
    num_steps: int = 5

    @property
    def label(self) -> str:
        return f"{self.target}, {self.drafter or 'none'}"


CASES = [
    Case("wide", None),
    Case("wide", "nano"),
    Case("wide", "half"),
    Case("nano", None),
    Case("nano", "nano"),
    Case("nano", "half"),
]


def save(folder: Path, weights: Weights, **changes: object) -> None:
    """Write a checkpoint with the bundled model's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(BUNDLED / file, folder / file)
    config = json.loads((BUNDLED / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    save_file(weights, folder / "model.safetensors")


def padded(weight: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    wide = torch.zeros(outputs, inputs, dtype=weight.dtype)
    wide[: weight.shape[0], : weight.shape[1]] = weight
    return wide


def widened(weights: Weights, layers: int) -> Weights:
    """Return weights of a model with `WIDTH` times the sizes that computes the same.

    The norm of a residual of mostly zeros divides by a root that is smaller by `WIDTH ** 0.5`, which its weight undoes.
    """
    wide: Weights = {}
    for name, value in weights.items():
        if "q_norm" in name or "k_norm" in name:
            wide[name] = value
        elif value.ndim == 1:
            wide[name] = torch.zeros(value.shape[0] * WIDTH, dtype=value.dtype)
            scale = 1.0 if name.endswith("bias") else WIDTH**-0.5
            wide[name][: value.shape[0]] = (value.double() * scale).to(value.dtype)
        else:
            outputs = value.shape[0] * (1 if "embed" in name else WIDTH)
            wide[name] = padded(value, outputs, value.shape[1] * WIDTH)
    first = {name: value for name, value in wide.items() if ".layers.0." in name}
    for layer in range(len({name.split(".")[2] for name in wide if ".layers." in name}), layers):
        for name, value in first.items():
            wide[name.replace(".layers.0.", f".layers.{layer}.")] = torch.zeros_like(value)
    return wide


def make(folder: Path) -> None:
    """Write the checkpoints that are not there yet."""
    weights = load_file(BUNDLED / "model.safetensors")
    config = json.loads((BUNDLED / "config.json").read_text())
    if not (folder / "wide").exists():
        sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
        wide = {name: config[name] * WIDTH for name in sizes}
        epsilon = config["rms_norm_eps"] / WIDTH
        save(folder / "wide", widened(weights, LAYERS), num_hidden_layers=LAYERS, rms_norm_eps=epsilon, **wide)
    if not (folder / "half").exists():
        half = {name: value for name, value in weights.items() if ".layers." not in name or name.split(".")[2] in "01"}
        save(folder / "half", half, num_hidden_layers=2)
    if not (folder / "nano").exists():
        save(folder / "nano", weights)


def opened(case: Case, folder: Path) -> LLM:
    options: dict[str, object] = {"max_total_tokens": 8192, "enable_prefix_caching": False}
    if case.drafter is not None:
        options |= {
            "speculative_algorithm": "draft-model",
            "speculative_draft_model": str(folder / case.drafter),
            "speculative_num_steps": case.num_steps,
        }
    return LLM(folder / case.target, **options)


def measured(llm: LLM, prompts: Sequence[str], temperature: float) -> float:
    """Return tokens a second."""
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=TOKENS, ignore_eos=True)
    began = time.perf_counter()
    results = llm.generate(prompts, params)
    tokens = sum(len(result.token_ids) for result in results)
    return tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the checkpoints are kept")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1, help="requests at once")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    args = parser.parse_args()
    make(args.folder)
    llms = {case: opened(case, args.folder) for case in CASES}
    for temperature in args.temperatures:
        rates: dict[Case, list[float]] = {case: [] for case in CASES}
        before = {case: llm._engine.meter.totals().drafts for case, llm in llms.items() if llm._engine is not None}
        for number in range(-1, args.rounds):
            for case, llm in llms.items():
                prompts = [PROMPTS[(number + index) % len(PROMPTS)] for index in range(args.batch)]
                rate = measured(llm, prompts, temperature)
                if number >= 0:
                    rates[case].append(rate)
        print(f"\n{args.batch} at once, temperature {temperature}: tokens/s (median of {args.rounds})")
        for case, llm in llms.items():
            assert llm._engine is not None
            after, rate = llm._engine.meter.totals().drafts, statistics.median(rates[case])
            base = statistics.median(rates[Case(case.target, None)])
            drafted, accepted = after.drafted - before[case].drafted, after.accepted - before[case].accepted
            right = f"{accepted} of {drafted} guesses right" if drafted else "no guesses"
            print(f"  {case.label:12} {rate:8.1f}  x{rate / base:.2f}   {right}")


if __name__ == "__main__":
    main()
