"""Our own traces (`sluice serve --trace`): what arrived at an engine, and how long the answers were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sluice.sim.traces.rows import TraceRow, own_text
from sluice.sim.workload import KnownTokens, Leaves
from sluice.tracing.file import TraceReader
from sluice.tracing.format import Abort, AdapterLoaded, Add, Compiled, Copied, End, Loaded, Step

LENGTHS = ("prompt", "num_outputs")


@dataclass(slots=True)
class _Recorded:
    line: int
    add: Add
    outputs: list[int] = field(default_factory=list)
    end: End | None = None
    ended_at: float = 0.0

    @property
    def at(self) -> float:
        return self.add.at if self.add.arrived_at is None else self.add.arrived_at


def read(path: Path) -> Iterator[TraceRow]:
    """Yield the requests that ended, by arrival at the server, or at the engine where the former is not known.

    A request whose client left has the tokens that it got by then. Refused requests and embeddings are left out, and
    so are requests that had not ended.

    Raises:
        TraceError: the file is broken.
    """
    with TraceReader(path) as trace:
        requests = _requests(trace)
        known = trace.header.token_ids
    for each in sorted(requests.values(), key=lambda each: each.at):
        if each.end is not None and not each.add.embeds:
            yield _row(each, each.end, known)


def _requests(trace: TraceReader) -> dict[int, _Recorded]:
    found: dict[int, _Recorded] = {}
    for number, record in trace:
        match record:
            case Add(refused=None):
                found[record.request_id] = _Recorded(number, record)
            case Step(tokens=tokens) if tokens is not None:
                rows = (chunk for chunk in record.plan.chunks if chunk.samples)
                for chunk, ids in zip(rows, tokens, strict=False):
                    if chunk.request_id in found:
                        found[chunk.request_id].outputs.extend(ids)
        if isinstance(record, Step | Abort | Copied | Loaded | Compiled | AdapterLoaded):
            at = (record.ended_at or record.planned_at) if isinstance(record, Step) else record.at
            for end in record.ends:
                if end.request_id in found:
                    found[end.request_id].end, found[end.request_id].ended_at = end, at
    return found


def _row(each: _Recorded, end: End, known: bool) -> TraceRow:
    add, count = each.add, end.num_outputs
    return TraceRow(
        each.line,
        each.at,
        KnownTokens(add.prompt) if known else own_text(each.line, add.prompt_len),
        max(count, 1),
        max_tokens=add.sampling.max_tokens,
        priority=add.priority,
        priority_class=add.priority_class,
        extra_key=add.extra_key,
        adapter=add.adapter,
        itl_target=add.itl_target,
        answer=KnownTokens(tuple(each.outputs[:count])) if len(each.outputs) >= count > 0 else None,
        leaves=None if count else Leaves(after_seconds=max(each.ended_at - each.at, 1e-6)),
    )
