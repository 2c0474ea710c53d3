"""Small worlds for the machines: settings in which everything runs short, and what must come out of them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from census import Observed
from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Submit
from sluice.engine.protocols import Runner
from sluice.engine.trace import NullTrace
from sluice.kv.events import NO_EVENTS, NoEvents
from sluice.kv.manager import KVManager
from sluice.scheduler.drafting.drafter import Drafter
from sluice.scheduler.drafting.measured_drafter import drafter_of
from sluice.scheduler.scheduler import Scheduler
from sluice.scheduler.setup import SchedulerSetup
from sluice.testing import (
    ManualLink,
    OracleDrafter,
    ShadowAdapters,
    ShadowGrammars,
    ShadowRunner,
    ShadowTiers,
    block_oracle,
    oracle,
    oracle_logprobs,
    shadow_embedding,
    shadow_grammar,
)
from sluice.testing.laws import Lawful, quiet_means_empty
from sluice.tracing.file import TraceFile
from sluice.tracing.recorder import Recorder
from sluice.types import (
    CHUNKS_BY_TIME,
    ITL_AUTO,
    NO_SAMPLING,
    DraftLimits,
    FinishReason,
    OffloadLimits,
    PriorityClass,
    SamplingParams,
    SchedulerLimits,
    Tier,
    TierLimits,
    TokenLogprobs,
    WindowLimits,
)

GRAMMARS = (
    "",
    "",
    "",
    shadow_grammar(),
    shadow_grammar(ends=7),
    shadow_grammar(forces=5),
    shadow_grammar(forces=3, ends=9),
)
"""What random requests have, most of them none."""
ADAPTERS = (*("",) * 13, "a", "b", "c")
"""Adapters of random requests, most of which have none."""
VOCAB = 2
"""Two tokens: prefixes collide all the time."""


CLASSES = (PriorityClass("interactive", 0), PriorityClass("standard", 4000), PriorityClass("batch", 15_000))
"""A request of the worlds arrives a millisecond after the one before it."""
NEVER_BEGUN = (FinishReason.OVERLOAD, FinishReason.EXPIRED)


class Arrival(NamedTuple):
    """A request that arrives before the engine's step of this number."""

    step: int
    submit: Submit


