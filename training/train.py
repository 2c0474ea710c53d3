"""Train the bundled model from nothing: `python -m training.train --out FOLDER`.

A curriculum from short to long texts: recall forms on short ones, where it is cheap, and is then stretched. Equal seeds
on equal machines give equal weights; elsewhere sums may round differently.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from training import dialogue
from training.checkpoint import write_checkpoint
from training.model import Llama, Shape, initialise
from training.rows import RowSource, count_tokens
from training.tokenizer import train_tokenizer
from training.words import Namer

SEED = 1
TOKENIZER_ROWS = 400
REPORT_EVERY = 100


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of the curriculum: rows of `length` tokens, for `steps` steps of `rows` rows."""

    length: int
    rows: int
    steps: int
    echo_share: float = 0.0


CURRICULUM = (
    Stage(128, 32, 300, echo_share=1.0),
    Stage(128, 32, 500, echo_share=0.25),
    Stage(256, 16, 900, echo_share=0.25),
    Stage(512, 8, 900, echo_share=0.25),
    Stage(1024, 4, 700, echo_share=0.25),
    Stage(2048, 2, 450, echo_share=0.25),
    Stage(4096, 1, 150, echo_share=0.25),
)
LEARNING_RATE = 0.006
EMBEDDING_RATE = 0.004
WARMUP = 100
COOLDOWN = 0.3
"""Share of the steps over which the learning rate falls to nothing."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--compile", action="store_true", help="compile the model: twice as fast, needs a C++ compiler")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the steps of each stage")
    parser.add_argument("--stages", type=int, default=len(CURRICULUM), help="stop after this many stages")
    options = parser.parse_args(arguments)
    tokenizer = train_tokenizer(texts(options.seed))
    model = Llama(Shape(tokenizer.get_vocab_size()))
    initialise(model, options.seed)
    stages = [
        replace(stage, steps=max(1, round(stage.steps * options.scale))) for stage in CURRICULUM[: options.stages]
    ]
    train(model, tokenizer, stages, seed=options.seed, compiled=options.compile)
    write_checkpoint(options.out, model, tokenizer)


def texts(seed: int) -> list[str]:
    """What the tokenizer learns its merges from."""
    rng = random.Random(seed)
    names = Namer(rng, held_out=False)
    documents = []
    for _ in range(TOKENIZER_ROWS):
        documents += [dialogue.recall(rng, names, 512, count_tokens), dialogue.tale(rng)]
        documents += [dialogue.acquaintance(rng, names) for _ in range(6)]
    return [turn.text for document in documents for turn in document]


def train(model: Llama, tokenizer: Tokenizer, stages: Sequence[Stage], *, seed: int, compiled: bool) -> None:
    """Run the stages, printing what happens."""
    forward = torch.compile(model) if compiled else model
    optimizers = optimizers_of(model)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    source = RowSource(tokenizer, seed)
    total = sum(stage.steps for stage in stages)
    step = 0
    began = time.monotonic()
    for stage in stages:
        source.echo_share = stage.echo_share
        for _ in range(stage.steps):
            for optimizer, peak in zip(optimizers, peaks, strict=True):
                optimizer.param_groups[0]["lr"] = peak * schedule(step, total)
            loss = step_loss(forward, model, *source.batch(stage.rows, stage.length))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step % REPORT_EVERY == 0 or step == total:
                report(model, tokenizer, step, stage, loss, began)


def optimizers_of(model: Llama) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al., 2024) for the matrices within the network, AdamW for the embedding and the norms."""
    within = {name: weight.ndim == 2 and "embed" not in name for name, weight in model.named_parameters()}
    matrices = [weight for name, weight in model.named_parameters() if within[name]]
    others = [weight for name, weight in model.named_parameters() if not within[name]]
    return [
        torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=EMBEDDING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def schedule(step: int, total: int) -> float:
    """Warm up, stay, fall."""
    return min((step + 1) / WARMUP, 1.0, max((total - step) / (COOLDOWN * total), 0.0))


def step_loss(forward: Callable[[Tensor], Tensor], model: Llama, tokens: Tensor, weights: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        hidden = forward(tokens[:, :-1])
        wanted = weights[:, 1:].reshape(-1)
        kept = wanted.nonzero()[:, 0]
        logits = model.logits(hidden.reshape(-1, hidden.shape[-1])[kept])
    losses = functional.cross_entropy(logits.float(), tokens[:, 1:].reshape(-1)[kept], reduction="none")
    return (losses * wanted[kept]).sum() / wanted.sum()


def report(model: Llama, tokenizer: Tokenizer, step: int, stage: Stage, loss: Tensor, began: float) -> None:
    """One line: loss, and the share of answers on names not trained on that come out word for word."""
    source = RowSource(tokenizer, 7, held_out=True)
    source.short_share = 0.0
    tokens, weights = source.batch(max(1, 8192 // stage.length), stage.length)
    lost = held_out_loss(model, tokens, weights)
    answered, right = exact_answers(model, tokens, weights)
    print(
        f"{time.monotonic() - began:7.0f} s  step {step:5d}  length {stage.length:4d}  loss {loss.item():.4f}"
        f"  held out: loss {lost:.4f}, exact {right}/{answered} = {right / max(answered, 1):.3f}",
        flush=True,
    )


@torch.no_grad()
def held_out_loss(model: Llama, tokens: Tensor, weights: Tensor) -> float:
    return step_loss(model, model, tokens, weights).item()


@torch.no_grad()
def exact_answers(model: Llama, tokens: Tensor, weights: Tensor) -> tuple[int, int]:
    """Whole answers in the rows, and those of which each token is the likeliest: greedy decoding writes them."""
    with torch.autocast("cpu", torch.bfloat16):
        best = torch.cat([model.logits(model(row[None, :-1])).argmax(-1) for row in tokens])
    hits = (best == tokens[:, 1:]).tolist()
    answered = right = 0
    for row_hits, row_weights in zip(hits, weights[:, 1:].tolist(), strict=True):
        run: list[bool] = []
        for hit, weight in zip([*row_hits, False], [*row_weights, 0.0], strict=True):
            if weight == 1.0:
                run.append(hit)
            elif run:
                answered += len(run) > 1
                right += len(run) > 1 and all(run)
                run = []
    return answered, right


if __name__ == "__main__":
    main()
