"""TraceFile: writes an engine's events to a file, a line each.

Lines are gathered and reach the file when there are 64 KiB of them, a second after the last ones did, when the engine
has nothing to do, and at the end; a process that is killed loses less than a second.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from sluice.engine.recorder import (
    Aborted,
    Added,
    CacheFlushed,
    CacheRestored,
    CopiesEnded,
    DeviceForgotten,
    Event,
    LoadsReported,
    NothingPlanned,
    StepEnded,
)
from sluice.tracing.format import (
    Abort,
    Add,
    Copied,
    End,
    FlushCache,
    ForgetDevice,
    Header,
    Loaded,
    Nothing,
    Record,
    Restored,
    Step,
    as_written,
    encode,
    encode_plan,
    without_tokens,
)
from sluice.types import BatchPlan, CopyDone, Output, RowError, SamplingParams, StoredPage, Submit

LOGGER = logging.getLogger("sluice.trace")
BUFFER_BYTES = 1 << 16
FLUSH_SECONDS = 1.0
MODE = 0o600
"""Prompts are nobody else's business."""


def create(path: Path) -> None:
    """Make an empty file that only its owner can read, in the place of an old one.

    Raises:
        OSError: it cannot be written.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE)
    try:
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.fchmod(file, MODE)
    finally:
        os.close(file)


class TraceFile:
    """A journal (see `engine.recorder.Journal`) on disk. If the disk fails it says so once and writes no more.

    Args:
        path: made by `create`; written behind what it holds.
        header: the first line.
        start: what the engine's clock shows at the header's `unix_time`.
        key: secret by which `extra_key`s are hashed: who knows a salt must not find it in the trace.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, header: Header, *, start: float, key: bytes) -> None:
        self._path = path
        self._lines = LineMaker(token_ids=header.token_ids, start=start, key=key)
        self._file: BinaryIO = path.open("ab", buffering=BUFFER_BYTES)
        self._flushed_at = start
        # An engine that nobody closed still leaves a whole trace when the program ends.
        self._close = weakref.finalize(self, self._file.close)
        try:
            self._file.write(encode(header))
            self._file.flush()
        except OSError:
            self._abandon()
            raise

    def write(self, event: Event) -> None:
        if not self._close.alive:
            return
        line, now = self._lines.line(event), event_time(event)
        try:
            self._file.write(line)
            if now - self._flushed_at >= FLUSH_SECONDS:
                self._flushed_at = now
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        try:
            if self._close.alive:
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        try:
            self._close()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Serving matters more."""
        LOGGER.warning("the trace %s ends here: %s", self._path, error.strerror)
        self._abandon()

    def _abandon(self) -> None:
        self._close.detach()
        with suppress(OSError):  # it closes all the same; what was buffered is lost
            self._file.close()


def event_time(event: Event) -> float:
    """When it was over, roughly, on the engine's clock."""
    if isinstance(event, StepEnded):
        return event.planned.at if event.ended is None else event.ended.at
    return event.call.at


