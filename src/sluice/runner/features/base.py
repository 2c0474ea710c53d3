"""The contract of a feature: what a request may ask of its rows beside the forward.

    on admission    forget   drop what the slot's former request asked for
                    fill     take over what the new request asks for
    at launch       stage    lay out what the rows of the step need, as arrays; None if no row uses the feature
    on the device   arrive   receive the arrays, before the forward
                    guessed  look at the drafts, if the runner guesses them
                    apply    change the logits, or sample from them
                    sampled  look at the tokens; return tensors for the result
    on the host     report   add to the result what came of these tensors

Where other ranks sample (`parallel/`), `hand_on` and `complete` take the place of the last steps.

A feature keeps parameters by slot on the host, and may keep state on the device. Steps run in launch order, and a step
may be launched before the one before it has run: work on the device reads nothing on the host that a later `fill`
changes, only what `stage` laid out. A feature that no row of a step uses does no work for each row.

A row of S is a sample. A chunk with drafts has several, of which those before `sampled` that do not count have become
`UNREACHED` (`runner/drafts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from sluice.device.transport import Array, ToHost
from sluice.runner.drafts import RowsBrought, StagedDrafts, rows_brought, samples_of
from sluice.runner.inputs import HostBatch
from sluice.runner.last_tokens import STALE
from sluice.runner.logit_ops import LogitOps
from sluice.types import BatchResult, NewSlot, RowError, TokenLogprobs

Entry = TypeVar("Entry")
SLICE_BYTES = 64 << 20
"""Size of a slice of logits in the type they are computed with, float32 or wider."""

BAD_LOGITS = "the model gave logits that are NaN, infinite or all -inf; the request cannot go on"
STALE_TOKEN = (
    "the step read a token of this request that was not sampled yet, or a block that was not open: a bug of the runner,"
    " found by --debug-uninitialized-reads"
)


@dataclass(slots=True)
class StepLogits:
    """The logits of a step on the device, and the tokens sampled from them."""

    raw: torch.Tensor
    """[S, vocab], as the model gave them. No feature changes them, as long as they are kept."""
    embedded: torch.Tensor
    """[E, hidden_size], hidden states of the last token of each row that embeds."""
    target_hidden: torch.Tensor
    """[T, hidden_size], hidden states of the token before each target."""
    logits_of: Callable[[torch.Tensor], torch.Tensor]
    """The model's head, [R, hidden_size] to [R, vocab]."""
    ops: LogitOps
    slice_bytes: int = SLICE_BYTES
    """Most memory that the logits of targets take at once, a row at least."""
    keeps_raw: bool = True
    """Whether `raw` is read after the sampling."""
    drafts: StagedDrafts | None = None
    """Drafts of the step; None if no row has any."""
    to_sample: torch.Tensor = field(init=False)
    """[S, vocab], what is sampled from: `raw`, or a copy that features have changed."""
    tokens: torch.Tensor = field(init=False)
    """[S] int64, below 0 where a row failed or a sample does not count; there once they are sampled."""

    def __post_init__(self) -> None:
        self.to_sample = self.raw

    def writable(self) -> torch.Tensor:
        """Return `to_sample` as a contiguous copy to be changed in place, float64 for float64, else float32."""
        if self.to_sample is self.raw:
            dtype = torch.float64 if self.raw.dtype == torch.float64 else torch.float32
            self.to_sample = self.raw.to(dtype, copy=True, memory_format=torch.contiguous_format)
        return self.to_sample

    def maskable(self) -> torch.Tensor:
        """Return `to_sample`, of any float type, to be changed in place: a copy only if `raw` is kept."""
        if self.to_sample is self.raw and (self.keeps_raw or self.raw.stride(-1) != 1):
            self.to_sample = self.raw.clone(memory_format=torch.contiguous_format)
        return self.to_sample


