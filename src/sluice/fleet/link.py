"""FleetLink: what the ingress's client sends to in place of an engine. It sends each request to a replica.

A replica may be lost at any moment: its process or its machine ends, it is replaced, its engine cannot be started. The
client has the prompt and all that was delivered, so the request continues on another replica of the same model, as it
does in another engine of one server.

With disaggregated prefill, a request goes to a prefill replica for its first token, and from there to a replica
that decodes, with the place of the prompt's pages; if that fails, to one that does both.

Everything here runs in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass, field, replace

from sluice.engine.messages import Abort, FlushCache, Message, PagesOffered, QueryStats, Stats
from sluice.fleet.calls import ReplicaCall
from sluice.fleet.disaggregated import DisaggregatedPrefill
from sluice.fleet.replica_router import ReplicaReport, ReplicaRouter
from sluice.fleet.replicas import ReplicaLost, Replicas
from sluice.fleet.totals import NOTHING, FleetTotals
from sluice.process.client import EngineClient
from sluice.process.delivery import OutputOrderError
from sluice.process.engine_state import EngineState
from sluice.process.handover import encode_offer
from sluice.process.log_limiter import LogLimiter
from sluice.process.restarts import Backoff
from sluice.process.wire import Failed, Outputs, WireError, decode
from sluice.types import FinishReason, Output, Submit

LOGGER = logging.getLogger("sluice.fleet")
EPOCH = 0
"""Number of the link as the client's engine: it is never replaced."""
MAX_LOSSES = 10
"""Replicas that may be lost one after the other with a request that gets no token from any of them."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds before a request is sent again."""
PREFILL_SECONDS = 2.0
"""Seconds that a prefill replica has to take a request. After them a replica that decodes computes the prompt."""
LOG_SECONDS = 5.0
NO_QUERY = 0
NO_REPLICA = "no replica answers"


NO_ROOM = (FinishReason.OVERLOAD, FinishReason.TIER_UNAVAILABLE)
"""Ends of requests that another replica may have room for."""


class _NotDisaggregatedError(Exception):
    """A prefill replica has no room for a prompt, which replicas that decode may have."""


@dataclass(slots=True)
class _Losses:
    """Replicas that were lost with a request since its last token."""

    since: float
    count: int = 0
    keys: set[str] = field(default_factory=set)
    """Keys of these replicas, as far as they are known."""
    pauses: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE, LONGEST_PAUSE))


