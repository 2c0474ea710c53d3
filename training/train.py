"""Train the bundled model, in as many sittings as it takes: `python -m training.train --out FOLDER`.

The same command continues where the last one stopped. FOLDER/model is the checkpoint so far (a tokenizer that is there
is used), FOLDER/state-* what is needed to go on, by as many workers. Of each course the rate falls over the last two
thirds of the steps: before that the model is not what it will be.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import distributed, multiprocessing

from training import arguments
from training.checkpoint import write_checkpoint
from training.curriculum import Batch, planned
from training.model import Qwen3, Shape, initialise
from training.offsets import initialise_offsets
from training.progress import progress
from training.rows import RowSource
from training.steps import WHOLE, Part, add_up_gradients, optimizers_of, step_loss
from training.tokenizer import texts, train_tokenizer

SEED = 1
REPORT_EVERY = 100
SAVE_EVERY = 200


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the state")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--compile", action="store_true", help="compile the model: twice as fast, needs a C++ compiler")
    parser.add_argument("--workers", type=int, default=1, choices=(1, 2), help="processes that share each batch")
    parser.add_argument("--scale", type=arguments.positive, default=1.0, help="multiplies the steps of each stage")
    parser.add_argument("--steps", type=arguments.count, help="stop after so many steps of all; the state is kept")
    parser.add_argument("--minutes", type=arguments.positive, help="stop after so long; the state is kept")
    options = parser.parse_args(given)
    if conflict := conflict_in(options):
        parser.error(conflict)
    if options.workers == 1:
        work(0, options, None)
        return
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (options, Path(folder) / "rendezvous"), nprocs=options.workers)


def conflict_in(options: argparse.Namespace) -> str | None:
    """Return why the run in the folder cannot go on with these options, if it cannot."""
    found = sorted(file.name for file in options.out.glob("state-*.pt"))
    wanted = [state_file(Part(index, options.workers)) for index in range(options.workers)]
    if not found:
        left = options.out / "model" / "model.safetensors"
        return f"{left} would be overwritten: there is no state of its training beside it" if left.exists() else None
    if found != wanted:
        return f"{options.out} has {' and '.join(found)}, of a run with other --workers, got {options.workers}"
    states = [torch.load(options.out / name, mmap=True, weights_only=True) for name in found]
    for name in ("seed", "scale"):
        if states[0][name] != getattr(options, name):
            return f"{options.out} has a run with --{name} {states[0][name]}, got {getattr(options, name)}"
    steps = [state["step"] for state in states]
    if len({*steps}) > 1:
        return f"the states in {options.out} are of different steps, {steps}: remove the folder to begin anew"
    if options.steps is not None and options.steps <= steps[0]:
        return f"the run in {options.out} has done {steps[0]} steps, got --steps {options.steps}"
    return None


def work(index: int, options: argparse.Namespace, rendezvous: Path | None) -> None:
    """Run one process of the training; the first reports and writes."""
    if rendezvous is not None:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", f"file://{rendezvous}", rank=index, world_size=options.workers)
    run = opened(options, Part(index, options.workers))
    deadline = float("inf") if options.minutes is None else time.monotonic() + 60 * options.minutes
    plan = planned(options.scale)
    last = len(plan) if options.steps is None else min(options.steps, len(plan))
    while run.step < last:
        run.one_step(plan[run.step])
        late = agreed(time.monotonic() > deadline, run.part)
        if late or run.step == last or run.step % SAVE_EVERY == 0:
            run.save(options.out, options.scale)
        if index == 0 and (run.step % REPORT_EVERY == 0 or run.step == last):
            report(run, plan[run.step - 1].lesson.variety)
        if late:
            break
    if rendezvous is not None:
        distributed.destroy_process_group()


def opened(options: argparse.Namespace, part: Part) -> Run:
    """Open the run as its last sitting left it, or a new one."""
    state, vocabulary = options.out / state_file(part), options.out / "model" / "tokenizer.json"
    known = vocabulary.exists()
    tokenizer = Tokenizer.from_file(str(vocabulary)) if known else train_tokenizer(texts(options.seed))
    model = Qwen3(Shape(tokenizer.get_vocab_size()))
    run = Run(model, tokenizer, options.seed, compiled=options.compile, part=part)
    if state.exists():
        run.restore(state)
    else:
        initialise(model, options.seed)
        initialise_offsets(model)
    return run


def state_file(part: Part) -> str:
    """Return where a worker keeps its state: each has a share of the optimizers'."""
    return f"state-{part.index}-of-{part.of}.pt"


def agreed(late: bool, part: Part) -> bool:
    """Return whether any worker is out of time: all stop after the same step."""
    if part.of == 1:
        return late
    votes = torch.tensor([float(late)])
    distributed.all_reduce(votes)
    return bool(votes.item() > 0)


class Run:
    """A model in training: what a step changes, and how it is kept from one sitting to the next."""

    def __init__(
        self, model: Qwen3, tokenizer: Tokenizer, seed: int, *, compiled: bool = False, part: Part = WHOLE
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.forward = torch.compile(model, dynamic=False) if compiled else model
        self.optimizers = optimizers_of(model, part)
        self.peaks = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.rows = RowSource(tokenizer, seed)
        self.part = part
        self.step = 0
        self.began = time.monotonic()
        self.losses: list[float] = []
        """Of the steps since the last report."""

    def one_step(self, batch: Batch) -> None:
        """Draw the rows of this step and learn from them. Every worker draws all of them."""
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * batch.rate
        tokens, weights = self.rows.batch(self.step, batch.rows, batch.length, batch.lesson)
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

    def save(self, out: Path, scale: float = 1.0) -> None:
        """Write the checkpoint, and this worker's state; a state that is there is replaced in one step."""
        out.mkdir(parents=True, exist_ok=True)
        if self.part.index == 0:
            write_checkpoint(out / "model", self.model, self.tokenizer)
        state = {
            "step": self.step,
            "seed": self.rows.seed,
            "scale": scale,
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
    """Print the loss since the last report, and what the model answers."""
    print(
        f"{time.monotonic() - run.began:7.0f} s  step {run.step:5d}  loss {sum(run.losses) / len(run.losses):.4f}"
        f"  {progress(run.model, run.tokenizer, variety)}",
        flush=True,
    )
    run.losses.clear()


if __name__ == "__main__":
    main()
