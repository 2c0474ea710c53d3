"""Train the slot model, in as many sittings as it takes: `python -m training.slots.train --out FOLDER`.

The same command continues where the last one stopped. FOLDER/model is the checkpoint so far, FOLDER/state-* what is
needed to go on, by as many workers. The rate falls over the last two thirds of the steps: before that the model is not
what it will be.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, distributed, multiprocessing

from training.checkpoint import write_checkpoint
from training.dialogue import ANSWER_WEIGHT, RESTATED_WEIGHT
from training.model import Llama, Shape, initialise
from training.slots import documents
from training.slots.offsets import initialise_offsets
from training.slots.rows import SlotRows
from training.slots.tokenizer import texts, train_tokenizer
from training.train import WHOLE, Part, add_up_gradients, mixed_precision, optimizers_of, schedule, step_loss

SEED = 1
REPORT_EVERY = 100
SAVE_EVERY = 200
HELD_OUT_ROWS = 24


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of the curriculum: each of its `steps` draws one of the batches, (rows, their length in tokens)."""

    steps: int
    batches: tuple[tuple[int, int], ...]
    echo_share: float = 0.0
    recital_share: float = 0.0
    dense_share: float = 0.0
    variety: float = 1.0
    """Share of the phrasings that its rows draw."""
    blends: float = 0.0
    """Share of the attributes and verbs that are named by parts of two words: they can be repeated by copying alone."""


CURRICULUM = (
    Stage(200, ((32, 128),), recital_share=0.9, variety=0.15),
    Stage(300, ((16, 256),), recital_share=0.7, dense_share=0.8, variety=0.5),
    Stage(1700, ((16, 256),), recital_share=0.4, dense_share=0.8),
    Stage(1000, ((16, 256), (8, 512)), recital_share=0.25, dense_share=0.6, blends=0.3),
    Stage(800, ((8, 512), (4, 1024), (2, 2048)), recital_share=0.15, dense_share=0.4, blends=0.3),
    Stage(400, ((8, 512), (4, 1024), (2, 2048), (2, 4096)), recital_share=0.1, dense_share=0.3, blends=0.3),
)
COOLDOWN = 0.66
"""Share of the steps over which the learning rate falls to nothing."""


def shape_of(vocab_size: int) -> Shape:
    return Shape(
        vocab_size,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=64,
        rope_theta=1e8,
        attention_bias=True,
        qk_norm=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the state")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--compile", action="store_true", help="compile the model: twice as fast, needs a C++ compiler")
    parser.add_argument("--workers", type=int, default=1, choices=(1, 2), help="processes that share each batch")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the steps of each stage")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long; the state is kept")
    options = parser.parse_args(arguments)
    if options.workers == 1:
        work(0, options, None)
        return
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (options, Path(folder) / "rendezvous"), nprocs=options.workers)


def work(index: int, options: argparse.Namespace, rendezvous: Path | None) -> None:
    """One process of the training; the first reports and writes."""
    if rendezvous is not None:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", f"file://{rendezvous}", rank=index, world_size=options.workers)
    run = opened(options, Part(index, options.workers))
    deadline = time.monotonic() + 60 * options.minutes
    plan = planned(options.scale)
    while run.step < len(plan):
        run.one_step(plan[run.step], schedule(run.step, len(plan), COOLDOWN))
        late = agreed(time.monotonic() > deadline, run.part)
        if late or run.step == len(plan) or run.step % SAVE_EVERY == 0:
            run.save(options.out)
        if index == 0 and (run.step % REPORT_EVERY == 0 or run.step == len(plan)):
            report(run, plan[run.step - 1].variety)
        if late:
            break
    if rendezvous is not None:
        distributed.destroy_process_group()


