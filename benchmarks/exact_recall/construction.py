"""Constructs the weights: two attention layers that return the token after the earlier occurrence of the last n tokens.

    residual   A: code of this token | B1 .. Bn: codes of the n tokens before | C: code of the answer | ONE | FLAG
    layer 0    head D finds the token at distance D and writes its code to B_D
    layer 1    one head finds the position whose B1 .. Bn equal this position's A, B1 .. B(n-1), and writes its A to C
    head       reads C

FLAG is +1 on BOS and -1 elsewhere. There are no biases, so constants come from ONE. Before each norm all entries except
zeros are +1 or -1, so a norm multiplies by a constant, and the weights behind it are divided by that.

MLPs are zero. If nothing matches, the head of layer 1 finds BOS, whose code is the output row of EOS. BOS's own row
is EOS's code.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from benchmarks.exact_recall.golay import CODE_LENGTH, golay_codes
from benchmarks.exact_recall.offsets import Floats, separate_offsets
from benchmarks.exact_recall.shape import BOS, EOS, RecallShape

NUM_LAYERS = 2
INNER_SIZE = 64
"""Inner size of the MLPs."""
MATCH_SCORE = 90.0
"""Score before the softmax of a code at the position that holds it. Other codes have a third of it at most."""
OFFSET_MARGIN = 23.0
"""Score of the right distance in a head of layer 0, above the sum of all others, before the softmax."""
ANSWER_LOGIT = 40.0
ANSWER_SIZE = 2.0
"""Size of the entries of C: twice the others, so that the answer keeps most of its size in the last norm."""


def recall_tensors(shape: RecallShape) -> dict[str, torch.Tensor]:
    """Return every weight of the `LlamaForCausalLM`, float32, by its name in a checkpoint."""
    codes = golay_codes(shape.vocab_size)
    tensors = {
        "model.embed_tokens.weight": _embedding(shape, codes),
        **_layer("model.layers.0", shape, *_offset_heads(shape)),
        **_layer("model.layers.1", shape, *_match_head(shape, codes[BOS])),
        "model.norm.weight": np.ones(shape.hidden_size),
        "lm_head.weight": _output_head(shape, codes),
    }
    return {name: torch.from_numpy(value).float().contiguous() for name, value in tensors.items()}


def _parts(shape: RecallShape) -> tuple[list[slice], slice, int, int]:
    """Return the places in the residual of A and B1 .. Bn, of C, of ONE and of FLAG."""
    parts = [slice(start, start + CODE_LENGTH) for start in range(0, (shape.previous + 2) * CODE_LENGTH, CODE_LENGTH)]
    return parts[:-1], parts[-1], parts[-1].stop, parts[-1].stop + 1


def _embedding(shape: RecallShape, codes: Floats) -> Floats:
    (this, *_), _, one, flag = _parts(shape)
    embedding = np.zeros((shape.vocab_size, shape.hidden_size))
    embedding[:, this] = codes
    embedding[:, one] = 1
    embedding[:, flag] = -1
    embedding[BOS, flag] = 1
    return embedding


def _offset_heads(shape: RecallShape) -> tuple[Floats, Floats, Floats, Floats]:
    """Return q, k, v and o of layer 0. Unused heads attend evenly and write nothing."""
    (this, *before), _, one, _ = _parts(shape)
    gain = _gain(shape, CODE_LENGTH + 2)
    fast = shape.fast_pairs
    frequencies = shape.frequencies[fast]
    weights, gap = separate_offsets(frequencies, shape.max_positions)
    score = (math.log(shape.max_positions) + OFFSET_MARGIN) / gap
    sizes = np.sqrt(score * weights * math.sqrt(shape.head_dim)) / gain
    q, k, v, o = _empty(shape)
    half = shape.head_dim // 2
    k[:, fast, one] = sizes
    v[:, :CODE_LENGTH, this] = np.eye(CODE_LENGTH) / gain
    for head, part in enumerate(before):
        turn = frequencies * (head + 1)
        q[head, fast, one] = sizes * np.cos(turn)
        q[head, fast + half, one] = -sizes * np.sin(turn)
        o[part, head, :CODE_LENGTH] = np.eye(CODE_LENGTH)
    return q, k, v, o


def _match_head(shape: RecallShape, bos: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return q, k, v and o of layer 1. The last head matches, so that reading a wrong KV head has an effect."""
    parts, answer, one, flag = _parts(shape)
    gain = _gain(shape, CODE_LENGTH * (shape.previous + 1) + 2)
    size = math.sqrt(MATCH_SCORE * math.sqrt(shape.head_dim) / CODE_LENGTH) / gain
    sink = math.sqrt(MATCH_SCORE * (shape.previous - 1 / 3) * math.sqrt(shape.head_dim)) / gain
    q, k, v, o = _empty(shape)
    half, pairs = shape.head_dim // 2, shape.match_pairs
    lowest = np.arange(half - 1 - pairs, half - 1)
    rows = np.concatenate((lowest, lowest + half)).reshape(shape.previous, CODE_LENGTH)
    for row, query, key in zip(rows, parts, parts[1:], strict=False):
        q[-1, row, query] = size * np.eye(CODE_LENGTH)
        k[-1, row, key] = size * np.eye(CODE_LENGTH)
        # BOS sees only itself: without this its key would be that of BOS after BOS.
        k[-1, row, one] = k[-1, row, flag] = -size / 2 * bos
    q[-1, half - 1, one] = sink
    k[-1, half - 1, one] = k[-1, half - 1, flag] = sink / 2
    v[-1, :CODE_LENGTH, parts[0]] = np.eye(CODE_LENGTH) / gain
    o[answer, -1, :CODE_LENGTH] = ANSWER_SIZE * np.eye(CODE_LENGTH)
    return q, k, v, o


