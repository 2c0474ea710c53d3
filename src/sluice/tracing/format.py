"""The trace file: one JSON object a line, first the header, then a record for every call into the scheduler.

A step is one record, written when it ends. With several steps in flight it was planned before others ended, so calls
are numbered: a record names the number of its call, a step that of its planning too. `docs/trace.md` describes every
field. This is the only place that knows the serializer of traces; `VERSION` changes with their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import msgspec

from sluice.scheduler.setup import SchedulerSetup
from sluice.types import BatchPlan, ChunkSlice, CopyDone, FinishReason, RowError, StoredPage, Submit

VERSION = 2


class TraceError(ValueError):
    """A file that is no trace, or not one that can be used; the message is one line for the user."""


class End(NamedTuple):
    """The end of a request."""

    request_id: int
    reason: FinishReason
    num_outputs: int
    num_cached_tokens: int
    """Prompt tokens found in the cache when it was first admitted."""
    error: str | None


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="header"):
    """What the rest is about. Times in the file are seconds since `unix_time`."""

    version: int
    sluice: str
    """Version of the package that wrote it."""
    model: str
    token_ids: bool
    """False: the file holds no token ids, and cannot be replayed."""
    setup: SchedulerSetup
    depth: int
    """Steps in flight at once."""
    unix_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Submit):
    """A request arrived. Its `extra_key` is a keyed hash of the real one."""

    prompt: tuple[int, ...] = ()
    """Empty without token ids, as `output_ids` is."""
    number: int
    at: float
    prompt_len: int
    num_outputs: int = 0
    """Tokens that an engine before gave it."""
    refused: str | None = None
    """Why the scheduler did not take it."""


class Abort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="abort"):
    """A request was to end: by its client, a stop string, a deadline."""

    number: int
    at: float
    request_id: int
    reason: FinishReason
    ends: tuple[End, ...] = ()
    """Empty if it had ended already."""


class FlushCache(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="flush_cache"):
    """Cached pages that nobody used were forgotten."""

    number: int
    at: float
    pages: int


class Nothing(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="nothing"):
    """Nothing could be planned before a step in flight ends."""

    number: int
    at: float


class ForgetDevice(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="forget_device"):
    """The device lost its state; everything that ran waits again."""

    number: int
    at: float


class Copied(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="copied"):
    """Copies with the disk ended."""

    number: int
    at: float
    done: tuple[CopyDone, ...]
    ends: tuple[End, ...] = ()


class Loaded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="loaded"):
    """Blocks of an offloaded chunk were read ahead from the disk, or cannot be read."""

    number: int
    at: float
    step: int
    """The step that began the chunk."""
    ready: int = 0
    """Work items of the chunk, from the first one on, that have all their blocks."""
    error: str | None = None
    ends: tuple[End, ...] = ()


class Restored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="restored"):
    """The prefix cache was filled from what a disk held."""

    number: int
    at: float
    num_pages: int
    """That the disk held."""
    taken: int
    """That have all the pages before them."""
    pages: tuple[StoredPage, ...] | None = None
    """With keyed hashes in the place of cache salts and of digests."""


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="step"):
    """A step that ended, or that was in flight when the trace was closed."""

    number: int | None = None
    """Of the call that committed or failed it; None: neither happened."""
    planned: int
    """Number of the call that planned it."""
    planned_at: float
    launched_at: float | None = None
    ended_at: float | None = None
    host_ms: float
    """In the scheduler."""
    device_ms: float = 0.0
    """In the runner: launching, and waiting for the result."""
    wait_ms: float = 0.0
    """Of these, waiting."""
    plan: msgspec.Raw
    """A `BatchPlan`."""
    tokens: tuple[tuple[int, ...], ...] | None = None
    """Sampled tokens of each row that samples; None without token ids, or if the step failed."""
    counts: tuple[int, ...] = ()
    """Their numbers, instead."""
    prompt_logprobs: tuple[int, ...] = ()
    """How many were told to each row with targets."""
    row_errors: tuple[RowError, ...] = ()
    error: str | None = None
    launched: bool = True
    """False: it failed before it began."""
    copies: tuple[CopyDone, ...] = ()
    """That ended with it."""
    slice_errors: tuple[RowError, ...] = ()
    ends: tuple[End, ...] = ()


Record = Add | Abort | Nothing | FlushCache | ForgetDevice | Copied | Loaded | Restored | Step
KINDS: Mapping[str, type[Record]] = {
    "add": Add,
    "abort": Abort,
    "nothing": Nothing,
    "flush_cache": FlushCache,
    "forget_device": ForgetDevice,
    "copied": Copied,
    "loaded": Loaded,
    "restored": Restored,
    "step": Step,
}


class _Head(msgspec.Struct):
    """As much of a line as says what it is."""

    kind: str = ""
    version: int = 0


BROKEN = (AttributeError, LookupError, TypeError, ValueError)
"""What `upgraded` raises for a line that is no record."""
_ENCODER = msgspec.json.Encoder()
_RECORDS: Mapping[str, msgspec.json.Decoder[Record]] = {
    kind: msgspec.json.Decoder(record) for kind, record in KINDS.items()
}
_HEADER = msgspec.json.Decoder(Header)
_HEAD = msgspec.json.Decoder(_Head)
_PLAN = msgspec.json.Decoder(BatchPlan)


def encode(line: Header | Record) -> bytes:
    """One line, its end included."""
    return _ENCODER.encode(_without_defaults(line) if isinstance(line, Add) else line) + b"\n"


def _without_defaults(add: Add) -> dict[str, Any]:
    """The fields that say something."""
    given = ((each.name, getattr(add, each.name), each.default) for each in fields(add))
    return {"kind": "add"} | {name: value for name, value, default in given if value != default}


def encode_plan(plan: BatchPlan) -> bytes:
    """The bytes by which plans are compared."""
    return _ENCODER.encode(plan)


def as_written(plan: BatchPlan) -> BatchPlan:
    """A plan without what the trace holds elsewhere: most of a new slot's request stands where it was added, keys of
    pages are functions of tokens and of cache salts, and an offloaded chunk's tokens stand in its first slice."""
    if not plan.new_slots and not plan.copies and not plan.slices:
        return plan
    return replace(
        plan,
        new_slots=tuple(
            new._replace(submit=Submit(new.request_id, (), new.sampling, new.sample_index)) for new in plan.new_slots
        ),
        copies=tuple(copy._replace(key=None) for copy in plan.copies),
        slices=tuple(without_tokens(part) if part.first else part for part in plan.slices),
    )


