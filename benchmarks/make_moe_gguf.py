"""Write a mixture of experts of random weights as a GGUF file, quantised by llama.cpp's own code.

    VENV/bin/python benchmarks/make_moe_gguf.py --vocabulary MODEL.gguf --out moe-q4_k_m.gguf

Runs in a Python that has llama-cpp-python and gguf, and imports nothing of ours. The model is a small Qwen3-MoE: 24
layers, 64 experts of which a token has 8, 2.4 billion weights. The tokenizer is that of another GGUF file. Beside the
result there is a file in float16 for a while, of 5 GB.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

ARCHITECTURE = "qwen3moe"


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    layers: int = 24
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 4
    head_dim: int = 64
    experts: int = 64
    chosen: int = 8
    inner: int = 512
    context: int = 8192


def write_wide(path: Path, shape: Shape, vocabulary: gguf.GGUFReader, seed: int) -> None:
    """Write the model in float16, a tensor at a time."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE, use_temp_file=False)
    _write_fields(writer, shape)
    tokens = _copy_tokenizer(writer, vocabulary)
    tensors = {
        "token_embd.weight": (tokens, shape.hidden),
        "output_norm.weight": (shape.hidden,),
    }
    for layer in range(shape.layers):
        tensors |= {f"blk.{layer}.{name}.weight": size for name, size in _layer(shape).items()}
    for name, size in tensors.items():
        kind = np.float32 if len(size) == 1 or "gate_inp" in name else np.float16
        writer.add_tensor_info(name, size, np.dtype(kind), int(np.prod(size)) * np.dtype(kind).itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    draw = np.random.default_rng(seed)
    for name, size in tensors.items():
        writer.write_tensor_data(_drawn(draw, name, size))
    writer.close()


def _write_fields(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.chosen)
    writer.add_expert_feed_forward_length(shape.inner)


def _copy_tokenizer(writer: gguf.GGUFWriter, reader: gguf.GGUFReader) -> int:
    """Copy the fields of a tokenizer; return how many tokens there are."""
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind, value = field.types[0], field.contents()
        if kind is gguf.GGUFValueType.ARRAY:
            writer.add_key_value(name, value, kind, field.types[-1])
        else:
            writer.add_key_value(name, value, kind)
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def _layer(shape: Shape) -> dict[str, tuple[int, ...]]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "attn_norm": (shape.hidden,),
        "attn_q": (q, shape.hidden),
        "attn_k": (kv, shape.hidden),
        "attn_v": (kv, shape.hidden),
        "attn_q_norm": (shape.head_dim,),
        "attn_k_norm": (shape.head_dim,),
        "attn_output": (shape.hidden, q),
        "ffn_norm": (shape.hidden,),
        "ffn_gate_inp": (shape.experts, shape.hidden),
        "ffn_gate_exps": (shape.experts, shape.inner, shape.hidden),
        "ffn_up_exps": (shape.experts, shape.inner, shape.hidden),
        "ffn_down_exps": (shape.experts, shape.hidden, shape.inner),
    }


def _drawn(draw: np.random.Generator, name: str, size: tuple[int, ...]) -> np.ndarray:
    """Return random weights; norms are close to one."""
    values = draw.standard_normal(size, dtype=np.float32)
    if len(size) == 1:
        return 1 + values / 10
    values *= size[-1] ** -0.5
    return values if "gate_inp" in name else values.astype(np.float16)


def quantise(wide: Path, to: Path, threads: int) -> None:
    """Quantise a file to Q4_K_M.

    Raises:
        SystemExit: llama.cpp does not.
    """
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M, threads
    if llama_cpp.llama_model_quantize(str(wide).encode(), str(to).encode(), params):
        raise SystemExit(f"llama.cpp cannot quantise {wide}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=Path, required=True, help="a GGUF file, whose tokenizer is copied")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    wide = args.out.with_suffix(".wide.gguf")
    try:
        write_wide(wide, Shape(), gguf.GGUFReader(args.vocabulary), args.seed)
        quantise(wide, args.out, args.threads)
    finally:
        wide.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
