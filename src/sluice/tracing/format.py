"""The lines of a trace file: JSON objects, first a header, then a record for every call of the scheduler.

A step is one record, written when it ends. With several steps in flight it was planned before others ended, so calls
are numbered from 0, without a gap: a record has the number of its call, and a step that of its planning too.
`docs/trace.md` describes every field. `VERSION` changes with the meaning of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, get_args

import msgspec

from sluice.scheduler.setup import SchedulerSetup
from sluice.types import BatchPlan, ChunkSlice, CopyDone, FinishReason, Output, RowError, StoredPage, Submit

VERSION = 8


class TraceError(ValueError):
    """The file is no trace, or cannot be used. The message is one line for the user."""


class End(NamedTuple):
    """The end of a request."""

    request_id: int
    reason: FinishReason
    num_outputs: int
    num_cached_tokens: int
    """Prompt tokens found in the cache when it was first admitted."""
    error: str | None


class Platform(NamedTuple):
    """What a trace was recorded on."""

    name: str
    """The processor, or the device."""
    kernels: str
    """Kernels of the model and of attention, and how KV and weights are stored."""
    dtype: str
    threads: int | None
    """Threads that compute; None if the device is no CPU."""

    def __str__(self) -> str:
        threads = "" if self.threads is None else f", {self.threads} threads"
        return f"{self.name}, {self.kernels}, {self.dtype}{threads}"


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="header"):
    """The engine that is traced. Times in the file are seconds since `unix_time`."""

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
    machine: Platform | None = None
    """The machine; None: the file does not say."""
    max_model_len: int = 0
    """Most tokens of a request, prompt and answer together, that the model's context allows; 0: the file does not
    say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Submit):
    """A request arrived. Its `extra_key` is a keyed hash of the real one."""

    prompt: tuple[int, ...] = ()
    """Empty without token ids, as `output_ids` is."""
    number: int
    at: float
    prompt_len: int
    num_outputs: int = 0
    """Tokens that another engine gave it."""
    refused: str | None = None
    """Why the scheduler did not take it."""
    arrived_at: float | None = None
    """`arrived` as seconds of the file; None if it is not known."""

    @classmethod
    def of(cls, submit: Submit, *, number: int, at: float, refused: str | None, arrived_at: float | None = None) -> Add:
        """Return the record of a request that was submitted."""
        prompt = submit.prompt or tuple(submit.tokens())
        return cls(
            **{each.name: getattr(submit, each.name) for each in fields(Submit)} | {"prompt": prompt, "packed": b""},
            number=number,
            at=at,
            prompt_len=len(prompt),
            num_outputs=len(submit.output_ids),
            refused=refused,
            arrived_at=arrived_at,
        )


class _Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """One call of the scheduler."""

    number: int
    at: float
    """When it was made."""


class Abort(_Call, frozen=True, kw_only=True, omit_defaults=True, tag="abort"):
    """A request was to end: its client left, a stop string was found, or a deadline passed."""

    request_id: int
    reason: FinishReason
    ends: tuple[End, ...] = ()
    """Empty if it had ended already, or was never known."""


class Nothing(_Call, frozen=True, kw_only=True, tag="nothing"):
    """No step was planned. It counts as a call: requests may have been preempted all the same."""


class FlushCache(_Call, frozen=True, kw_only=True, tag="flush_cache"):
    """Cached pages that no request held were forgotten."""

    pages: int


class ForgetDevice(_Call, frozen=True, kw_only=True, tag="forget_device"):
    """The device lost its state; all requests that ran wait again."""


class Copied(_Call, frozen=True, kw_only=True, omit_defaults=True, tag="copied"):
    """Copies with the disk ended."""

    done: tuple[CopyDone, ...]
    ends: tuple[End, ...] = ()


class Loaded(_Call, frozen=True, kw_only=True, omit_defaults=True, tag="loaded"):
    """Blocks of an offloaded chunk were read ahead from the disk, or cannot be read."""

    step: int
    """The step that began the chunk."""
    ready: int = 0
    """Work items of the chunk, from the first one on, that have all their blocks."""
    error: str | None = None
    lost_page: int | None = None
    """The page of the disk that cannot be read, and is computed again."""
    ends: tuple[End, ...] = ()


class Compiled(_Call, frozen=True, kw_only=True, omit_defaults=True, tag="compiled"):
    """The grammar of a request was compiled, or cannot be used."""

    request_id: int
    error: str | None = None
    ends: tuple[End, ...] = ()


class AdapterLoaded(_Call, frozen=True, kw_only=True, omit_defaults=True, tag="adapter_loaded"):
    """An adapter was loaded beside the model, or cannot be."""

    adapter: str
    """Its digest."""
    error: str | None = None
    ends: tuple[End, ...] = ()


