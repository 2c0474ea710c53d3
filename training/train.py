"""Train the bundled model from nothing: `python -m training.train --out FOLDER`.

A curriculum from short to long texts: recall forms on short ones, where it is cheap, and is then stretched. Equal seeds
on equal machines give equal weights; elsewhere sums may round differently.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

TOKENIZER_ROWS = 400


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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the steps of each stage")
    parser.add_argument("--stages", type=int, default=len(CURRICULUM), help="stop after this many stages")
    parser.add_argument("--compile", action="store_true", help="compile the model: faster, needs a C++ compiler")
    parser.add_argument("--rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--hidden-size", type=int, default=Shape(0).hidden_size)
    parser.add_argument("--layers", type=int, default=Shape(0).num_hidden_layers)
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    tokenizer = train_tokenizer(texts(options.seed))
    shape = Shape(tokenizer.get_vocab_size(), options.hidden_size, num_hidden_layers=options.layers)
    model = Llama(shape)
    initialise(model, options.seed)
    stages = [
        Stage(s.length, s.rows, max(1, int(s.steps * options.scale)), s.echo_share)
        for s in CURRICULUM[: options.stages]
    ]
    train(model, tokenizer, stages, options.seed, options.out, options.compile, options.rate)
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


def train(
    model: Llama, tokenizer: Tokenizer, stages: Sequence[Stage], seed: int, out: Path, compiled: bool, rate: float
) -> None:
    """Run the stages, printing what happens, and saving the weights after each."""
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim < 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=EMBEDDING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]
    forward = torch.compile(model) if compiled else model
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    source = RowSource(tokenizer, seed)
    total = sum(stage.steps for stage in stages)
    step = 0
    began = time.monotonic()
    for index, stage in enumerate(stages):
        source.echo_share = stage.echo_share
        for _ in range(stage.steps):
            factor = schedule(step, total)
            for optimizer, peak in zip(optimizers, rates, strict=True):
                optimizer.param_groups[0]["lr"] = peak * factor
            loss = step_loss(forward, model, *source.batch(stage.rows, stage.length))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step % 100 == 0:
                report(model, tokenizer, step, stage, loss, began)
        torch.save(model.state_dict(), out.with_suffix(f".{index}.pt"))


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
        f"  held out: loss {lost:.4f}, exact {right}/{answered} = {right / answered:.3f}",
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