class FleetLink:
    """Sends requests to replicas, and what comes back to the client.

    Args:
        state: receives whether replicas serve.
        patience: seconds for which a request without a new token is sent again and again, or waits for a replica that
            takes it, before it fails.
        sleep: waits, in seconds.
        apart: prefill replicas; None: there are none.
    """

    def __init__(
        self,
        client: EngineClient,
        replicas: Replicas,
        chooser: ReplicaRouter,
        state: EngineState,
        patience: float,
        sleep: Callable[[float], Coroutine[None, None, None]] = asyncio.sleep,
        apart: DisaggregatedPrefill | None = None,
    ) -> None:
        self._client = client
        self._replicas = replicas
        self._chooser = chooser
        self._state = state
        self._patience = patience
        self._sleep = sleep
        self._apart = apart
        self._offers: dict[int, bytes] = {}
        """Where the pages are stored that prefill replicas have handed over, by request, until the request is sent on.
        Empty: nowhere, and the request is not to go to a prefill replica again."""
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._losses: dict[int, _Losses] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._lost = LogLimiter(LOG_SECONDS)
        self._unseen = LogLimiter(LOG_SECONDS)
        self._unmoved = LogLimiter(LOG_SECONDS)
        self.totals = FleetTotals()

    def send(self, message: Message) -> None:
        """Send a message of the client."""
        match message:
            case Submit():
                # Ray numbers and cancels calls by the context, which would be that of the HTTP call.
                task = asyncio.get_running_loop().create_task(self._serve(message), context=Context())
                self._serving[message.request_id] = task
            case Abort(request_id):
                self._losses.pop(request_id, None)
                self._offers.pop(request_id, None)
                if request_id in self._serving:
                    self._serving.pop(request_id).cancel()
            case QueryStats() | FlushCache():
                asking = asyncio.get_running_loop().create_task(self._ask(message), context=Context())
                self._asking.add(asking)
                asking.add_done_callback(self._asking.discard)
            case other:
                raise ValueError(f"a fleet takes no {other!r}")

    async def watch(self, seconds: float) -> None:
        """Look at what replicas have to do, every so many seconds, until this is cancelled."""
        while True:
            try:
                await self._look()
            except (Exception, asyncio.CancelledError) as error:  # the next look may succeed, and requests need none
                if is_cancelled():
                    raise
                self._unseen.warn(LOGGER, f"the state of the replicas is not known: {error!r}")
            await self._sleep(seconds)

    async def close(self) -> None:
        """Abort all requests."""
        tasks = {*self._serving.values(), *self._asking}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look(self) -> None:
        """Tell the chooser what replicas have to do, and note whether any serves. Prefill replicas alone do not."""
        answers, decodes = await self._reports(flush=False)
        if decodes:
            self._state.serving(None, self._state.disabled_tiers)
        else:
            self._state.away(NO_REPLICA)
        self.totals.update(answers, NO_QUERY)

    async def _reports(self, *, flush: bool) -> tuple[dict[str, Stats], bool]:
        """Return the state of each replica that answers, and whether one that decodes does. Tell the choosers."""
        sides = [(self._replicas, self._chooser)]
        if self._apart is not None:
            sides.append((self._apart.replicas, self._apart.chooser))
        answers = await asyncio.gather(*(self._ask_all(*side, flush=flush) for side in sides))
        return {key: each.stats for answer in answers for key, each in answer.items()}, bool(answers[0])

    async def _ask_all(self, replicas: Replicas, chooser: ReplicaRouter, *, flush: bool) -> Mapping[str, ReplicaReport]:
        asked_at = self._client.now()
        answers = await replicas.ask(chooser, flush=flush)
        chooser.told(answers, asked_at)
        return answers

    async def _serve(self, request: Submit) -> None:
        """Let a replica work on a request until it ends, or until that replica is lost."""
        request_id, sent_at = request.request_id, self._client.now()
        losses = self._losses.get(request_id)
        handed_over = request_id in self._offers
        offer = self._offers.pop(request_id, b"")
        call = ReplicaCall(request, self._chooser, self._client.now, () if losses is None else losses.keys, offer)
        if self._apart is not None and losses is None and not handed_over and self._apart.takes(call, sent_at):
            call = ReplicaCall(request, self._apart.chooser, self._client.now, hands_over=True)
        try:
            if (how := await self._loss_of(call)) is not None:
                await self._again(call, sent_at, how)
            elif request_id in self._offers:
                self._client.go_on(request_id)
        except _NotDisaggregatedError:
            self._offers[request_id] = b""
            self.send(request)  # as it came: it has not begun, so replicas that decode may refuse it as well
        finally:
            call.chooser.ended(call.attempt)
            if self._serving.get(request_id) is asyncio.current_task():
                del self._serving[request_id]
                self._losses.pop(request_id, None)
                self._offers.pop(request_id, None)

    async def _loss_of(self, call: ReplicaCall) -> str | None:
        """Serve a call, and return how its replica was lost; None: the request has ended.

        Raises:
            _NotDisaggregatedError: a prefill replica has no room for it.
        """
        try:
            await self._wait_and_stream(call)
        except _NotDisaggregatedError:
            raise
        except (ReplicaLost, OutputOrderError, WireError) as error:
            return str(error)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return "its call was cancelled"
        except Exception as error:
            LOGGER.exception("a call failed")
            return repr(error)
        return None

    async def _wait_and_stream(self, call: ReplicaCall) -> None:
        """Serve a call. Ray lets it wait for a replica without a limit, and does not say that there is none.

        Raises:
            ReplicaLost: also if no replica has taken it in time.
            _NotDisaggregatedError: as `_loss_of`.
        """
        loop = asyncio.get_running_loop()
        now = self._client.now()
        losses = self._losses.get(call.request.request_id)
        since = now if losses is None else losses.since
        patience = min(self._patience, PREFILL_SECONDS) if call.hands_over else self._patience
        until = min([since + patience, *(at for at, _ in deadlines_of(call.request))])
        try:
            async with asyncio.timeout(None) as limit:

                def end_if_unsent() -> None:
                    if not call.attempt.is_sent:
                        limit.reschedule(loop.time())

                timer = loop.call_later(max(0.0, until - now), end_if_unsent)
                try:
                    await self._stream(call)
                finally:
                    timer.cancel()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ReplicaLost("no replica has taken it") from error

    async def _stream(self, call: ReplicaCall) -> None:
        has_begun = has_ended = False
        replicas = self._apart.replicas if self._apart is not None and call.hands_over else self._replicas
        async with aclosing(replicas.stream(call)) as frames:
            async for data in frames:
                match decode(data):
                    case Outputs(outputs) as frame:
                        if call.hands_over and not has_begun and outputs[0].finish_reason in NO_ROOM:
                            raise _NotDisaggregatedError
                        has_begun = True
                        if any(output.token_ids for output in outputs):
                            call.chooser.first_token(call.attempt)
                            self._losses.pop(call.request.request_id, None)
                        has_ended = has_ended or any(output.finish_reason is not None for output in outputs)
                        self._client.deliver(frame, EPOCH)
                    case PagesOffered() as offered:
                        self._offers[call.request.request_id] = self._offer_of(offered)
                        has_ended = True
                    case Failed(message):
                        raise ReplicaLost(message)
                    case other:
                        raise WireError(f"unexpected message {other!r}")
        if not has_ended:
            raise ReplicaLost("its stream ended before the request did")

    def _offer_of(self, offered: PagesOffered) -> bytes:
        """Return where the pages of a prefilled prompt are stored; empty if they cannot be handed over."""
        assert self._apart is not None, f"{offered} from a replica that decodes"
        if offered.offer is not None:
            return encode_offer(offered.offer)
        self._apart.failed_handovers += 1
        self._unmoved.warn(LOGGER, f"the pages of a prompt could not be handed over: {offered.error}")
        return b""

    async def _again(self, call: ReplicaCall, sent_at: float, how: str) -> None:
        """Send a request to another replica, after a pause, or give it up.

        Args:
            sent_at: when it was sent this time.
        """
        request_id, now, is_sent = call.request.request_id, self._client.now(), call.attempt.is_sent
        call.chooser.lost(call.attempt)
        reason = next((reason for at, reason in deadlines_of(call.request) if at <= now), None)
        if reason is not None and not is_sent:  # a replica that takes it ends it itself
            end = Output(request_id, len(call.request.output_ids), (), 0, reason)
            self._client.deliver(Outputs((end,)), EPOCH)
            return
        losses = self._losses.setdefault(request_id, _Losses(now if is_sent or call.hands_over else sent_at))
        losses.count += 1
        if call.attempt.key is not None:
            losses.keys.add(call.attempt.key)
        seconds = now - losses.since
        if losses.count > MAX_LOSSES or seconds >= self._patience:
            message = f"no replica could serve it ({losses.count} tried in {seconds:.0f} s); the last time: {how}"
            self._client.give_up(request_id, message)
            return
        self._lost.warn(LOGGER, f"a replica was lost, and its requests go on at others: {how}")
        await self._sleep(losses.pauses.next())
        self._client.resend(request_id)

    async def _ask(self, message: QueryStats | FlushCache) -> None:
        """Answer a question, with the last reports if replicas' answers are of no use."""
        try:
            answers, _ = await self._reports(flush=isinstance(message, FlushCache))
            total = self.totals.update(answers, message.query_id)
        except Exception as error:  # noqa: BLE001 - a question must have an answer
            self._unseen.warn(LOGGER, f"the state of the replicas is not known: {error!r}")
            total = replace(self._client.latest or Stats(NO_QUERY, NOTHING, None), query_id=message.query_id)
        self._client.deliver(total, EPOCH)


def is_cancelled() -> bool:
    """Return whether the current task was asked to end. If not, an error says that what it waits for was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def deadlines_of(request: Submit) -> list[tuple[float, FinishReason]]:
    """Return the moments at which a request without a replica ends, and why."""
    start = None if request.output_ids else request.start_deadline
    both = (start, FinishReason.EXPIRED), (request.deadline, FinishReason.TIMEOUT)
    return [(at, reason) for at, reason in both if at is not None]