@dataclass(frozen=True)
class World:
    """Everything an engine can be set to."""

    limits: SchedulerLimits
    num_pages: int
    page_size: int
    prefix_caching: bool = True
    depth: int = 1
    late: bool = False
    tiers: TierLimits = field(default_factory=TierLimits)
    disk_fails: float = 0.0
    """Share of copies that fail."""
    offload: OffloadLimits | None = None
    reads_fail: float = 0.0
    """Share of parts of offloaded work that fail."""
    reads_late: float = 0.0
    """Share of the steps in which no block of an offloaded chunk comes."""
    flips: float = 0.0
    """Share of the reads of an offloaded chunk in which a page is damaged."""
    masks_late: float = 0.0
    """Share of the rows with a grammar that are given no token."""
    drafts_right: float = 0.7
    """Share of the drafts that are right, if there are any."""
    drafts_wanted: float = 1.0
    """Share of the moments at which they are wanted."""
    drafts_eager: bool = False
    """Whether there are always as many as there may be."""
    runner_drafts: bool = False
    """Whether the runner guesses them."""
    drafting: DraftLimits | None = None
    """What guesses in the place of the fake drafter."""
    windows: WindowLimits | None = None
    """Pages of layers with a window."""

    @property
    def is_timed(self) -> bool:
        """Whether plans depend on how long steps take."""
        by_time = self.limits.dynamic_chunking == CHUNKS_BY_TIME
        return bool(self.limits.itl_target) or by_time or self.drafting is not None

    @property
    def pool_tokens(self) -> int:
        return self.num_pages * self.page_size

    def setup(self) -> SchedulerSetup:
        return SchedulerSetup(
            self.limits,
            self.num_pages,
            self.page_size,
            self.prefix_caching,
            self.tiers,
            self.offload,
            drafting=self.drafting,
            windows=self.windows,
        )

    def kv(self, events: NoEvents = NO_EVENTS) -> KVManager:
        return KVManager(
            num_pages=self.num_pages,
            page_size=self.page_size,
            prefix_caching=self.prefix_caching,
            tiers=self.tiers,
            offload=self.offload,
            events=events,
            states=self.limits.states,
            windows=self.windows,
        )

    def scheduler(self, met: Counter[str] | None = None, events: NoEvents = NO_EVENTS) -> Lawful:
        """A scheduler that obeys the laws or raises. What it meets is counted in `met`."""
        scheduler = Scheduler(self.limits, self.kv(events), drafter=self.drafter())
        return Lawful(scheduler) if met is None else Observed(scheduler, met)

    def drafter(self) -> Drafter:
        """A drafter that makes no more guesses than the limits allow."""
        if self.drafting is not None:
            return drafter_of(self.drafting, self.limits.num_draft_tokens)
        return self.oracle()

    def oracle(self) -> OracleDrafter:
        """A drafter that knows what is right."""
        return OracleDrafter(
            vocab_size=VOCAB,
            right=self.drafts_right,
            wanted=self.drafts_wanted,
            in_runner=self.runner_drafts,
            is_eager=self.drafts_eager,
        )

    def shadow(
        self, vocab_size: int = VOCAB, tiers: ShadowTiers | None = None, draw: random.Random | None = None
    ) -> ShadowRunner:
        late = random.Random(0)
        return ShadowRunner(
            page_size=self.page_size,
            vocab_size=vocab_size,
            late=self.late,
            tiers=tiers,
            offload_tier=Tier.DISK if self.offload is None else self.offload.tier,
            read_fails=lambda _: draw is not None and draw.random() < self.reads_fail,
            mask_is_late=lambda _: late.random() < self.masks_late,
            guess=self.oracle().guesses,
            block_size=self.limits.block_size,
            state_block=0 if self.limits.states is None else self.limits.states.block,
            windows=self.windows,
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest request that can be served."""
        if self.offload is None:
            return self.pool_tokens
        pages = self.tiers.host_pages if self.offload.tier is Tier.HOST else self.tiers.disk_pages
        return max(min(self.pool_tokens, self.offload.above), pages * self.page_size)


@dataclass(frozen=True)
class Bench:
    """An engine over a runner, and a link worked by hand."""

    world: World
    scheduler: Lawful
    link: ManualLink
    engine: Engine
    clock: VirtualClock
    """The engine's, if steps have a target or are recorded."""
    disk: Callable[[], None] = lambda: None
    """Lets the disk go on for a while."""

    @classmethod
    def of(
        cls,
        world: World,
        runner: Runner | None = None,
        journal: TraceFile | None = None,
        met: Counter[str] | None = None,
        events: NoEvents = NO_EVENTS,
    ) -> Bench:
        """With a journal, the engine's calls of the scheduler go through a recorder. The disk is as fast as
        the device."""
        scheduler, link, clock = world.scheduler(met, events), ManualLink(), VirtualClock()
        runner = runner or world.shadow()
        if journal is None:
            timed = clock if world.is_timed else None
            grammars, adapters = ShadowGrammars(link.post), ShadowAdapters(link.post, places=world.limits.max_loras)
            engine = Engine(
                scheduler, runner, link, depth=world.depth, clock=timed, grammars=grammars, adapters=adapters
            )
            return cls(world, scheduler, link, engine, clock)
        recorder = Recorder(scheduler, NullTrace(), journal, clock)
        grammars, adapters = ShadowGrammars(link.post), ShadowAdapters(link.post, places=world.limits.max_loras)
        engine = Engine(
            recorder,
            runner,
            link,
            depth=world.depth,
            clock=clock,
            trace=recorder,
            grammars=grammars,
            adapters=adapters,
        )
        return cls(world, scheduler, link, engine, clock)

    @property
    def is_idle(self) -> bool:
        """Nothing is left to do, not even for the disk."""
        return self.engine.is_idle and not self.scheduler.awaits_report

    def step(self) -> None:
        """Let the disk go on, and the engine, on a machine whose steps take anything from 0 to 12 ms."""
        self.disk()
        if self.world.is_timed:
            self.clock.advance(self.scheduler.state.step * 7919 % 13 / 1000)
        self.engine.step()

    def drain(self, max_steps: int) -> None:
        """Step, once at least, until nothing is left to do."""
        self.step()
        steps = 1
        while not self.is_idle:
            self.step()
            steps += 1
            assert steps <= max_steps, f"law 12: still busy after {steps} steps"


@dataclass
class SlowDisk:
    """The shadow runner of a bench, and a disk behind it that takes its time and fails as the world says.

    Args:
        draw: decides how long it takes and what fails; None: it is done with all by the next step, and nothing fails.
        wrap: puts another runner before the shadow.
    """

    world: World
    draw: random.Random | None
    wrap: Callable[[Runner], Runner] = lambda runner: runner

    def bench(
        self, journal: TraceFile | None = None, met: Counter[str] | None = None, events: NoEvents = NO_EVENTS
    ) -> Bench:
        """An engine over it."""
        bench = Bench.of(self.world, self.world.shadow(), journal, met, events)
        self._link = bench.link
        self.replace(bench)
        draw = random.Random(0)
        grammars = ShadowGrammars(bench.link.post, is_late=lambda _: self.draw is not None and draw.random() < 0.5)
        bench.engine.grammars = grammars
        loads = random.Random(0)
        bench.engine.adapters = adapters = ShadowAdapters(
            bench.link.post,
            is_late=lambda _: self.draw is not None and loads.random() < 0.5,
            places=self.world.limits.max_loras,
        )

        def work() -> None:
            self.tiers.work(self.shadow)
            if draw.random() < 0.3:
                grammars.work()
            if loads.random() < 0.3:
                adapters.work()

        return replace(bench, disk=work)

    def replace(self, bench: Bench) -> None:
        """Another runner, all of it empty."""
        self.tiers = ShadowTiers(
            self.draw,
            self._link.post,
            fails=self.world.disk_fails,
            reads_fail=self.world.reads_fail,
            reads_late=self.world.reads_late,
            flips=self.world.flips,
        )
        self.shadow = self.world.shadow(tiers=self.tiers, draw=self.draw)
        bench.engine.runner = self.wrap(self.shadow)


def enough_steps(submits: Mapping[int, Submit]) -> int:
    """A generous bound on the steps any schedule may take: each token a few times over, alone in its step."""
    return 200 + 40 * sum(len(s.prompt) + (s.sampling.max_tokens or 0) for s in submits.values())


def check_ends(bench: Bench, submits: Mapping[int, Submit], *, faults: bool = False, vocab_size: int = VOCAB) -> None:
    """Laws 11, 13 and 15 over a finished run: every request ended once, with the oracle's tokens; nothing is held."""
    for request_id, submit in submits.items():
        last, tokens = bench.link.end(request_id), bench.link.tokens(request_id)
        if submit.embeds:
            check_embedding(bench.link, submit, faults=faults)
            continue
        expected = tokens_of(submit, vocab_size, bench.world.limits.block_size)
        assert last.finish_reason is not None
        if last.finish_reason.is_failure:
            assert tokens == expected[: len(tokens)], f"request {request_id} gave {tokens}, oracle {expected}"
            assert faults or last.finish_reason is not FinishReason.ERROR, f"nothing failed, but {last}"
            assert not tokens or last.finish_reason not in NEVER_BEGUN, f"{last} after {tokens}"
        else:
            assert tokens == expected, f"request {request_id} gave {tokens}, oracle {expected}"
            reason = end_of(expected, submit, vocab_size, bench.world.limits.block_size)
            assert last.finish_reason is reason, f"{last} after {expected}"
        check_logprobs(bench.link, submit, vocab_size)
    bench.drain(1000)  # what the disk has not done yet
    quiet_means_empty(bench.scheduler.state)
    drafter = bench.scheduler.state.drafter
    assert not isinstance(drafter, OracleDrafter) or not drafter.open, f"requests {drafter.open} were never forgotten"


def check_embedding(link: ManualLink, submit: Submit, *, faults: bool) -> None:
    """Check that the embedding is that of the whole prompt, and that nothing else came."""
    last, found = link.end(submit.request_id), link.embedding(submit.request_id)
    assert last.finish_reason is not None
    assert link.tokens(submit.request_id) == ()
    if last.finish_reason.is_failure:
        assert found == b""
        assert faults or last.finish_reason is not FinishReason.ERROR, f"nothing failed, but {last}"
    else:
        assert found == shadow_embedding(submit.prompt), f"request {submit.request_id} gave {found!r}"
        assert last.finish_reason is FinishReason.STOP


def check_logprobs(link: ManualLink, submit: Submit, vocab_size: int) -> None:
    """Check that log-probabilities are the oracle's: one for each output, each prompt token once, in order, and all of
    the prompt if there is an output."""
    outputs, asked = link.tokens(submit.request_id), submit.sampling
    logprobs, prompt_logprobs = link.logprobs(submit.request_id), link.prompt_logprobs(submit.request_id)
    if asked.logprobs is None:
        assert logprobs == (), f"no log-probabilities were requested, got {logprobs}"
    else:
        _, expected = oracle_logprobs(submit.prompt, outputs, asked.logprobs, vocab_size=vocab_size)
        assert_same_logprobs(logprobs, expected)
    if asked.prompt_logprobs is None:
        assert prompt_logprobs == (), f"no prompt log-probabilities were requested, got {prompt_logprobs}"
    else:
        expected, _ = oracle_logprobs(submit.prompt, (), asked.prompt_logprobs, vocab_size=vocab_size)
        assert_same_logprobs(prompt_logprobs, expected if outputs else expected[: len(prompt_logprobs)])


def oracle_of(
    submit: Submit, vocab_size: int = VOCAB
) -> tuple[tuple[int, ...], tuple[TokenLogprobs, ...], tuple[TokenLogprobs, ...]]:
    """What a request must give in all: tokens, their log-probabilities and the prompt's, each if asked for."""
    asked, prompt = submit.sampling, submit.prompt
    tokens = tokens_of(submit, vocab_size)
    of_tokens = of_prompt = ()
    if asked.logprobs is not None:
        of_tokens = oracle_logprobs(prompt, tokens, asked.logprobs, vocab_size=vocab_size)[1]
    if asked.prompt_logprobs is not None:
        of_prompt = oracle_logprobs(prompt, (), asked.prompt_logprobs, vocab_size=vocab_size)[0]
    return tokens, of_tokens, of_prompt


def assert_same_logprobs(logprobs: Sequence[TokenLogprobs], expected: Sequence[TokenLogprobs]) -> None:
    """The same tokens, and the same numbers but for rounding."""
    assert [ids_of(item) for item in logprobs] == [ids_of(item) for item in expected]
    for one, other in zip(logprobs, expected, strict=True):
        numbers = zip(numbers_of(one), numbers_of(other), strict=True)
        assert all(math.isclose(a, b, abs_tol=1e-9) for a, b in numbers), f"{one} is not {other}"


def ids_of(item: TokenLogprobs) -> list[int]:
    return [item.token_id, *(token for token, _ in item.top)]


def numbers_of(item: TokenLogprobs) -> list[float]:
    return [item.logprob, *(logprob for _, logprob in item.top)]


def tokens_of(submit: Submit, vocab_size: int = VOCAB, block_size: int = 0) -> tuple[int, ...]:
    """The output that a request must have."""
    if block_size:
        index = submit.sample_index
        return block_oracle(
            submit.prompt, submit.sampling, sample_index=index, vocab_size=vocab_size, block_size=block_size
        )
    return oracle(
        submit.prompt,
        submit.sampling,
        sample_index=submit.sample_index,
        vocab_size=vocab_size,
        grammar=submit.grammar,
    )


def end_of(tokens: tuple[int, ...], submit: Submit, vocab_size: int = VOCAB, block_size: int = 0) -> FinishReason:
    more = replace(submit.sampling, max_tokens=len(tokens) + 10)
    is_whole = tokens_of(replace(submit, sampling=more), vocab_size, block_size) == tokens  # it ends by itself
    return FinishReason.STOP if is_whole else FinishReason.LENGTH


def limits_of(
    *,
    schedule: str = "mixed",
    chunk: int = 8,
    batch: int | None = None,
    running: int = 4,
    lookahead: int = 0,
    **rest: Any,
) -> SchedulerLimits:
    """Limits with small defaults; admission counts nothing for the output of what runs, unless asked to."""
    rest = {"conservativeness": 0.0, **rest}
    return SchedulerLimits(schedule, chunk, batch or (chunk or 64) + running, running, lookahead, **rest)


def random_limits(draw: random.Random, page_size: int, running: int, depth: int) -> SchedulerLimits:
    """Any setting that `config` lets through. Some of the priorities become classes."""
    chunk = draw.choice([0, page_size, page_size + 1, max(1, 3 * page_size - 1), 8 * page_size])
    cap = max(page_size, draw.choice([page_size, 2 * page_size + 1]))
    limits = SchedulerLimits(
        schedule=draw.choice(["mixed", "prefill-first"]),
        chunked_prefill_size=chunk,
        max_batch_tokens=running + page_size + draw.randint(0, 3 * page_size),
        max_running_requests=running,
        lookahead=draw.randint(0, depth - 1),
        max_prefill_tokens=draw.choice([0, 0, draw.randint(1, 6 * page_size)]),
        long_prefill_token_threshold=draw.choice([0, 0, cap]) if chunk else 0,
        max_prefill_requests=draw.choice([0, 0, 1, 2]),
        max_partial_prefills=draw.choice([1, 1, 2, 3, 4]),
        reserve=draw.choice(["full", "ratio", "ratio"]),
        conservativeness=draw.choice([0.0, 0.0, 1.0]),
        policy=(policy := draw.choice(["fcfs", "lpm", "priority"])),
        low_priority_values_first=draw.random() < 0.5,
        priority_preemption=policy == "priority" and draw.random() < 0.5,
        max_queued_requests=draw.choice([0, 0, 0, 1, 3]),
        max_queued_tokens=draw.choice([0, 0, 0, 5 * page_size]),
        dynamic_chunking=draw.choice([0, CHUNKS_BY_TIME, 1, 3 * page_size]) if chunk else 0,
        dynamic_chunking_smoothing=0.75 if running % 2 else 1.0,
        pipeline_stages=depth if running % 2 else 1,
        max_loras=1 + running % 2,
    )
    if limits.policy == "priority" and limits.max_batch_tokens % 2:
        return replace(limits, policy="deadline", classes=CLASSES)
    return limits


def random_target(draw: random.Random, limits: SchedulerLimits) -> SchedulerLimits:
    """The same with an ITL target, every other time where there can be one: one that is far, near, or infeasible."""
    if not limits.chunked_prefill_size or draw.random() < 0.5:
        return limits
    target, quantile = draw.choice([1, 3000, 10_000, 50_000, ITL_AUTO]), draw.choice([0.5, 0.95])
    limits = replace(limits, schedule="mixed", dynamic_chunking=0, itl_target=target, itl_quantile=quantile)
    return limits if draw.random() < 0.3 else sliced(draw, limits)


def sliced(draw: random.Random, limits: SchedulerLimits) -> SchedulerLimits:
    """The same with chunks that are divided among steps, if there can be any."""
    if not limits.itl_target or limits.max_prefill_tokens or limits.long_prefill_token_threshold:
        return limits
    limits = replace(limits, sliced_chunk_size=draw.choice([8, 16, 64, 256]), num_layers=draw.randint(1, 5))
    return replace(limits, part_tokens=1 + limits.max_running_requests)


def random_tiers(draw: random.Random) -> TierLimits:
    """Nothing behind the device, or tiers in which everything runs short."""
    per_step = draw.choice([1, 2, 5, 64])
    return TierLimits(
        host_pages=draw.choice([0, 0, draw.randint(1, 12)]),
        disk_pages=draw.choice([0, draw.randint(1, 40), draw.randint(1, 40)]),
        write_policy=draw.choice(["write-through", "write-back", "selective"]),
        copies_per_step=per_step,
        copies_in_flight=per_step * draw.randint(1, 4),
        load_back_pages=draw.choice([1, 1, 2, 3]),
    )


def offload_of(**changed: Any) -> OffloadLimits:
    """How contexts longer than the device lie on a disk, in units of one page in each of two layers."""
    plain = OffloadLimits(
        above=32,
        tier=Tier.DISK,
        page_bytes=100,
        chunk_tokens=8,
        window_pages=4,
        num_layers=2,
        block_pages=1,
        group_blocks=1,
    )
    return replace(plain, **changed)


def random_offload(draw: random.Random, world: World) -> World:
    """A world in which contexts may be longer than the device, if it has a tier for them."""
    sizes = {Tier.HOST: world.tiers.host_pages, Tier.DISK: world.tiers.disk_pages}
    tier = next((tier for tier, pages in sizes.items() if pages), None)
    if tier is None or world.num_pages < 3:
        return world
    chunk = draw.randint(1, min(4, world.num_pages - 2))
    offload = OffloadLimits(
        above=draw.choice([world.pool_tokens, world.pool_tokens, draw.randint(0, world.pool_tokens)]),
        tier=tier,
        page_bytes=1000,
        chunk_tokens=chunk * world.page_size,
        window_pages=draw.randint(chunk + 1, min(2 * chunk + 1, world.num_pages - 1)),
        num_layers=draw.randint(1, 3),
        block_pages=draw.randint(1, 3),
        group_blocks=draw.randint(1, 3),
        decode_blocks=draw.choice([0, 0, 1, 3]),
        decode_from=draw.choice([0, 0, 1, 2]),
        prefill_blocks=draw.choice([0, 0, 0, 2]),
        pair_cost=draw.choice([0.0, 0.001, 0.1]),
        load_cost=draw.choice([0.0, 0.01, 1.0, 100.0]),
        reports_loads=tier is Tier.DISK,
    )
    late = draw.choice([0.0, 0.2, 0.7]) if offload.reports_loads else 0.0
    flips = draw.choice([0.0, 0.05, 0.2]) if offload.reports_loads else 0.0
    fails = draw.choice([0.0, 0.0, 0.0, 0.05])
    more = random.Random(chunk + offload.window_pages)
    offload = replace(
        offload,
        pages_per_step=more.choice([1, 2, 5, 1024]),
        decode_group_blocks=more.choice([0, 0, 2, 4]),
        prefill_from=more.choice([0, 0, 2]),
        decode_lag=more.randint(1, offload.window_pages - 1) if offload.decode_blocks else 0,
    )
    return replace(world, offload=offload, reads_fail=fails, reads_late=late, flips=flips)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    page_size = draw(st.sampled_from([1, 2, 4, 16, 64]))
    depth = draw(st.integers(1, 3))
    running = draw(st.integers(1, 5))
    limits = random_limits(draw(st.randoms(use_true_random=False)), page_size, running, depth)
    limits = random_target(draw(st.randoms(use_true_random=False)), limits)
    return World(
        limits=limits,
        num_pages=draw(st.integers(3, 24)),
        page_size=page_size,
        prefix_caching=draw(st.booleans()),
        depth=depth,
        late=draw(st.booleans()),
        tiers=random_tiers(draw(st.randoms(use_true_random=False))),
        disk_fails=draw(st.sampled_from([0.0, 0.1, 1.0])),
    )


@st.composite
def submits(draw: st.DrawFn, world: World, request_id: int) -> Submit:
    """A request that fits the world; half of them begin alike."""
    length = draw(st.integers(1, min(world.pool_tokens - 1, 6 * world.page_size + 3)))
    max_tokens = draw(st.integers(1, min(world.pool_tokens - length, 2 * world.page_size + 6)))
    if draw(st.booleans()):
        prompt = [0] * length
    else:
        bits = draw(st.integers(0, 2 ** min(length, 24) - 1))
        prompt = [bits >> (position % 24) & 1 for position in range(length)]
    sampling = SamplingParams(
        max_tokens=max_tokens,
        seed=draw(st.integers(0, 2)),
        stop_token_ids=draw(st.sampled_from([(), (), (), (1,)])),
        logprobs=draw(st.sampled_from([None, None, 0, 1, 3])),
        prompt_logprobs=draw(st.sampled_from([None, None, 0, 1])),
    )
    embeds = draw(st.sampled_from([False, False, False, True]))
    return Submit(
        request_id,
        tuple(prompt),
        NO_SAMPLING if embeds else sampling,
        sample_index=draw(st.integers(0, 1)),
        extra_key=draw(st.sampled_from(["", "", "tenant"])),
        priority=draw(st.integers(0, 2)),
        priority_class=draw(st.sampled_from(["", "", "interactive", "batch"])),
        arrived=1000 * request_id,
        call=draw(st.sampled_from([None, None, request_id - request_id % 3])),
        lookahead=draw(st.sampled_from([None, None, 0, 1])),
        grammar="" if embeds else draw(st.sampled_from(GRAMMARS)),
        embeds=embeds,
        adapter=ADAPTERS[3 * request_id % len(ADAPTERS)] if world.limits.max_loras else "",
    )
