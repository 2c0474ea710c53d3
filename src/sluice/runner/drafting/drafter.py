"""RunnerDrafter: guesses the drafts of a step before the target checks them, in the same step.

    before the target's forward    note the step's token ids; guess: one forward over what the drafter lacks of the rows
                                   that want drafts, and one of a single token a row for each further draft
    during                         keep the states that the target hands out, if the drafter reads any (`target.py`)
    after                          one forward over the rows that it follows without a guess

A guess is drawn as the target draws: the argmax of score + noise, with the row's own parameters and the noise of the
token's position. So a drafter with the target's logits guesses its very tokens, at any temperature. Penalties and other
changes of logits are left out. A guess is only ever a guess: nothing that is wrong here can change an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sluice.attention.base import Attention, ForwardBatch
from sluice.device.memory import kv_bytes, tensor_bytes
from sluice.runner.device_state import DeviceState
from sluice.runner.drafting.layout import DraftPiece, DraftProgress
from sluice.runner.drafting.nets import DraftNet
from sluice.runner.drafting.pages import DraftPages
from sluice.runner.drafting.step import DraftStep
from sluice.runner.features.sampling import Sampling
from sluice.runner.logit_ops import LogitOps
from sluice.types import BatchPlan


class RunnerDrafter:
    """A drafter beside one runner.

    Args:
        net: what guesses.
        pages: empty ones.
        state: the target's; its page table is the drafter's too.
        attention: of its own.
        logit_ops: draws.
    """

    def __init__(
        self, net: DraftNet, pages: DraftPages, state: DeviceState, attention: Attention, logit_ops: LogitOps
    ) -> None:
        self._net = net
        self._pages = pages
        self._state = state
        self._attention = attention
        self._logit_ops = logit_ops
        self._progress = DraftProgress(state.shape.num_slots, reads_states=net.state_size > 0)
        self._sampling = next(feature for feature in state.features if isinstance(feature, Sampling))
        self._step: DraftStep | None = None
        """The one that is computed; None while steps are captured or tried."""

    @property
    def layers(self) -> Sequence[int]:
        """Layers of the target whose states it reads."""
        return self._net.layers

    @property
    def num_bytes(self) -> int:
        """Bytes of its pages."""
        return kv_bytes(self._pages.kv) + tensor_bytes((self._pages.tokens, self._pages.states))

    def stage(self, plan: BatchPlan) -> DraftStep:
        """Lay out the drafter's part of a step, whose plan the state has applied. Steps come in launch order.

        Args:
            plan: without its offloaded chunks.
        """
        layout, state = self._progress.lay_out(plan), self._state
        sampling = None
        if layout.guesses:
            slots, ends = layout.guessed
            sampling = self._sampling.staged(slots, ends)
        return DraftStep(layout, sampling, state.page_table.host, state.shape.page_size)

    def begin(self, step: DraftStep, tensors: Sequence[torch.Tensor]) -> None:
        """Begin to compute a step, whose arrays are there. Called on the compute queue, before the target's forward."""
        step.arrive(tensors)
        self._step = step

    def guess(self, target: ForwardBatch) -> None:
        """Note the token ids of the step, guess its drafts, and write these to the ids. Called by the target's forward,
        which also runs in captured steps: these have no drafts."""
        tokens, step = self._pages.tokens, self._step
        tokens.index_copy_(0, target.kv_slots, target.input_ids)
        if step is None or step.sampling is None:
            return
        batch = self._batch(step.layout.guesses, step.guess_arrays, wants_last=True)
        hidden = self._forward(batch, self._states(step.guess_arrays))
        for number, count in enumerate(step.counts):
            hidden = hidden[:count]
            if number:
                hidden = self._forward(self._single(step, number), hidden)
            guessed = self._logit_ops.sample(self._net.logits(hidden), *step.sampling.first(count, number))
            tokens.index_copy_(0, step.draft_slots(number), guessed.clamp_(min=0))  # below 0 it failed
        target.input_ids.copy_(tokens.index_select(0, target.kv_slots))

    def keep(self, target: ForwardBatch, states: Sequence[torch.Tensor]) -> None:
        """Keep what entered `layers` of the target, [N, hidden_size] each, after each token of the step."""
        self._pages.states.index_copy_(0, target.kv_slots, self._net.joined(states))

    def follow(self) -> None:
        """Compute the rows that guess nothing, and end the step. Called after the target's forward."""
        step, self._step = self._step, None
        assert step is not None, "no step has begun"
        if step.layout.follows:
            batch = self._batch(step.layout.follows, step.follow_arrays, wants_last=False)
            self._forward(batch, self._states(step.follow_arrays))

    def tokens_at(self, kv_slots: torch.Tensor) -> torch.Tensor:
        """Return the tokens that were noted or guessed at KV slots [D] int64."""
        return self._pages.tokens.index_select(0, kv_slots)

    def _forward(self, batch: ForwardBatch, states: torch.Tensor | None) -> torch.Tensor:
        self._attention.plan(batch)
        return self._net.forward(batch, states, self._pages.kv, self._attention)

    def _states(self, arrays: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return the states [N, state_size] before the tokens of rows, if the drafter reads any."""
        return self._pages.states.index_select(0, arrays[2]) if self._net.state_size else None

    def _batch(self, pieces: Sequence[DraftPiece], arrays: Sequence[torch.Tensor], *, wants_last: bool) -> ForwardBatch:
        """Return rows of known tokens.

        Args:
            arrays: `DraftRows` on the device.
            wants_last: whether hidden states of each row's last token are wanted, or none are.
        """
        positions, kv_slots, _, slots, q_starts, kv_lens = arrays
        q_lens = tuple(piece.end - piece.begin for piece in pieces)
        return ForwardBatch(
            input_ids=self._pages.tokens.index_select(0, kv_slots),
            positions=positions,
            kv_slots=kv_slots,
            page_table=self._table(slots, kv_lens, max(piece.end for piece in pieces)),
            q_starts=q_starts,
            kv_lens=kv_lens,
            logit_rows=q_starts[1:].to(torch.int64) - 1 if wants_last else slots[:0],
            q_lens=q_lens,
            kv_lens_host=tuple(piece.end for piece in pieces),
            num_decodes=next((row for row, length in enumerate(q_lens) if length != 1), len(q_lens)),
        )

    def _single(self, step: DraftStep, number: int) -> ForwardBatch:
        """Return a row of one token, the draft before the one of a number, for each row that has one of that number."""
        count, kv_slots = step.counts[number], step.draft_slots(number - 1)[: step.counts[number]]
        _, _, _, slots, _, kv_lens = step.guess_arrays
        kv_lens = kv_lens[:count] + number
        ends = tuple(piece.end + number for piece in step.layout.guesses[:count])
        rows = torch.arange(count + 1, device=kv_lens.device)
        return ForwardBatch(
            input_ids=self._pages.tokens.index_select(0, kv_slots),
            positions=kv_lens.to(torch.int64) - 1,
            kv_slots=kv_slots,
            page_table=self._table(slots[:count], kv_lens, max(ends)),
            q_starts=rows.to(torch.int32),
            kv_lens=kv_lens,
            logit_rows=rows[:count],
            q_lens=(1,) * count,
            kv_lens_host=ends,
            num_decodes=count,
        )

    def _table(self, slots: torch.Tensor, kv_lens: torch.Tensor, longest: int) -> torch.Tensor:
        page_size = self._state.shape.page_size
        return self._state.page_table.rows(slots, kv_lens, -(-longest // page_size), page_size)
