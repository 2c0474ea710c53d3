"""TorchRunner: plan -> tensors -> tokens.

On the host, at launch:

    check   refuse a plan that does not fit, before anything changes
    copy    pages from and to the tiers behind the device (`storage/copies.py`)
    apply   new slots and pages
    lay out the plan as arrays (`inputs.py`), and what its rows ask for beside the forward (`features/`)
    stage   the arrays: they start for the device in one copy (`device/transport.py`)

On the device, queued behind the step before:

    inputs  take the arrays as tensors, with the tokens that never left the device
    forward let the model write KV and give hidden states of the rows that sample or embed and of those before a target
            (`graphs.py`: in steps that only decode it may be a replay)
    slices  some layers of long chunks (`layers.py`), and work on chunks whose context is longer than the device
            (`offload/`)
    sample  one token a row by way of the features, kept on the device for the next step (`last_tokens.py`); a row with
            drafts samples several, of which those count that follow right drafts (`drafts.py`)
    return  copy what was sampled and scored to the host (`launched.py`)

Nothing of the second half waits for the host or the host for it: steps run in launch order, and only `wait` blocks, on
the copy of this step's results. On a CPU all of it is computed at launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sluice.attention.base import Attention
from sluice.device.memory import kv_bytes
from sluice.device.queues import noop
from sluice.device.transport import Arrived, Transport, transport_for
from sluice.runner.device_state import DeviceState
from sluice.runner.drafting.drafter import RunnerDrafter
from sluice.runner.drafting.step import DraftStep
from sluice.runner.features.base import SLICE_BYTES, Outcome, StagedFeatures, StepLogits
from sluice.runner.forwards import EagerForwards, Forwards, Model
from sluice.runner.inputs import KV_SLOTS, LOGIT_ROWS, NUM_ARRAYS, HostBatch
from sluice.runner.launched import LaunchedStep, OtherRanksResult, PassedStep
from sluice.runner.layers import LayerSlices
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps
from sluice.runner.offload.loaders import LoadTotals
from sluice.runner.offload.rows import (
    NoOffload,
    SlicedWork,
    SliceRunner,
    SliceRunners,
    SlicesStep,
    ordinary,
    run_slices,
    with_sliced,
)
from sluice.storage.copies import Copies, CopiesOnly, FailedStep, Launched, NoTiers, WithCopies
from sluice.types import BatchPlan, PlanError
from sluice.types.footprint import Footprint


@dataclass(frozen=True, slots=True)
class _Step:
    """A step as the host laid it out."""

    host: HostBatch
    """All rows of the step."""
    resident: HostBatch
    """The rows that are computed together: all but those of slices."""
    laid: HostBatch
    """`resident` with the rows that pad it, if any."""
    work: SlicedWork
    features: StagedFeatures
    rest: BatchPlan
    """The plan, without the chunks that slices complete."""
    drafting: DraftStep | None
    """What the runner's own drafter does, if there is one."""