class Outcome:
    """The outcome of a step. Its work on the device fills in tensors, copies to the host replace them, and there they
    are read and completed by features, until they are the step's result.

    Args:
        host: the rows of the step.
        features: that the step uses; they keep their part of the outcome.
    """

    def __init__(self, host: HostBatch, features: StagedFeatures) -> None:
        self.host = host
        self.features = features
        self.sampled: torch.Tensor | None = None
        """[S] int64"""
        self._on_device: torch.Tensor | None = None
        """Kept until the copy to the host is done."""
        self.slice_errors: tuple[RowError, ...] = ()
        """Offloaded work that failed."""
        self.tokens: list[int] = []
        """[S], on the host."""
        self.failed: dict[int, str] = {}
        """Why the request of a row cannot continue, by row."""
        self.others: dict[int, tuple[int, ...]] = {}
        """Tokens of sampling rows that give others than those in `tokens`, by index into `tokens` of the first."""
        self.complete: list[int] = []
        """Rows whose requests end with what they give."""
        self.logprobs: Sequence[tuple[TokenLogprobs, ...]] = ()
        """[S] of each sample; empty if no row asked."""
        self.prompt_logprobs: Sequence[tuple[TokenLogprobs, ...]] = ()
        """Log-probabilities for each row with targets; empty if there is none."""
        self.embeddings: Sequence[bytes] = ()
        """Embedding of each row that embeds; empty if there is none."""

    def to_host(self, to_host: ToHost) -> None:
        """Begin to copy it to the host."""
        assert self.sampled is not None
        self._on_device = self.sampled
        self.sampled = to_host(self.sampled)
        self.features.to_host(to_host)

    def read(self) -> None:
        """Read what was copied to the host, and let the features complete it."""
        assert self.sampled is not None
        self.tokens = tokens = self.sampled.tolist()
        rows, drafts = self.host.sample_rows.tolist(), self.host.drafts
        firsts = range(len(tokens)) if drafts is None else drafts.firsts.tolist()
        self.failed = {rows[at]: STALE_TOKEN if tokens[at] == STALE else BAD_LOGITS for at in firsts if tokens[at] < 0}
        self.features.report(self)

    def read_from(self, result: BatchResult) -> None:
        """Take over the result that another rank has made, and let the features complete it."""
        self.tokens, self.logprobs = [row[0] if row else -1 for row in result.token_ids], result.logprobs
        if self.host.drafts is not None:
            self.tokens, self.logprobs = samples_of(self.host.drafts, result.token_ids, result.logprobs)
        self.failed = {error.row: error.message for error in result.errors}
        self.slice_errors = result.slice_errors
        self.prompt_logprobs, self.embeddings = result.prompt_logprobs, result.embeddings
        self.features.complete(self)

    def result(self, step: int) -> BatchResult:
        """Return the result of the step, when it is complete."""
        rows, failed = self.host.sample_rows.tolist(), self.failed
        sampled = self._of_rows(rows)
        return BatchResult(
            step,
            sampled.token_ids,
            tuple(RowError(row, failed[row]) for row in sorted(failed)),
            sampled.logprobs,
            _without_failed(self.prompt_logprobs, [row for row, _ in self.host.target_rows], failed),
            tuple(
                b"" if row in failed else embedding
                for row, embedding in zip(self.host.embed_rows.tolist(), self.embeddings, strict=True)
            ),
            slice_errors=self.slice_errors,
            complete=tuple(self.complete),
            accepted=sampled.accepted,
        )

    def _of_rows(self, rows: Sequence[int]) -> RowsBrought:
        """Return what the rows give that sample.

        Args:
            rows: [S] of the plan.
        """
        failed, blocks = self.failed, self.host.blocks
        if blocks is not None:
            places = zip(blocks.plan_rows.tolist(), blocks.firsts.tolist(), strict=True)
            of_blocks = tuple(() if row in failed else self.others[first] for row, first in places)
            return RowsBrought(of_blocks, (), (0,) * len(of_blocks))
        if self.host.drafts is not None:
            others = self.others | {index: () for index, row in enumerate(rows) if row in failed}
            return rows_brought(self.host.drafts, self.tokens, self.logprobs, others)
        token_ids = tuple(
            () if row in failed else self.others.get(index, (token,))
            for index, (row, token) in enumerate(zip(rows, self.tokens, strict=True))
        )
        return RowsBrought(token_ids, _without_failed(self.logprobs, rows, failed), ())


def _without_failed(
    entries: Sequence[tuple[Entry, ...]], rows: Sequence[int], failed: dict[int, str]
) -> tuple[tuple[Entry, ...], ...]:
    """Return the entries of rows, those of failed rows emptied; () if there are no entries."""
    if not entries:
        return ()
    return tuple(() if row in failed else entry for row, entry in zip(rows, entries, strict=True))