class Restored(_Call, frozen=True, kw_only=True, omit_defaults=True, tag="restored"):
    """The prefix cache was filled from what a disk held."""

    num_pages: int
    """Pages that the disk held."""
    taken: int
    """Pages that were taken over: all before them are there as well."""
    pages: tuple[StoredPage, ...] | None = None
    """The pages, with keyed hashes in the place of cache salts and of digests. None without token ids."""


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="step"):
    """A step that ended, or that was in flight when the trace was closed."""

    number: int | None = None
    """Number of the call that committed or failed it; None if neither happened."""
    planned: int
    """Number of the call that planned it."""
    planned_at: float
    launched_at: float | None = None
    """Time of the launch; None if the step was not waited for."""
    ended_at: float | None = None
    host_ms: float
    """Milliseconds in the scheduler: planning, and committing the result."""
    device_ms: float = 0.0
    """Milliseconds in the runner: launching, and waiting for the result."""
    wait_ms: float = 0.0
    """Milliseconds of these that were spent waiting."""
    micros: int = 0
    """Microseconds that were reported to the scheduler for the step."""
    plan: BatchPlan
    tokens: tuple[tuple[int, ...], ...] | None = None
    """Tokens that each row that samples brought; None without token ids, or if the step failed."""
    counts: tuple[int, ...] = ()
    """Numbers of tokens, in a file without token ids."""
    prompt_logprobs: tuple[int, ...] = ()
    """Number of log-probabilities of each row with targets."""
    row_errors: tuple[RowError, ...] = ()
    error: str | None = None
    """Why it failed as a whole."""
    launched: bool = True
    """False: it failed before it began."""
    copies: tuple[CopyDone, ...] = ()
    """Copies that ended with it."""
    slice_errors: tuple[RowError, ...] = ()
    complete: tuple[int, ...] = ()
    """Rows whose grammar allows nothing more."""
    accepted: tuple[int, ...] = ()
    """How many drafts of each row that samples were accepted; empty if no row has drafts."""
    stage_micros: tuple[int, ...] = ()
    """What each stage of a pipeline computed for it."""
    ends: tuple[End, ...] = ()


Call = Add | Abort | Nothing | FlushCache | ForgetDevice | Copied | Loaded | Compiled | AdapterLoaded | Restored
"""What is recorded of one call. A step is recorded when it ends, and stands for two."""
Record = Call | Step
KINDS: Mapping[str, type[Record]] = {"add": Add} | {
    str(kind.__struct_config__.tag): kind for kind in get_args(Record) if kind is not Add
}


class _Head(msgspec.Struct):
    """The fields that say how a line is to be read."""

    kind: str = ""
    version: int = 0


_ENCODER = msgspec.json.Encoder()
_HEAD = msgspec.json.Decoder(_Head)
_HEADER = msgspec.json.Decoder(Header)
_RECORDS: Mapping[str, msgspec.json.Decoder[Record]] = {
    kind: msgspec.json.Decoder(record) for kind, record in KINDS.items()
}
BROKEN = (msgspec.DecodeError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of decoding or upgrading a line that is not what it should be."""


def ends_of(outputs: Iterable[Output]) -> tuple[End, ...]:
    """Return the ends of the requests whose last output is among these."""
    return tuple(
        End(
            output.request_id,
            output.finish_reason,
            output.start + len(output.token_ids),
            output.num_cached_tokens,
            output.error,
        )
        for output in outputs
        if output.finish_reason is not None
    )


def encode(line: Header | Record) -> bytes:
    """Return a line, its end included."""
    content: Any = _without_defaults(line) if isinstance(line, Add) else line
    try:
        return _ENCODER.encode(content) + b"\n"
    except UnicodeEncodeError:
        return _ENCODER.encode(_encodable(msgspec.to_builtins(content))) + b"\n"


def _without_defaults(add: Add) -> dict[str, Any]:
    values = ((each.name, getattr(add, each.name), each.default) for each in fields(add))
    return {"kind": "add"} | {name: value for name, value, default in values if value != default}


def _encodable(value: Any) -> Any:
    """Replace what UTF-8 cannot hold in all strings of a JSON value: error messages may quote anything."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {key: _encodable(each) for key, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list | tuple) else value


def encode_plan(plan: BatchPlan) -> bytes:
    """Return the bytes by which plans are compared."""
    return _ENCODER.encode(plan)


def as_written(plan: BatchPlan) -> BatchPlan:
    """Return a plan without what the trace holds elsewhere: most of a new slot's request stands where it was added,
    keys of pages are functions of tokens and of cache salts, and an offloaded chunk's tokens stand in its first
    slice."""
    if not plan.new_slots and not plan.copies and not plan.slices:
        return plan
    return replace(
        plan,
        new_slots=tuple(
            new._replace(submit=Submit(new.request_id, (), new.sampling, new.sample_index)) for new in plan.new_slots
        ),
        copies=tuple(copy._replace(key=None) for copy in plan.copies),
        slices=tuple(without_tokens(each) if each.first else each for each in plan.slices),
    )


def without_tokens(piece: ChunkSlice) -> ChunkSlice:
    """Return a slice without the tokens of its chunk."""
    return piece._replace(chunk=piece.chunk._replace(token_ids=(), targets=()))


def decode_header(line: bytes) -> Header:
    """
    Raises:
        TraceError: the line is no header, or one of an unknown version.
    """
    head = _head(line)
    if head.kind != "header":
        raise TraceError("not a trace: it does not begin with a header")
    if head.version != VERSION:
        raise TraceError(f"the trace has version {head.version} of the format, not {VERSION}")
    try:
        return _HEADER.decode(line)
    except BROKEN as error:
        raise TraceError(f"a bad header: {error}") from error


def decode(line: bytes) -> Record:
    """
    Raises:
        TraceError: the line is no record, or one of an unknown kind.
    """
    kind = _head(line).kind
    if kind not in KINDS:
        raise TraceError(f"unknown kind of record {kind!r}; known: {', '.join(KINDS)}")
    try:
        return _RECORDS[kind].decode(line)
    except BROKEN as error:
        raise TraceError(f"a bad {kind!r} record: {error}") from error


def _head(line: bytes) -> _Head:
    try:
        return _HEAD.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TraceError(f"not a JSON object with a kind: {error}") from error
