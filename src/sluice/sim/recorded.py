"""The requests of a trace as records, as they were: what a simulation of the trace is compared with."""

from __future__ import annotations

from itertools import groupby

from sluice.bench.records import Arrival, CountedBy, Failure, Record
from sluice.sim.simulate import with_kinds
from sluice.tracing.file import TraceReader
from sluice.tracing.run import RequestRun, read_run


def recorded_records(trace: TraceReader) -> list[Record]:
    """Return the requests that ended, in the order of their arrival. Times count from the first arrival; tokens are
    there when the engine has them.

    Raises:
        TraceError: the file is broken.
    """
    requests = [request for request in read_run(trace).requests.values() if request.end is not None]
    ordered = sorted(requests, key=_due)
    start = _due(ordered[0]) if ordered else 0.0
    return with_kinds([_record(request, number, start) for number, request in enumerate(ordered)])


def _due(request: RequestRun) -> float:
    return request.added_at if request.arrived_at is None else request.arrived_at


def _record(request: RequestRun, number: int, start: float) -> Record:
    end, due, ended = request.end, _due(request) - start, request.ended_at
    assert end is not None, "only requests that ended"
    assert ended is not None, "they ended at some time"
    failed = end.reason.is_failure
    return Record(
        session=number,
        turn=0,
        background=False,
        kind="",
        prompt_tokens=request.prompt_len,
        max_tokens=end.num_outputs,
        due=due,
        sent=due,
        accepted=due,
        ended=ended - start,
        arrivals=tuple(Arrival(at - start, len(list(same))) for at, same in groupby(request.token_times)),
        counted_by=CountedBy.IDS,
        cached_tokens=end.num_cached_tokens,
        finish_reason=None if failed else end.reason.value,
        failure=Failure(end.reason.value, end.error or "the request was ended") if failed else None,
    )