class StagedFeature:
    """A feature's work in one step."""

    arrays: tuple[Array, ...] = ()
    """Arrays of one dimension that travel with the step's inputs. They belong to the step alone."""
    keeps_raw = False
    """Whether it reads the raw logits of rows that sample after they have sampled."""

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        """Receive `arrays` on the device, before the forward."""

    def guessed(self, drafts: StagedDrafts) -> None:
        """Look at drafts that the runner has guessed, before `apply`."""

    def apply(self, logits: StepLogits) -> None:
        """Change the logits to sample from, or sample."""

    def sampled(self, logits: StepLogits) -> tuple[torch.Tensor, ...]:
        """Look at what was sampled. Return the tensors that `report` needs on the host."""
        return ()

    def report(self, tensors: Sequence[torch.Tensor], outcome: Outcome) -> None:
        """Add to the result. Called on the host, with what `sampled` returned."""

    def hand_on(self) -> None:
        """In the place of `apply` and `sampled`, on a rank that does not sample: give those that do what they lack."""

    def complete(self, outcome: Outcome) -> None:
        """In the place of `report`, there: add what only this rank knows to the result of those that sample."""


class Feature:
    """What requests ask for, by slot."""

    def problem(self, new: NewSlot) -> str | None:
        """Return what makes a request impossible, in words for an error message; None if nothing does."""
        return None

    def forget(self, slot: int) -> None:
        """Drop what the former request of a slot asked for."""

    def fill(self, new: NewSlot) -> None:
        """Take over what a new request asks for."""
        raise NotImplementedError

    def stage(self, host: HostBatch) -> StagedFeature | None:
        """Lay out a step; None if it does not use the feature."""
        raise NotImplementedError

    def close(self) -> None:
        """End what it keeps running. No step may follow; may be called again."""


class StagedFeatures:
    """The features that one step uses."""

    def __init__(self, features: Sequence[Feature], host: HostBatch) -> None:
        self._staged = [staged for feature in features if (staged := feature.stage(host)) is not None]
        self.drafts = None if host.drafts is None else StagedDrafts(host.drafts)
        """Drafts of the step; None if no row has any."""
        arrays = tuple(array for staged in self._staged for array in staged.arrays)
        self.arrays = arrays if self.drafts is None else (*self.drafts.arrays, *arrays)
        self._on_device: list[tuple[torch.Tensor, ...]] = []
        """What each has for the result. Kept until the copies to the host are done."""
        self._on_host: list[tuple[torch.Tensor, ...]] = []

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        """Receive `arrays` on the device, before the forward."""
        begin = 0
        if self.drafts is not None:
            begin = len(self.drafts.arrays)
            self.drafts.arrive(tensors[:begin])
        for staged in self._staged:
            end = begin + len(staged.arrays)
            staged.arrive(tensors[begin:end])
            begin = end

    def guessed(self, ids: torch.Tensor) -> None:
        """Take the drafts [D] int64 that the runner has guessed."""
        assert self.drafts is not None, "no row has drafts"
        self.drafts.ids = ids
        for staged in self._staged:
            staged.guessed(self.drafts)

    def sample(self, logits: StepLogits) -> torch.Tensor:
        """Apply all features. Return one token for each row, [S] int64."""
        logits.keeps_raw = any(staged.keeps_raw for staged in self._staged)
        logits.drafts = self.drafts
        for staged in self._staged:
            staged.apply(logits)
        if self.drafts is not None:
            logits.tokens = self.drafts.verify(logits.tokens)
        self._on_device = [staged.sampled(logits) for staged in self._staged]
        return logits.tokens

    def to_host(self, to_host: ToHost) -> None:
        """Begin to copy what they have for the result to the host."""
        self._on_host = [tuple(map(to_host, tensors)) for tensors in self._on_device]

    def report(self, outcome: Outcome) -> None:
        """Complete a result. There is nothing to add if no row sampled or has targets."""
        for staged, tensors in zip(self._staged, self._on_host, strict=False):
            staged.report(tensors, outcome)

    def hand_on(self) -> None:
        """Do this rank's part of a step that others sample."""
        for staged in self._staged:
            staged.hand_on()

    def complete(self, outcome: Outcome) -> None:
        """Complete a result of others."""
        for staged in self._staged:
            staged.complete(outcome)
