"""TorchRunner: plan -> tensors -> tokens.

On the host, at launch:

    check   refuse a plan that does not fit, before anything changes
    copy    pages from and to the tiers behind the device (`copies.py`)
    apply   new slots and pages
    lay out the plan as arrays (`inputs.py`), which start for the device (`staging.py`)

On the device, queued behind the step before:

    inputs  the arrays as tensors, with the tokens that never left the device
    stream  work on chunks whose context is longer than the device, apart from the others (`streaming/`)
    forward the model writes KV and gives hidden states of the rows that sample and of those before a target
            (`graphs.py`: in steps that only decode it may be a replay)
    adjust  bias, penalties, minimum length, where asked for (`adjust.py`)
    sample  one token a row, kept on the device for the next step (`last_tokens.py`)
    score   log-probabilities, where asked for (`logprobs.py`)
    land    what was sampled and scored is copied to the host (`launched.py`)

Nothing of the second half waits for the host or the host for it: steps run in launch order, and only `wait` blocks, on
the copy of this step's results. On a cpu all of it is computed at launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sluice.attention.base import Attention
from sluice.device.memory import kv_bytes
from sluice.device.queues import noop
from sluice.device.transport import Arrived, Transport, transport_for
from sluice.footprint import Footprint
from sluice.runner.adjust import HostAdjustments
from sluice.runner.device_state import DeviceState, StateChanges
from sluice.runner.forwards import EagerForwards, Forwards, Model
from sluice.runner.inputs import NUM_ARRAYS, HostBatch, host_batch
from sluice.runner.launched import LaunchedStep, Outcome
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps
from sluice.runner.logprobs import SLICE_BYTES, StepWishes, score_samples, score_targets
from sluice.runner.offload.loaders import LoadTotals
from sluice.runner.offload.rows import NoOffload, OffloadedWork, SliceRunner, ordinary, run_slices, with_offloaded
from sluice.runner.sampling_table import HostSampling
from sluice.tiers.copies import Copies, CopiesOnly, FailedStep, Launched, NoTiers, WithCopies
from sluice.types import BatchPlan, PlanError


@dataclass(frozen=True, slots=True)
class _Step:
    """A step as the host laid it out."""

    host: HostBatch
    """Its rows."""
    resident: HostBatch
    """Those that are computed together: all but the offloaded ones."""
    laid: HostBatch
    """These with the rows that pad them, if any."""
    work: OffloadedWork
    changes: StateChanges
    sampling: HostSampling
    adjustments: HostAdjustments | None
    wishes: StepWishes


class TorchRunner:
    """Runs plans on one device.

    Args:
        model: on the state's device, in the state's dtype.
        state: emptied slots and KV; owned by the runner from now on.
        attention: the backend that every layer calls.
        transport: how steps reach the device; None: that of the state's device, for two steps in flight.
        forwards: how the model is run; None: eagerly.
        logit_ops: what samples and scores.
        slice_bytes: most memory that the logits of prompt tokens take at once (a row at least), when their
            log-probabilities are asked for.
        tick: called every second while a step is waited for.
        streams: does the parts of offloaded chunks; without it plans must have none.
        copies: makes the copies that plans ask for.
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
        copies: Copies | None = None,
    ) -> None:
        self._model = model
        self._state = state
        self._transport = transport or transport_for(state.shape.device, num_buffers=2, tick=tick)
        self._forwards = forwards or EagerForwards(model, state, attention)
        self._logit_ops = logit_ops
        self._scoring = (slice_bytes, logit_ops)
        self._tick = tick
        self._offload = NoOffload() if offload is None else offload
        self._copies: Copies = NoTiers() if copies is None else copies

    def footprint(self) -> Footprint:
        """What is allocated for keys and values, in bytes by part."""
        pool, ring, copies = kv_bytes(self._state.kv), self._offload.ring_bytes, self._copies
        return Footprint(
            device_kv_bytes=pool + ring,
            pool_bytes=pool,
            ring_bytes=ring,
            host_bytes=copies.host_bytes,
            disk_bytes=copies.disk_bytes,
        )

    @property
    def loads(self) -> LoadTotals:
        """What passed through the ring so far."""
        return self._offload.totals

    @torch.inference_mode()
    def launch(self, plan: BatchPlan) -> Launched:
        """Start a step.

        Raises:
            PlanError: the plan does not fit the device's state, which is unchanged.
        """
        if plan.slices and isinstance(self._offload, NoOffload):
            raise PlanError(f"plan of step {plan.step} cannot run: it streams, and there is no ring")
        rest = ordinary(plan)
        self._state.check(rest)
        self._copies.check(plan)
        if not plan.copies and not plan.dropped:
            return self._run(plan, rest)
        copies = self._copies.begin(plan, self._transport)
        try:
            step = self._run(plan, rest) if plan.chunks or plan.slices else CopiesOnly(plan.step)
            return WithCopies(step, copies)
        except Exception as error:
            return FailedStep(error)

    def close(self) -> None:
        """Finish what is on its way to a disk, in seconds at most. No launch may follow; twice is once."""
        try:
            self._offload.close()
        finally:
            self._copies.close()

    def _run(self, plan: BatchPlan, rest: BatchPlan) -> LaunchedStep:
        """
        Args:
            rest: the plan without what is offloaded.
        """
        state, (_, compute, results) = self._state, self._transport.queues
        work = OffloadedWork(tuple(new.slot for new in plan.new_slots), plan.slices)
        changes = state.apply(rest)
        resident = host_batch(rest, state.page_table.host, state.shape.page_size)
        host = with_offloaded(resident, work)
        step = _Step(
            host,
            resident,
            self._forwards.padded(resident) if rest.chunks else resident,
            work,
            changes,
            state.sampling.step(host.sample_slots, host.sample_positions),
            state.adjustments.step(host.sample_slots, host.sample_positions),
            state.wishes.step(host),
        )
        outcome = Outcome()
        arrived = self._transport.staging.stage((*step.laid.arrays, *changes.arrays, *step.sampling.arrays))
        try:
            compute.run(lambda: self._compute(step, arrived, outcome))
        finally:
            arrived.done()
        results.wait(compute.record())
        results.run(lambda: outcome.land(self._transport.to_host))
        return LaunchedStep(plan.step, host, step.wishes, outcome, results.record(), self._tick)

    @torch.inference_mode()
    def _compute(self, step: _Step, arrived: Arrived, outcome: Outcome) -> None:
        """The device's part of a step. It reads nothing on the host that a later plan changes."""
        state, host, tensors = self._state, step.host, arrived.tensors
        table_end = NUM_ARRAYS + len(step.changes.arrays)
        state.change(step.changes, tensors[NUM_ARRAYS:table_end])
        sampling = step.sampling.arrived(tensors[table_end:])
        adjustments = None if step.adjustments is None else step.adjustments.on_device()
        hidden = self._hidden(step, arrived, outcome)
        if hidden is None:
            outcome.tokens = torch.empty(0, dtype=torch.int64, device=state.shape.device)
            return
        num_samples, num_targets = len(host.sample_rows), len(host.target_ids)
        of_samples, of_targets = hidden[:num_samples], hidden[num_samples : num_samples + num_targets]
        logits = self._model.logits(of_samples)
        wanted = logits if adjustments is None else adjustments.apply(logits, self._logit_ops)
        tokens = self._logit_ops.sample(wanted, sampling.rows, sampling.groups)
        outcome.tokens = state.last_tokens.write(sampling.slots, tokens)
        if adjustments is not None:
            adjustments.sampled(tokens)
        outcome.of_samples = score_samples(logits, tokens, step.wishes.samples, *self._scoring)
        outcome.of_targets = score_targets(self._model.logits, of_targets, host, step.wishes.targets, *self._scoring)

    def _hidden(self, step: _Step, arrived: Arrived, outcome: Outcome) -> torch.Tensor | None:
        """Of what is sampled, then of what is before a target: [S + T or more, hidden_size]; None: of nothing."""
        resident = step.resident
        hidden = self._forwards.run(step.laid, arrived) if len(resident.row_slots) else None
        self._offload.open_slots(step.work.opened)
        if not step.work.slices:
            return hidden
        if hidden is not None:
            hidden = hidden[: len(resident.logit_rows)]
        done = run_slices(self._offload, step.work, hidden, len(resident.sample_rows))
        outcome.slice_errors, outcome.unfinished = done.errors, done.unfinished
        return done.hidden
