"""Random schedules of crashes, hangs, aborts and disconnects do not change any stream."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from recovery_world import Server, arrived, in_a_loop
from scenarios import random_scenario, random_submit
from sluice.engine.messages import Submit
from sluice.process.client import Inbox
from sluice.testing import shadow_embedding
from sluice.testing.laws import quiet_means_empty
from sluice.types import FinishReason, Output, TokenLogprobs
from worlds import assert_same_logprobs, end_of, oracle_of

SCHEDULES = 200
PARTS = [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 4))]
"""Of the schedules, which take turns to be in one."""
VOCAB = 3
POISON = 7
"""A token outside the vocabulary, so only prompts contain it."""
TURNS = 250
MAX_TURNS = 20_000


@dataclass
class Stream:
    """One request as its client sees it."""

    submit: Submit
    inbox: Inbox
    has_left: bool = False
    outputs: list[Output] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for output in self.outputs for token in output.token_ids)

    @property
    def ends(self) -> list[Output]:
        return [output for output in self.outputs if output.finish_reason is not None]

    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        return tuple(item for output in self.outputs for item in output.logprobs)

    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        return tuple(item for output in self.outputs for item in output.prompt_logprobs)


def poisoned(submit: Submit) -> Submit:
    sampling = replace(submit.sampling, logprobs=None, prompt_logprobs=None)
    return replace(submit, prompt=(*submit.prompt[:-1], POISON), sampling=sampling)


class Schedule:
    """A server, random calls of its clients, and random faults of its engines."""

    def __init__(self, seed: int, *, poison: bool = False) -> None:
        self.draw = random.Random(seed)
        self.server = Server(random_scenario(seed).world, self.draw, POISON, VOCAB)
        self.streams: dict[int, Stream] = {}
        self._left_to_send = self.draw.randint(1, 14)
        self._poison_at = self.draw.randrange(self._left_to_send) if poison else -1
        self._fault_rate = self.draw.choice([0.0, 0.01, 0.05]) if poison else self.draw.choice([0.01, 0.05, 0.2])

    def run(self) -> None:
        for _ in range(TURNS):
            self._clients_act()
            if self.draw.random() < self._fault_rate:
                self.draw.choice(self._faults())()
            self.server.turn()
            self._read()
        turns = 0
        while any(not stream.has_left and not stream.ends for stream in self.streams.values()):
            self.server.turn()
            self._read()
            turns += 1
            assert turns < MAX_TURNS, f"still open: {[i for i, s in self.streams.items() if not s.ends]}"
        self._come_to_rest()

    def _clients_act(self) -> None:
        draw = self.draw
        if self._left_to_send and draw.random() < 0.1:
            self._submit(draw.randint(1, min(3, self._left_to_send)))
        alive = [stream for stream in self.streams.values() if not stream.has_left and not stream.ends]
        if alive and draw.random() < 0.005:
            stream = draw.choice(alive)
            stream.inbox.close()
            for other in self.streams.values():
                other.has_left |= other.inbox is stream.inbox and not other.ends
        if alive and draw.random() < 0.005:
            stream = draw.choice(alive)
            self.server.client.abort(stream.submit.request_id, FinishReason.STOP)
            stream.has_left = True

    def _submit(self, count: int) -> None:
        world, client = self.server.world, self.server.client
        submits = []
        for _ in range(count):
            submit = random_submit(self.draw, world, request_id=0, embeds=self._left_to_send % 5 == 2)
            self._left_to_send -= 1
            submits.append(poisoned(submit) if self._left_to_send == self._poison_at else submit)
        sent = [replace(submit, request_id=client.next_id(), lookahead=None) for submit in submits]
        inbox = client.submit(sent)
        for own, submit in zip(sent, submits, strict=True):
            self.streams[own.request_id] = Stream(replace(submit, request_id=own.request_id), inbox)

    def _faults(self) -> list[Callable[[], None]]:
        process = self.server.process

        def doom() -> None:
            process.doom.at = self.draw.choice(["launch", "wait", "send"])

        def hang() -> None:
            process.is_hung = True

        return [self.server.kill, doom, doom, hang]

    def _read(self) -> None:
        for inbox in {stream.inbox for stream in self.streams.values()}:
            for output in arrived(inbox):
                stream = self.streams[output.request_id]
                if not stream.has_left:
                    stream.outputs.append(output)

    def _come_to_rest(self) -> None:
        """Check that requests closed by their clients end in the engine too, and that it holds no page then."""
        server, turns = self.server, 0
        while server.process.loading or not server.process.engine.is_idle or server.process.to_engine:
            server.turn()
            turns += 1
            assert turns < MAX_TURNS, "the engine works on closed requests"
        quiet_means_empty(server.process.scheduler.state)

    def check(self) -> None:
        assert self.server.client.num_open == 0
        for stream in self.streams.values():
            if stream.submit.embeds:
                self._check_embedding(stream)
                continue
            assert len(stream.ends) == (0 if stream.has_left else 1), f"{stream.submit} ended {stream.ends}"
            tokens, logprobs, of_prompt = oracle_of(stream.submit, VOCAB)
            got = stream.tokens
            if stream.ends and stream.ends[0].finish_reason is FinishReason.OVERLOAD:
                assert got == (), "an accepted request is never refused"
            elif stream.has_left or stream.ends[0].finish_reason is FinishReason.ERROR:
                assert got == tokens[: len(got)]
                assert_same_logprobs(stream.logprobs(), logprobs[: len(got)])
                assert_same_logprobs(stream.prompt_logprobs(), of_prompt[: len(stream.prompt_logprobs())])
            else:
                assert got == tokens
                assert_same_logprobs(stream.logprobs(), logprobs)
                assert_same_logprobs(stream.prompt_logprobs(), of_prompt)
                assert stream.ends[0].finish_reason is end_of(tokens, stream.submit, VOCAB)
            assert len({output.num_cached_tokens for output in stream.outputs}) <= 1, "usage changed on the way"

    def _check_embedding(self, stream: Stream) -> None:
        """Check that an embedding came once, and was computed again if its engine died before."""
        found = [output.embedding for output in stream.outputs if output.embedding]
        assert stream.tokens == ()
        if stream.ends and not stream.has_left and stream.ends[0].finish_reason is FinishReason.STOP:
            assert found == [shadow_embedding(stream.submit.prompt)]
        else:
            assert not found

    def given_up(self) -> list[Stream]:
        return [s for s in self.streams.values() if s.ends and s.ends[0].finish_reason is FinishReason.ERROR]


def was_taken(stream: Stream) -> bool:
    """Return whether the request was neither closed by its client nor refused."""
    return not stream.has_left and stream.ends[0].finish_reason is not FinishReason.OVERLOAD


def played(seed: int, *, poison: bool = False) -> Schedule:
    schedule = Schedule(seed, poison=poison)
    in_a_loop(schedule.run)
    schedule.check()
    return schedule


@pytest.mark.parametrize("part", PARTS)
def test_every_stream_is_what_it_would_have_been(part: int) -> None:
    """No lost, repeated or changed tokens and log-probabilities, no second end, no request that waits forever, none
    ended that was not alone, no leaked pages."""
    deaths = resumed = 0
    for seed in range(part, SCHEDULES, 4):
        schedule = played(seed)
        recovery = schedule.server.client.recovery
        deaths += len(schedule.server.deaths)
        resumed += recovery.replayed_tokens
        for stream in schedule.given_up():
            alone = frozenset({stream.submit.request_id})
            assert any(death.inside & schedule.streams.keys() >= alone for death in schedule.server.deaths)
            assert "alone" in (stream.ends[0].error or "")
        assert recovery.ended_requests == len(schedule.given_up())
    assert deaths > SCHEDULES / 4, "hardly anything happened"
    assert resumed > SCHEDULES / 2, "hardly anything was resumed"


@pytest.mark.parametrize("part", PARTS)
def test_a_request_that_kills_engines_is_ended_and_no_other(part: int) -> None:
    """Other requests that were in the same engines are not ended."""
    for seed in range(part, SCHEDULES // 2, 4):
        schedule = played(seed, poison=True)
        if schedule._fault_rate == 0:
            poisonous = [s for s in schedule.streams.values() if POISON in s.submit.prompt and was_taken(s)]
            assert schedule.given_up() == poisonous, f"seed {seed}"
            assert len(schedule.server.deaths) <= 4, f"seed {seed}: it takes too many engines"