def _output_head(shape: RecallShape, codes: Floats) -> Floats:
    _, answer, _, _ = _parts(shape)
    swapped = codes.copy()
    swapped[[BOS, EOS]] = codes[[EOS, BOS]]
    gain = _gain(shape, CODE_LENGTH * (shape.previous + 1 + ANSWER_SIZE**2) + 2)
    head = np.zeros((shape.vocab_size, shape.hidden_size))
    head[:, answer] = ANSWER_LOGIT / (ANSWER_SIZE * CODE_LENGTH * gain) * swapped
    return head


def _gain(shape: RecallShape, squares: float) -> float:
    """Return the factor of a norm whose input has this sum of squares."""
    return math.sqrt(shape.hidden_size / squares)


def _empty(shape: RecallShape) -> tuple[Floats, Floats, Floats, Floats]:
    """Return q, k and v [heads, head_dim, hidden] and o [hidden, heads, head_dim], filled with zeros."""
    hidden, head_dim = shape.hidden_size, shape.head_dim
    q, k, v = (np.zeros((heads, head_dim, hidden)) for heads in (shape.num_heads, *[shape.num_kv_heads] * 2))
    return q, k, v, np.zeros((hidden, shape.num_heads, head_dim))


def _layer(name: str, shape: RecallShape, q: Floats, k: Floats, v: Floats, o: Floats) -> dict[str, Floats]:
    hidden = shape.hidden_size
    return {
        f"{name}.input_layernorm.weight": np.ones(hidden),
        f"{name}.self_attn.q_proj.weight": q.reshape(-1, hidden),
        f"{name}.self_attn.k_proj.weight": k.reshape(-1, hidden),
        f"{name}.self_attn.v_proj.weight": v.reshape(-1, hidden),
        f"{name}.self_attn.o_proj.weight": o.reshape(hidden, -1),
        f"{name}.post_attention_layernorm.weight": np.ones(hidden),
        f"{name}.mlp.gate_proj.weight": np.zeros((INNER_SIZE, hidden)),
        f"{name}.mlp.up_proj.weight": np.zeros((INNER_SIZE, hidden)),
        f"{name}.mlp.down_proj.weight": np.zeros((hidden, INNER_SIZE)),
    }