def opened(options: argparse.Namespace, part: Part) -> Run:
    """The run as its last sitting left it, or a new one."""
    state = options.out / state_file(part)
    if state.exists():
        tokenizer = Tokenizer.from_file(str(options.out / "model" / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(texts(options.seed))
    model = Llama(shape_of(tokenizer.get_vocab_size()))
    initialise(model, options.seed)
    initialise_offsets(model)
    run = Run(model, tokenizer, options.seed, compiled=options.compile, part=part)
    if state.exists():
        run.restore(state)
    return run


def state_file(part: Part) -> str:
    """Where a worker keeps its state: each has a share of the optimizers'."""
    return f"state-{part.index}-of-{part.of}.pt"


def agreed(late: bool, part: Part) -> bool:
    """Whether any worker is out of time: all stop after the same step."""
    if part.of == 1:
        return late
    votes = torch.tensor([float(late)])
    distributed.all_reduce(votes)
    return bool(votes.item() > 0)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step reads."""

    rows: int
    length: int
    echo_share: float
    recital_share: float
    dense_share: float
    variety: float
    blends: float = 0.0


def planned(scale: float) -> list[Batch]:
    """The batches of all steps."""
    rng = random.Random("lengths")
    return [
        Batch(
            *rng.choice(stage.batches),
            stage.echo_share,
            stage.recital_share,
            stage.dense_share,
            stage.variety,
            stage.blends,
        )
        for stage in CURRICULUM
        for _ in range(max(1, round(stage.steps * scale)))
    ]


class Run:
    """A model in training: what a step changes, and how it is kept from one sitting to the next."""

    def __init__(
        self, model: Llama, tokenizer: Tokenizer, seed: int, *, compiled: bool = False, part: Part = WHOLE
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.forward = torch.compile(model, dynamic=False) if compiled else model
        self.optimizers = optimizers_of(model, part)
        self.peaks = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.rows = SlotRows(tokenizer, seed)
        self.part = part
        self.step = 0
        self.began = time.monotonic()
        self.losses: list[float] = []
        """Of the steps since the last report."""

    def one_step(self, batch: Batch, rate: float) -> None:
        """Draw the rows of this step and learn from them. Every worker draws all of them."""
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * rate
        tokens, weights = self.rows.batch(
            self.step,
            batch.rows,
            batch.length,
            echo_share=batch.echo_share,
            recital_share=batch.recital_share,
            dense_share=batch.dense_share,
            variety=batch.variety,
            blends=batch.blends,
        )
        mine = slice(self.part.index, None, self.part.of)
        loss = step_loss(self.forward, self.model, tokens[mine], weights[mine], weights[:, 1:].sum())
        loss.backward()
        if self.part.of > 1:
            add_up_gradients(self.model)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.losses.append(loss.item() * self.part.of)
        self.step += 1

    def save(self, out: Path) -> None:
        """Write the checkpoint, and this worker's state; a state that is there is replaced in one step."""
        out.mkdir(parents=True, exist_ok=True)
        if self.part.index == 0:
            write_checkpoint(out / "model", self.model, self.tokenizer)
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        file = out / state_file(self.part)
        torch.save(state, file.with_suffix(".tmp"))
        file.with_suffix(".tmp").replace(file)

    def restore(self, file: Path) -> None:
        """Go on from a state that `save` wrote.

        Raises:
            RuntimeError: the state is of a model of another shape.
        """
        state = torch.load(file, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.step = state["step"]


def report(run: Run, variety: float) -> None:
    """One line: the loss, and the share of values that come out word for word, on names that training never draws.

    First in the phrasings of this step, then in those that training never draws, in rows of 256 and of 2,048 tokens.
    """
    trained = SlotRows(run.tokenizer, 7, held_out_names=True).batch(0, 12, 256, variety=variety)
    held_out = SlotRows(run.tokenizer, 7, held_out=True)
    shares = []
    for name, batch in (
        ("trained", trained),
        ("held out", held_out.batch(0, HELD_OUT_ROWS, 256)),
        ("2048", held_out.batch(0, 2, 2048)),
    ):
        known, absent, said = answered(run.model, run.tokenizer, *batch)
        shares.append(f"{name} {known}, absent {absent}, said {said}")
    print(
        f"{time.monotonic() - run.began:7.0f} s  step {run.step:5d}  loss {sum(run.losses) / len(run.losses):.4f}"
        f"  {'; '.join(shares)}",
        flush=True,
    )
    run.losses.clear()


@dataclass(slots=True)
class Count:
    """Answers, and those of them that are right."""

    right: int = 0
    all: int = 0

    def __str__(self) -> str:
        return f"{self.right}/{self.all}"


@torch.no_grad()
def answered(model: Llama, tokenizer: Tokenizer, tokens: Tensor, weights: Tensor) -> tuple[Count, Count, Count]:
    """The values of the rows that a text holds, those that it does not hold, and what else is said.

    Right means that each token of the value is the likeliest after what the answer repeats.
    """
    with mixed_precision():
        best = torch.cat([model.logits(model(row[None, :-1])).argmax(-1) for row in tokens])
    known, absent, others = Count(), Count(), Count()
    for row_best, row_tokens, row_weights in zip(best, tokens[:, 1:], weights[:, 1:], strict=True):
        for begin, end in runs((row_weights == ANSWER_WEIGHT).tolist()):
            count = others
            if begin > 0 and row_weights[begin - 1] == RESTATED_WEIGHT:
                count = absent if documents.UNKNOWN in tokenizer.decode(row_tokens[begin:end].tolist()) else known
            count.right += bool((row_best[begin:end] == row_tokens[begin:end]).all())
            count.all += 1
    return known, absent, others


def runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Where the flags are set: beginnings and ends, without one that touches the end of the row."""
    edges = [index for index, (was, now) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if was != now]
    found = list(zip(edges[::2], edges[1::2], strict=True))
    return [run for run in found if run[1] < len(flags)]


if __name__ == "__main__":
    main()
