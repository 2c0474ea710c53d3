"""Train the bundled model from nothing: `python -m training.train --out FOLDER`.

A curriculum from short to long texts: recall forms on short ones, where it is cheap, and is then stretched. Equal seeds
on equal machines give equal weights; elsewhere sums may round differently.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, distributed, multiprocessing
from torch.nn import functional

from training import dialogue
from training.checkpoint import write_checkpoint
from training.model import Llama, Shape, initialise
from training.muon import Muon
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
    Stage(128, 32, 400, echo_share=0.25),
    Stage(256, 16, 700, echo_share=0.25),
    Stage(512, 8, 800, echo_share=0.25),
    Stage(1024, 4, 900, echo_share=0.25),
    Stage(2048, 4, 900, echo_share=0.25),
    Stage(4096, 2, 500, echo_share=0.25),
)
LEARNING_RATE = 0.006
EMBEDDING_RATE = 0.004
WARMUP = 100
COOLDOWN = 0.35
"""Share of the steps over which the learning rate falls to nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which rows of each batch a worker computes: every `of`-th, beginning with row `index`."""

    index: int
    of: int


WHOLE = Part(0, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--compile", action="store_true", help="compile the model: twice as fast, needs a C++ compiler")
    parser.add_argument("--workers", type=int, default=1, choices=(1, 2), help="processes that share each batch")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the steps of each stage")
    parser.add_argument("--stages", type=int, default=len(CURRICULUM), help="stop after this many stages")
    options = parser.parse_args(arguments)
    if options.workers == 1:
        work(0, options, None)
        return
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (options, Path(folder) / "rendezvous"), nprocs=options.workers)


def work(index: int, options: argparse.Namespace, rendezvous: Path | None) -> None:
    """One process of the training; the first reports and writes the checkpoint."""
    if rendezvous is not None:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", f"file://{rendezvous}", rank=index, world_size=options.workers)
    tokenizer = train_tokenizer(texts(options.seed))
    model = Llama(Shape(tokenizer.get_vocab_size()))
    initialise(model, options.seed)
    stages = [
        replace(stage, steps=max(1, round(stage.steps * options.scale))) for stage in CURRICULUM[: options.stages]
    ]
    part = Part(index, options.workers)
    train(model, tokenizer, stages, seed=options.seed, compiled=options.compile, part=part)
    if index == 0:
        write_checkpoint(options.out, model, tokenizer)
    if rendezvous is not None:
        distributed.destroy_process_group()


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
    model: Llama,
    tokenizer: Tokenizer,
    stages: Sequence[Stage],
    *,
    seed: int,
    compiled: bool,
    part: Part = WHOLE,
) -> None:
    """Run the stages, printing what happens. Every worker draws all rows, so their number changes only rounding."""
    forward = torch.compile(model) if compiled else model
    optimizers = optimizers_of(model, part)
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
            tokens, weights = source.batch(stage.rows, stage.length)
            mine = slice(part.index, None, part.of)
            loss = step_loss(forward, model, tokens[mine], weights[mine], weights[:, 1:].sum())
            loss.backward()
            if part.of > 1:
                add_up_gradients(model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if part.index == 0 and (step % REPORT_EVERY == 0 or step == total):
                report(model, tokenizer, step, stage, began)


def add_up_gradients(model: Llama) -> None:
    """Give each worker the sum of all workers' gradients."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))


def optimizers_of(model: Llama, part: Part = WHOLE) -> list[torch.optim.Optimizer]:
    """Muon for the matrices within the network, AdamW for the embedding and the norms."""
    within = {name: weight.ndim == 2 and "embed" not in name for name, weight in model.named_parameters()}
    matrices = [weight for name, weight in model.named_parameters() if within[name]]
    others = [weight for name, weight in model.named_parameters() if not within[name]]
    return [
        Muon(matrices, LEARNING_RATE, part.index, part.of),
        torch.optim.AdamW(others, lr=EMBEDDING_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def schedule(step: int, total: int, cooldown: float = COOLDOWN) -> float:
    """Warm up, stay, fall over a share of the steps."""
    return min((step + 1) / WARMUP, 1.0, max((total - step) / (cooldown * total), 0.0))


def mixed_precision() -> torch.autocast:
    """Products in bfloat16, where the processor has instructions for it; without them they are far slower."""
    return torch.autocast("cpu", torch.bfloat16, enabled=torch.cpu.get_capabilities()["avx512_bf16"])


def step_loss(
    forward: Callable[[Tensor], Tensor], model: Llama, tokens: Tensor, weights: Tensor, total_weight: Tensor
) -> Tensor:
    """The rows' part of a batch's loss, whose targets weigh `total_weight` together."""
    with mixed_precision():
        hidden = forward(tokens[:, :-1])
        wanted = weights[:, 1:].reshape(-1)
        kept = wanted.nonzero()[:, 0]
        logits = model.logits(hidden.reshape(-1, hidden.shape[-1])[kept])
    losses = functional.cross_entropy(logits.float(), tokens[:, 1:].reshape(-1)[kept], reduction="none")
    return (losses * wanted[kept]).sum() / total_weight


def report(model: Llama, tokenizer: Tokenizer, step: int, stage: Stage, began: float) -> None:
    """One line: loss, and the share of answers that come out word for word, both on names not trained on."""
    source = RowSource(tokenizer, 7, held_out=True)
    source.short_share = 0.0
    tokens, weights = source.batch(max(1, 8192 // stage.length), stage.length)
    lost = held_out_loss(model, tokens, weights)
    answered, right = exact_answers(model, tokens, weights)
    print(
        f"{time.monotonic() - began:7.0f} s  step {step:5d}  length {stage.length:4d}"
        f"  held out: loss {lost:.4f}, exact {right}/{answered} = {right / max(answered, 1):.3f}",
        flush=True,
    )


@torch.no_grad()
def held_out_loss(model: Llama, tokens: Tensor, weights: Tensor) -> float:
    return step_loss(model, model, tokens, weights, weights[:, 1:].sum()).item()


@torch.no_grad()
def exact_answers(model: Llama, tokens: Tensor, weights: Tensor) -> tuple[int, int]:
    """Whole answers in the rows, and those of which each token is the likeliest: greedy decoding writes them."""
    with mixed_precision():
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