class LineMaker:
    """Events to lines.

    Args:
        token_ids: write those of prompts, outputs and stop tokens; without, only how many there are.
        start: the clock's time that becomes 0.
        key: see `TraceFile`.
    """

    def __init__(self, *, token_ids: bool, start: float, key: bytes) -> None:
        self._token_ids = token_ids
        self._start = start
        self._key = key

    def line(self, event: Event) -> bytes:
        return encode(self._record(event))

    def _record(self, event: Event) -> Record:
        match event:
            case StepEnded():
                return self._step(event)
            case Added():
                return self._add(event)
            case Aborted((number, at), request_id, reason, outputs):
                return Abort(
                    number=number, at=self._time(at), request_id=request_id, reason=reason, ends=ends_of(outputs)
                )
            case NothingPlanned((number, at)):
                return Nothing(number=number, at=self._time(at))
            case CacheFlushed((number, at), pages):
                return FlushCache(number=number, at=self._time(at), pages=pages)
            case DeviceForgotten((number, at)):
                return ForgetDevice(number=number, at=self._time(at))
            case CopiesEnded((number, at), done, outputs):
                return Copied(number=number, at=self._time(at), done=_clean_copies(done), ends=ends_of(outputs))
            case LoadsReported((number, at), step, ready, error, outputs):
                return Loaded(
                    number=number,
                    at=self._time(at),
                    step=step,
                    ready=ready,
                    error=_clean(error),
                    ends=ends_of(outputs),
                )
            case CacheRestored((number, at), pages, taken):
                written = tuple(map(self._stored, pages)) if self._token_ids else None
                return Restored(number=number, at=self._time(at), num_pages=len(pages), taken=taken, pages=written)

    def _add(self, event: Added) -> Add:
        submit = event.submit
        hidden = {
            "extra_key": self._hashed(submit.extra_key),
            "sampling": self._sampling(submit.sampling),
            "start_deadline": None,  # an abort says what came of a deadline
            "deadline": None,
        }
        if not self._token_ids:
            hidden |= {"prompt": (), "output_ids": ()}
        return Add(
            **{each.name: getattr(submit, each.name) for each in fields(Submit)} | hidden,
            number=event.call.number,
            at=self._time(event.call.at),
            prompt_len=len(submit.prompt),
            num_outputs=len(submit.output_ids),
            refused=_clean(event.refused),
        )

    def _step(self, event: StepEnded) -> Step:
        result, times, plan = event.result, event.times, event.plan
        tokens = () if result is None else result.token_ids
        return Step(
            number=None if event.ended is None else event.ended.number,
            planned=event.planned.number,
            planned_at=self._time(event.planned.at),
            launched_at=None if times is None else self._time(times.launched_at),
            ended_at=None if times is None else self._time(times.ended_at),
            host_ms=_ms(event.host_seconds),
            device_ms=0.0 if times is None else _ms(times.launch_seconds + times.wait_seconds),
            wait_ms=0.0 if times is None else _ms(times.wait_seconds),
            plan=msgspec.Raw(encode_plan(as_written(plan if self._token_ids else self._without_ids(plan)))),
            tokens=tokens if self._token_ids and result is not None else None,
            counts=() if self._token_ids else tuple(len(row) for row in tokens),
            prompt_logprobs=() if result is None else tuple(len(told) for told in result.prompt_logprobs),
            row_errors=() if result is None else result.errors,
            error=_clean(event.error),
            launched=event.launched,
            copies=() if result is None else _clean_copies(result.copies),
            slice_errors=() if result is None else _clean_errors(result.slice_errors),
            ends=ends_of(event.outputs),
        )

    def _without_ids(self, plan: BatchPlan) -> BatchPlan:
        return replace(
            plan,
            new_slots=tuple(
                new._replace(submit=replace(new.submit, sampling=self._sampling(new.sampling)), history=())
                for new in plan.new_slots
            ),
            chunks=tuple(chunk._replace(token_ids=(), targets=()) for chunk in plan.chunks),
            slices=tuple(without_tokens(part) for part in plan.slices),
        )

    def _sampling(self, sampling: SamplingParams) -> SamplingParams:
        return sampling if self._token_ids else replace(sampling, stop_token_ids=(), logit_bias=())

    def _hashed(self, extra_key: str) -> str:
        if not extra_key:
            return ""
        return hashlib.blake2b(extra_key.encode(errors="surrogatepass"), digest_size=8, key=self._key).hexdigest()

    def _stored(self, page: StoredPage) -> StoredPage:
        """A digest is a function of a cache salt, too."""
        key = page.key
        hidden = key._replace(
            digest=self._hidden(key.digest), parent=self._hidden(key.parent), extra_key=self._hashed(key.extra_key)
        )
        return page._replace(key=hidden)

    def _hidden(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, digest_size=len(digest), key=self._key).digest() if digest else b""

    def _time(self, seconds: float) -> float:
        return round(seconds - self._start, 6)


def ends_of(outputs: Iterable[Output]) -> tuple[End, ...]:
    """Which of these are their requests' last."""
    return tuple(
        End(
            output.request_id,
            output.finish_reason,
            output.start + len(output.token_ids),
            output.num_cached_tokens,
            _clean(output.error),
        )
        for output in outputs
        if output.finish_reason is not None
    )


def _clean_copies(done: Iterable[CopyDone]) -> tuple[CopyDone, ...]:
    return tuple(each if each.error is None else each._replace(error=_clean(each.error)) for each in done)


def _clean_errors(errors: Iterable[RowError]) -> tuple[RowError, ...]:
    return tuple(error._replace(message=_clean(error.message) or "") for error in errors)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 4)


def _clean(text: str | None) -> str | None:
    """Without what JSON cannot hold."""
    return None if text is None else text.encode(errors="replace").decode()
