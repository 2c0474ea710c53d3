"""Runs a model without an engine: requests in chunks, several in a step, over shuffled pages."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from paged import Row, empty_kv, forward_batch
from sluice.attention.base import PagedKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import KVShape
from sluice.attention.states import StatePool, StateRows, anchor_of
from sluice.models.base import CausalLM


def chunked_logits(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    *,
    page_size: int,
    seed: int,
    max_chunk: int = 9,
    chunks: Sequence[int] = (),
    new_kv: Callable[[KVShape], PagedKV] | None = None,
) -> list[torch.Tensor]:
    """Return the logits after every token of every prompt, [tokens, vocab_size] each; of a rank's part of a model those
    of its part of the vocabulary, and none unless its stage is the last.

    All prompts run side by side, each step taking the next 0 to `max_chunk` tokens of each; chunks of one token go
    first, as decodes do.

    Args:
        chunks: lengths that chunks may have, in the place of 0 to `max_chunk`.
        new_kv: makes the pages of a layer; None: plain ones, of NaN.
    """
    chooser = random.Random(seed)
    needed = [-(-len(prompt) // page_size) for prompt in prompts]
    order = chooser.sample(range(sum(needed)), sum(needed))
    pages = [[order.pop() for _ in range(count)] for count in needed]
    spec, device = model.spec.of(model.member.place), next(model.parameters()).device
    with torch.device(device):
        kv = [
            empty_kv(sum(needed), page_size, *heads, spec.dtype)
            if new_kv is None
            else new_kv(KVShape(sum(needed), page_size, *heads, spec.dtype, device))
            for heads in spec.kv_layers
        ]
    states = state_pool(model, len(prompts))
    done = [0] * len(prompts)
    results: list[list[torch.Tensor]] = [[] for _ in prompts]
    while any(count < len(prompt) for count, prompt in zip(done, prompts, strict=True)):
        drawn = [chooser.choice(chunks) if chunks else chooser.randint(0, max_chunk) for _ in prompts]
        lengths = {i: min(drawn[i], len(prompt) - done[i]) for i, prompt in enumerate(prompts)}
        taken = sorted((i for i, length in lengths.items() if length), key=lambda i: lengths[i] > 1)
        if not taken:
            continue
        rows = [
            Row(prompts[i][done[i] : done[i] + lengths[i]], done[i], pages[i], logits=range(lengths[i])) for i in taken
        ]
        with torch.inference_mode(), torch.device(device):
            batch = forward_batch(rows, page_size)
            if states is not None:
                places = state_rows(taken, [done[i] for i in taken], [lengths[i] for i in taken])
                batch = replace(batch, states=places, layer_states=states.layers)
            step = model.logits(model(batch, kv, ReferenceAttention()))
        wanted = [lengths[i] for i in taken] if model.member.place.is_last else [0] * len(taken)
        for i, part in zip(taken, step.split(wanted), strict=True):
            results[i].append(part.cpu())
            done[i] += lengths[i]
    return [torch.cat(parts) for parts in results]


def state_pool(model: CausalLM, slots: int) -> StatePool | None:
    """Return the states of a model's layers, whose slots are open at position 0; None: no layer has one."""
    spec = model.spec
    if spec.state is None:
        return None
    pool = StatePool(spec.state, spec.num_states, slots, 0, 0, next(model.parameters()).device)
    for slot in range(slots):
        pool.open(slot, 0, None)
    return pool


def state_rows(slots: Sequence[int], starts: Sequence[int], lengths: Sequence[int]) -> StateRows:
    """Return where rows find their states whose tokens are all firm."""
    anchors = tuple(anchor_of(start) for start in starts)
    ends = tuple(anchor_of(start + length) for start, length in zip(starts, lengths, strict=True))
    return StateRows(tuple(slots), tuple(starts), anchors, ends)