class TorchRunner:
    """Runs plans on one device.

    Args:
        model: on the state's device, in the state's dtype.
        state: empty slots and KV; the runner owns it from now on.
        attention: the backend that every layer calls.
        transport: how steps reach the device; None: the transport of the state's device, for two steps in flight.
        forwards: runs the model; None: eagerly.
        logit_ops: samples and scores.
        slice_bytes: most memory that the logits of prompt tokens take at once (a row at least), when their
            log-probabilities are asked for.
        tick: called every second while the host waits for a step.
        offload: runs slices of offloaded chunks; None: plans must have none.
        layers: runs slices of resident chunks; None: plans must have none.
        copies: executes the copies of plans; None: plans must have none.
        elsewhere: waits for what other ranks sample; None: this one samples.
        drafter: guesses the drafts that plans ask for, in the forward of the model that `forwards` run; None: plans
            bring their drafts.
    """

    def __init__(
        self,
        model: Model,
        state: DeviceState,
        attention: Attention,
        *,
        transport: Transport | None = None,
        forwards: Forwards | None = None,
        logit_ops: LogitOps = TORCH_LOGIT_OPS,
        slice_bytes: int = SLICE_BYTES,
        tick: Callable[[], None] = noop,
        offload: SliceRunner | None = None,
        layers: LayerSlices | None = None,
        copies: Copies | None = None,
        elsewhere: OtherRanksResult | None = None,
        drafter: RunnerDrafter | None = None,
    ) -> None:
        self._model = model
        self._state = state
        self._transport = transport or transport_for(state.shape.device, num_buffers=2, tick=tick)
        self._forwards = forwards or EagerForwards(model, state, attention)
        self._logit_ops = logit_ops
        self._slice_bytes = slice_bytes
        self._tick = tick
        self._offload = NoOffload() if offload is None else offload
        self._slices = SliceRunners(self._offload, layers)
        self._copies: Copies = NoTiers() if copies is None else copies
        self._elsewhere = elsewhere
        self._drafter = drafter

    def footprint(self) -> Footprint:
        """Return what is allocated for keys and values, in bytes by part."""
        state, ring, copies = self._state, self._offload.ring_bytes, self._copies
        pool, states = kv_bytes(state.kv), state.states
        return Footprint(
            device_kv_bytes=pool + ring,
            pool_bytes=pool,
            window_bytes=kv_bytes(state.windowed_kv),
            ring_bytes=ring,
            bounds_bytes=self._offload.bounds_bytes,
            draft_bytes=0 if self._drafter is None else self._drafter.num_bytes,
            state_bytes=0 if states is None else states.pool.slot_bytes,
            record_bytes=0 if states is None else states.pool.record_bytes,
            host_bytes=copies.host_bytes,
            disk_bytes=copies.disk_bytes,
        )

    @property
    def computes_at_launch(self) -> bool:
        """Whether a step is computed when `launch` returns, as on a CPU."""
        return self._state.shape.device.type == "cpu"

    @property
    def loads(self) -> LoadTotals:
        """Totals of the blocks that were loaded into the ring since the start."""
        return self._offload.totals

    def launch(self, plan: BatchPlan) -> Launched:
        """Start a step.

        Raises:
            PlanError: the plan does not fit the device's state, which is unchanged.
        """
        self.check(plan)
        return self.start(plan)

    def check(self, plan: BatchPlan) -> None:
        """Refuse a plan that cannot be run, before anything changes.

        Raises:
            PlanError: the plan does not fit the device's state.
        """
        problem = self._slices.problem_of(plan) if plan.slices else None
        if problem is not None:
            raise PlanError(f"plan of step {plan.step} cannot run: {problem}")
        self._state.check(ordinary(plan), guesses_drafts=self._drafter is not None)
        self._copies.check(plan)

    @torch.inference_mode()
    def start(self, plan: BatchPlan) -> Launched:
        """Start a step whose plan was checked."""
        rest = ordinary(plan)
        if not plan.copies and not plan.dropped:
            return self._run(plan, rest)
        copies = self._copies.begin(plan, self._transport)
        try:
            runs = plan.chunks or plan.slices or plan.saved or plan.given_up
            step = self._run(plan, rest) if runs else CopiesOnly(plan.step)
            return WithCopies(step, copies)
        except Exception as error:  # noqa: BLE001 - the step raises it when it is waited for
            return FailedStep(error)

    def close(self) -> None:
        """Finish what is on its way to a disk, within seconds. No launch may follow; may be called again."""
        for feature in self._state.features:
            feature.close()
        try:
            self._offload.close()
        finally:
            self._copies.close()

    def _run(self, plan: BatchPlan, rest: BatchPlan) -> Launched:
        """Run a checked plan.

        Args:
            rest: the plan without the chunks that its slices complete.
        """
        state, (_, compute, results) = self._state, self._transport.queues
        work = SlicedWork(plan.step, tuple(new.slot for new in plan.new_slots), plan.slices, plan.given_up)
        if not plan.chunks and not plan.new_slots and not any(part.new_pages for part in plan.slices):
            slices = SlicesStep(self._slices, work, self._tick)
            compute.run(lambda: self._begin_states(rest))
            compute.run(slices.compute)
            slices.done = compute.record()
            return slices
        changes = state.apply(rest)
        resident = state.laid_out(rest)
        host = with_sliced(resident, work, plan.chunks)
        laid = self._forwards.padded(resident) if rest.chunks else resident
        drafting = None if self._drafter is None else self._drafter.stage(rest)
        step = _Step(host, resident, laid, work, StagedFeatures(state.features, host), rest, drafting)
        outcome = Outcome(host, step.features)
        of_drafter = () if drafting is None else drafting.arrays
        arrays = (*laid.arrays, *changes, host.slots_of_rows, *of_drafter, *step.features.arrays)
        arrived = self._transport.staging.stage(arrays)
        try:
            compute.run(lambda: self._compute(step, arrived, outcome))
        finally:
            arrived.done()
        results.wait(compute.record())
        results.run(lambda: outcome.to_host(self._transport.to_host))
        arrived_back = results.record()
        if self._elsewhere is not None:
            return PassedStep(plan.step, outcome, arrived_back, self._elsewhere, self._tick)
        return LaunchedStep(plan.step, outcome, arrived_back, self._tick)

    @torch.inference_mode()
    def _compute(self, step: _Step, arrived: Arrived, outcome: Outcome) -> None:
        """Do the device's part of a step. It reads nothing on the host that a later plan changes."""
        state, host = self._state, step.host
        cleared, entries, pages, slots, *others = arrived.tensors[NUM_ARRAYS:]
        state.change(cleared, entries, pages)
        self._begin_states(step.rest)
        split = 0 if step.drafting is None else len(step.drafting.arrays)
        step.features.arrive(others[split:])
        hidden = self._hidden(step, arrived, outcome, others[:split])
        if self._elsewhere is not None:
            step.features.hand_on()
            state.last_tokens.await_tokens(slots)
        if hidden is None or self._elsewhere is not None:
            outcome.sampled = torch.empty(0, dtype=torch.int64, device=state.shape.device)
            return
        counts = len(host.sample_rows), len(host.embed_rows), len(host.target_ids)
        to_sample, embedded, before_target = hidden[: sum(counts)].split(counts)
        logits = StepLogits(
            self._model.logits(to_sample),
            embedded,
            before_target,
            self._model.logits,
            self._logit_ops,
            self._slice_bytes,
        )
        tokens, drafts = step.features.sample(logits), step.features.drafts
        if drafts is None:
            outcome.sampled = state.last_tokens.write(slots, tokens)
        else:
            outcome.sampled = drafts.write(state.last_tokens, slots, tokens)

    @torch.inference_mode()
    def _begin_states(self, plan: BatchPlan) -> None:
        """Make the records of slots that are given back, then give new slots their states."""
        states = self._state.states
        if states is not None:
            states.save(plan.saved)
            states.open(plan)

    def _hidden(
        self, step: _Step, arrived: Arrived, outcome: Outcome, of_drafter: Sequence[torch.Tensor]
    ) -> torch.Tensor | None:
        """Return hidden states of the rows that sample, of those that embed, then of tokens before a target:
        [S + E + T or more, hidden_size].

        None if there are none, in a step that only works on chunks which it does not complete. On a rank that does not
        sample they may be none in any case.
        """
        resident = step.resident
        hidden = self._run_forward(step, arrived, of_drafter) if len(resident.row_slots) else None
        self._slices.open_slots(step.work.opened)
        if not step.work.slices and not step.work.given_up:
            return hidden
        if hidden is not None:
            hidden = None if self._elsewhere is not None else hidden[: len(resident.logit_rows)]
        counts = len(resident.sample_rows), len(resident.embed_rows), len(resident.target_ids)
        done = run_slices(self._slices, step.work, hidden, counts)
        outcome.slice_errors = done.errors
        return done.hidden

    def _run_forward(self, step: _Step, arrived: Arrived, of_drafter: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return hidden states of the resident rows, with the drafts guessed that are to be verified."""
        if self._drafter is None or step.drafting is None:
            return self._forwards.run(step.laid, arrived)
        self._drafter.begin(step.drafting, of_drafter)
        hidden = self._forwards.run(step.laid, arrived)
        self._drafter.follow()
        if step.features.drafts is not None:
            kv_slots, logit_rows = arrived.tensors[KV_SLOTS], arrived.tensors[LOGIT_ROWS]
            samples = step.features.drafts.samples
            step.features.guessed(self._drafter.tokens_at(kv_slots[logit_rows[samples] + 1]))
        return hidden
