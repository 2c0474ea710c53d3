"""Who gets pages when they are short: `make_room` and `PrefillAdder` on states made by hand.

Whole runs rarely tell a good choice of victim from a bad one, because both end well.
"""

from __future__ import annotations

from sluice.kv.manager import KVManager
from sluice.scheduler.admission import admit
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.passes import decode
from sluice.scheduler.preempt import make_room
from sluice.scheduler.prefill import AddResult, PrefillAdder
from sluice.scheduler.request import Request, Status
from sluice.scheduler.state import SchedulerState
from sluice.testing import resolved
from sluice.types import Submit
from worlds import limits_of


def state_of(num_pages: int, page_size: int = 1) -> SchedulerState:
    return SchedulerState(KVManager(num_pages=num_pages, page_size=page_size), limits_of(running=8))


def waiting(state: SchedulerState, request_id: int, length: int, max_tokens: int = 8) -> Request:
    """A request of `length` tokens unlike those of all others."""
    request = Request(Submit(request_id, (request_id,) * length, resolved(max_tokens)))
    state.add(request)
    return request


def running(
    state: SchedulerState, request_id: int, scheduled: int, *, length: int | None = None, in_flight: int = 0
) -> Request:
    """A request with pages for `scheduled` tokens: decoding, or partial if its prompt is longer than that."""
    request = waiting(state, request_id, length or scheduled)
    lease = state.kv.acquire([], "")
    state.start(request, lease)
    lease.extend(scheduled)
    request.computed = request.scheduled = scheduled
    request.in_flight = in_flight
    if length is None:
        state.prefilled(request)
    return request


def preempted(*requests: Request) -> list[int]:
    return [request.id for request in requests if request.preemptions]


def adder_of(state: SchedulerState, chunk: int = 8) -> PrefillAdder:
    return PrefillAdder(state, limits_of(chunk=chunk, running=state.num_slots), BatchBuilder())


def test_the_victim_is_who_loses_least() -> None:
    state = state_of(7)
    everyone = running(state, 0, 1), running(state, 1, 1), running(state, 2, 5)
    make_room(state, [everyone[0]])
    assert preempted(*everyone) == [1]


def test_of_equal_losses_the_youngest_bears_it() -> None:
    state = state_of(6)
    everyone = running(state, 0, 1), running(state, 2, 2), running(state, 1, 2), running(state, 3, 1, length=2)
    make_room(state, [everyone[0]])
    assert preempted(*everyone) == [3]
    state = state_of(5)
    everyone = running(state, 0, 1), running(state, 2, 2), running(state, 1, 2)
    make_room(state, [everyone[0]])
    assert preempted(*everyone) == [2]


def test_no_request_is_preempted_while_there_are_pages() -> None:
    state = state_of(4)
    everyone = running(state, 0, 1), running(state, 1, 1)
    make_room(state, everyone)
    assert preempted(*everyone) == []


def test_pages_on_their_way_back_count() -> None:
    """Two pages drain already: taking more would cost another request its work for nothing."""
    state = state_of(5)
    everyone = running(state, 0, 1), running(state, 1, 1), running(state, 2, 1)
    leaving = running(state, 3, 2, in_flight=1)
    state.preempt(leaving)
    assert leaving.status is Status.DRAINING
    make_room(state, everyone[:2])
    assert preempted(*everyone) == []


def test_pages_of_a_victim_in_flight_count_though_they_come_later() -> None:
    state = state_of(3)
    everyone = [running(state, request_id, 1, in_flight=1) for request_id in range(3)]
    make_room(state, everyone[:1])
    assert preempted(*everyone) == [2]


def test_pages_of_a_victim_count_once() -> None:
    state = state_of(4)
    everyone = [running(state, request_id, 1) for request_id in range(4)]
    make_room(state, everyone[:2])
    assert preempted(*everyone) == [2, 3]


def test_a_victim_wants_no_page_any_more() -> None:
    state = state_of(7)
    everyone = running(state, 0, 1), running(state, 1, 1), running(state, 2, 5)
    make_room(state, everyone[:2])
    assert preempted(*everyone) == [1]


def test_the_oldest_alone_is_left_alone() -> None:
    state = state_of(1)
    alone = running(state, 0, 1)
    make_room(state, [alone])
    assert preempted(alone) == []


def test_a_decode_with_room_in_its_last_page_needs_no_page() -> None:
    state = state_of(2, page_size=2)
    everyone = running(state, 0, 1), running(state, 1, 1)
    batch = BatchBuilder()
    decode(state, limits_of(), batch, adder_of(state))
    assert len(batch) == 2
    assert preempted(*everyone) == []


def test_the_oldest_is_found_among_partial_and_decoding() -> None:
    """The younger of the two would be spared in its place, and the oldest could starve."""
    state = state_of(8)
    partial = running(state, 2, 1, length=2)
    running(state, 3, 1)
    assert state.oldest_running() is partial
    decoding = running(state, 1, 1)
    assert state.oldest_running() is decoding
    running(state, 4, 1, length=2)
    state.preempt(decoding)
    assert state.oldest_running() is partial


def test_the_oldest_goes_on_with_its_prompt_at_the_cost_of_younger_ones() -> None:
    state = state_of(4, page_size=2)
    oldest, younger = running(state, 0, 4, length=8), running(state, 1, 4)
    assert adder_of(state).add_partial(oldest) is AddResult.CONTINUE
    assert preempted(younger) == [1]
    assert oldest.scheduled == 8


def test_a_younger_prompt_takes_no_pages_from_anyone() -> None:
    state = state_of(4, page_size=2)
    older, partial = running(state, 0, 4), running(state, 1, 4, length=8)
    assert adder_of(state).add_partial(partial) is AddResult.NO_TOKEN
    assert preempted(older, partial) == []


def test_a_chunk_is_cut_to_the_pages_there_are() -> None:
    state = state_of(6, page_size=2)
    running(state, 0, 4)
    partial = running(state, 1, 4, length=12)
    assert adder_of(state).add_partial(partial) is AddResult.CONTINUE
    assert partial.scheduled == 8


def test_a_prompt_is_admitted_with_room_for_its_output() -> None:
    """Admitted into the last page, it would have to take one from another request in the next step."""
    for length, answer in ((5, AddResult.CONTINUE), (6, AddResult.NO_TOKEN)):
        state = state_of(3, page_size=2)
        assert admit(adder_of(state), waiting(state, 0, length, max_tokens=1)) is answer


def test_a_prompt_as_long_as_the_budget_is_not_cut() -> None:
    state = state_of(9, page_size=4)
    request = waiting(state, 0, 5)
    assert admit(adder_of(state, chunk=5), request) is AddResult.CONTINUE
    assert request.status is Status.DECODING
