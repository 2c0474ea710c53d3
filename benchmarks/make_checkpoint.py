"""Write a checkpoint with random weights in the shape of a published model, to measure speed.

    python benchmarks/make_checkpoint.py --shape qwen3-0.6b --out build/checkpoints/qwen3-0.6b

It is a Hugging Face folder with config, safetensors, tokenizer, chat template and generation config, which Sluice and
every engine under `benchmarks/peers` load. Equal seeds give equal files. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.checkpoint.chat import CHAT_TEMPLATE, END, SPECIALS
from benchmarks.checkpoint.shapes import SHAPES, ModelShape
from benchmarks.checkpoint.tokenizer import make_tokenizer
from benchmarks.checkpoint.weights import DTYPES, write_weights


def write_checkpoint(folder: Path, shape: ModelShape, *, dtype: str = "bfloat16", seed: int = 0) -> int:
    """Write the folder. The end of sequence is one id of the vocabulary: random weights hardly ever sample it.

    Args:
        dtype: dtype of the weights: bfloat16, float16 or float32.

    Returns:
        The number of parameters.

    Raises:
        FileExistsError: the folder is not empty.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(shape.vocab_size, seed=seed)
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    ends = {"bos_token_id": end, "eos_token_id": end}
    files: dict[str, dict[str, Any]] = {
        "config.json": {**shape.config(), **ends, "torch_dtype": dtype},
        "generation_config.json": {**ends, "do_sample": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": END,
            "additional_special_tokens": [token for token in SPECIALS if token != END],
            "model_max_length": shape.max_positions,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return write_weights(folder / "model.safetensors", shape.tensors(), dtype=dtype, seed=seed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, choices=SHAPES, help="model whose shape it has")
    parser.add_argument("--out", required=True, type=Path, help="a new folder")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="dtype of the weights (default: bfloat16)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and tokenizer (default: 0)")
    parser.add_argument("--tiny", action="store_true", help="a small model of the same family, to test scripts")
    args = parser.parse_args(arguments)
    shape = SHAPES[args.shape].tiny() if args.tiny else SHAPES[args.shape]
    try:
        parameters = write_checkpoint(args.out, shape, dtype=args.dtype, seed=args.seed)
    except OSError as error:
        print(f"make_checkpoint: error: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {parameters:,} parameters, {args.dtype}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
