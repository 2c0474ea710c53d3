"""Measure what LoRA adapters cost: steps of decodes and prompts with and without them, in turns.

    python benchmarks/make_checkpoint.py --shape qwen3-0.6b --out build/checkpoints/qwen3-0.6b
    python benchmarks/adapters.py --checkpoint build/checkpoints/qwen3-0.6b

Random adapters change every linear layer of a Llama-like model. Two engines hold the same weights: one that was started
without `--enable-lora`, and one with all adapters loaded. Each round measures every row with them, one after the other:
eight streams, then one prompt. Printed are medians over the rounds and their ratios to the engine without adapters.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from sluice import LLM, SamplingParams

STREAMS = 8
STREAM_PROMPT, STREAM_TOKENS = 16, 48
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PLAIN, UNUSED, ONE, EIGHT = "not enabled", "enabled, not used", "one adapter", "eight adapters"


def write_adapter(checkpoint: Path, folder: Path, rank: int, seed: int) -> Path:
    """Write a random adapter of a checkpoint in PEFT's format; returns its folder."""
    noise = torch.Generator().manual_seed(seed)
    tensors = {}
    with safe_open(checkpoint / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - it is no mapping
            layer = name.removesuffix(".weight")
            if layer.rpartition(".")[2] in LAYERS:
                outputs, inputs = weights.get_slice(name).get_shape()
                for part, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                    matrix = 0.02 * torch.randn(shape, generator=noise)
                    tensors[f"base_model.model.{layer}.{part}.weight"] = matrix.bfloat16()
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": LAYERS, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def decode_seconds(llm: LLM, adapters: Sequence[str], seed: int) -> float:
    """Return the seconds in which eight streams are made, prompts of a few tokens included."""
    prompts = [[(seed + 7 * row + 13 * at) % 1000 + 5 for at in range(STREAM_PROMPT)] for row in range(STREAMS)]
    return _seconds(llm, prompts, STREAM_TOKENS, adapters)


def prompt_seconds(llm: LLM, adapters: Sequence[str], length: int, seed: int) -> float:
    """Return the seconds in which one prompt is read that no cache has."""
    return _seconds(llm, [[(seed + 13 * at) % 1000 + 5 for at in range(length)]], 1, adapters[:1])


def _seconds(llm: LLM, prompts: list[list[int]], max_tokens: int, adapters: Sequence[str]) -> float:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    start = time.perf_counter()
    llm.generate(prompts, params, adapter=adapters)
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    sizes = {
        "dtype": "bfloat16",
        "max_total_tokens": 16_384,
        "threads": args.threads,
        "quantization": args.quantization,
    }
    with tempfile.TemporaryDirectory() as folder:
        lora = {
            str(number): write_adapter(args.checkpoint, Path(folder, str(number)), args.rank, number)
            for number in range(STREAMS)
        }
        without = LLM(args.checkpoint, **sizes)
        with_all = LLM(args.checkpoint, lora=lora, max_loras=STREAMS, max_lora_rank=args.rank, **sizes)
        names = list(lora)
    rows = {
        PLAIN: (without, [""] * STREAMS),
        UNUSED: (with_all, [""] * STREAMS),
        ONE: (with_all, names[:1] * STREAMS),
        EIGHT: (with_all, names),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for number in range(args.rounds + 1):  # the first one warms up
        for at, (name, (llm, adapters)) in enumerate(rows.items()):
            seed = 101 * (number * len(rows) + at)
            times = decode_seconds(llm, adapters, seed), prompt_seconds(llm, adapters, args.prompt, seed)
            if number:
                found[name].append(times)
    medians = {name: [statistics.median(each) for each in zip(*times, strict=True)] for name, times in found.items()}
    for name, (decode, prompt) in medians.items():
        tokens = STREAMS * STREAM_TOKENS / decode
        ratios = [own / plain for own, plain in zip((decode, prompt), medians[PLAIN], strict=True)]
        print(
            f"{name:>18}  {STREAMS} streams {tokens:6.1f} tokens/s, time {ratios[0]:.3f}x"
            f"   prompt of {args.prompt} {prompt:.3f} s, {ratios[1]:.3f}x"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a Hugging Face folder with one file of weights")
    parser.add_argument("--rank", type=int, default=16, help="of all adapters (default: 16)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (default: 512)")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--threads", type=int, default=2, help="of the engine (default: 2)")
    parser.add_argument("--quantization", default="none", help="of the weights (default: none)")
    return parser


if __name__ == "__main__":
    main()