def without_tokens(part: ChunkSlice) -> ChunkSlice:
    return part._replace(chunk=part.chunk._replace(token_ids=(), targets=()))


def decode_plan(data: bytes | msgspec.Raw) -> BatchPlan:
    """
    Raises:
        TraceError: no plan.
    """
    try:
        return _PLAN.decode(data)
    except msgspec.DecodeError as error:
        raise TraceError(f"a plan that is none: {error}") from error


def decode_header(line: bytes) -> Header:
    """
    Raises:
        TraceError: no header, or one of another version.
    """
    head = _head(line)
    if head.kind != "header":
        raise TraceError("not a trace: it does not begin with a header")
    if not 1 <= head.version <= VERSION:
        raise TraceError(f"a trace of version {head.version}, but this is a reader of versions 1 to {VERSION}")
    try:
        return _HEADER.decode(upgraded(line) if head.version == 1 else line)
    except (msgspec.DecodeError, *BROKEN) as error:
        raise TraceError(f"a bad header: {error}") from error


def decode(line: bytes, version: int = VERSION) -> Record:
    """
    Args:
        version: of the file.

    Raises:
        TraceError: no record, or one of an unknown kind.
    """
    kind = _head(line).kind
    if kind not in KINDS:
        raise TraceError(f"unknown kind of record {kind!r}; known: {', '.join(KINDS)}")
    try:
        return _RECORDS[kind].decode(upgraded(line) if version == 1 else line)
    except (msgspec.DecodeError, *BROKEN) as error:
        raise TraceError(f"a bad {kind!r} record: {error}") from error


def upgraded(line: bytes) -> bytes:
    """A line of a version 1 file as version 2 has it: keys were renamed, and a new slot holds its request."""
    record = msgspec.json.decode(line)
    _rename(record, num_told="prompt_logprobs_sent", is_known="is_resumed")
    _rename(record, part_errors="slice_errors")
    match record["kind"]:
        case "header":
            _rename(record.get("setup", {}), streams="offload")
        case "step":
            plan = record["plan"]
            _rename(plan, parts="slices")
            plan["new_slots"] = [
                [slot, {"request_id": request_id, "prompt": [], "sampling": sampling, "sample_index": index}, *rest]
                for slot, request_id, sampling, index, *rest in plan["new_slots"]
            ]
    return _ENCODER.encode(record)


def _rename(record: dict[str, Any], **names: str) -> None:
    for old, new in names.items():
        if old in record:
            record[new] = record.pop(old)


def _head(line: bytes) -> _Head:
    try:
        return _HEAD.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"not a JSON object with a kind: {error}") from error
