"""A trace file, written by an engine and read line by line.

Lines are gathered and reach the file when there are 64 KiB of them, a second after the last ones did, when the engine
has nothing to do, and at the end; a process that is killed loses less than a second.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from msgspec import structs

from sluice.tracing.format import (
    Add,
    Header,
    Record,
    Restored,
    Step,
    TraceError,
    as_written,
    decode,
    decode_header,
    encode,
    without_tokens,
)
from sluice.types import BatchPlan, SamplingParams, StoredPage, namespace_of, parts_of

LOGGER = logging.getLogger("sluice.trace")
BUFFER_BYTES = 1 << 16
FLUSH_SECONDS = 1.0
MODE = 0o600
"""Only the owner may read a file of prompts."""


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
    """A trace on disk. If the disk fails it logs one warning and writes no more.

    Args:
        path: made by `create`; lines are appended to it.
        header: the first line. Without its `token_ids`, those of prompts, outputs and stop tokens are left out, and
            only their numbers are written.
        key: secret by which cache salts and grammars are hashed, so that none can be found in the trace.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, header: Header, *, key: bytes) -> None:
        self._path = path
        self._token_ids = header.token_ids
        self._key = key
        self._file: BinaryIO = path.open("ab", buffering=BUFFER_BYTES)
        self._flushed_at = 0.0
        # An engine that is never closed still leaves a whole trace when the program ends.
        self._close = weakref.finalize(self, self._file.close)
        try:
            self._file.write(encode(header))
            self._file.flush()
        except OSError:
            self._abandon()
            raise

    def write(self, record: Record) -> None:
        """Write a record: a step's when it ends, all others when they happen."""
        if not self._close.alive:
            return
        line = encode(self._as_written(record))
        now = (record.ended_at or record.planned_at) if isinstance(record, Step) else record.at
        try:
            self._file.write(line)
            if now - self._flushed_at >= FLUSH_SECONDS:
                self._flushed_at = now
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Let readers see everything: the engine may sleep now."""
        try:
            if self._close.alive:
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """End the trace. Later calls do nothing."""
        try:
            self._close()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Write no more: serving continues without a trace."""
        LOGGER.warning("the trace %s ends here: %s", self._path, error.strerror)
        self._abandon()

    def _abandon(self) -> None:
        self._close.detach()
        with suppress(OSError):  # it closes all the same; what was buffered is lost
            self._file.close()

    def _as_written(self, record: Record) -> Record:
        """Return a record without what must not be in the file, or stands in it elsewhere."""
        match record:
            case Step():
                plan = as_written(record.plan if self._token_ids else self._without_ids(record.plan))
                if not self._token_ids:
                    counts = tuple(len(row) for row in record.tokens or ())
                    return structs.replace(record, plan=plan, tokens=None, counts=counts)
                return record if plan is record.plan else structs.replace(record, plan=plan)
            case Add():
                # Of a deadline that passed, an abort is recorded.
                key, grammar = self._hashed(record.extra_key), self._hashed(record.grammar)
                add = replace(record, extra_key=key, grammar=grammar, start_deadline=None, deadline=None)
                if self._token_ids:
                    return add
                return replace(add, prompt=(), output_ids=(), sampling=_without_ids(record.sampling))
            case Restored(pages=pages) if pages is not None:
                return structs.replace(record, pages=tuple(map(self._stored, pages)) if self._token_ids else None)
        return record

    def _without_ids(self, plan: BatchPlan) -> BatchPlan:
        return replace(
            plan,
            new_slots=tuple(
                new._replace(submit=replace(new.submit, sampling=_without_ids(new.sampling)), history=())
                for new in plan.new_slots
            ),
            chunks=tuple(chunk._replace(token_ids=(), targets=()) for chunk in plan.chunks),
            slices=tuple(without_tokens(each) for each in plan.slices),
        )

    def _hashed(self, text: str) -> str:
        if not text:
            return ""
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8, key=self._key).hexdigest()

    def _stored(self, page: StoredPage) -> StoredPage:
        """Hash a page's key: a digest is a function of a cache salt, too."""
        key = page.key
        hidden = key._replace(
            digest=self._hidden(key.digest), parent=self._hidden(key.parent), extra_key=self._hidden_salt(key.extra_key)
        )
        return page._replace(key=hidden)

    def _hidden_salt(self, namespace: str) -> str:
        adapter, salt = parts_of(namespace)
        return namespace_of(adapter, self._hashed(salt))

    def _hidden(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, digest_size=len(digest), key=self._key).digest() if digest else b""


def _without_ids(sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, stop_token_ids=(), logit_bias=())


class Line(NamedTuple):
    """A record and the number of its line, counted from 1."""

    number: int
    record: Record


class TraceReader:
    """An open trace; a context manager. Iterating gives its lines, once.

    Raises:
        TraceError: the file cannot be read, or has no good header; while iterating, as `decode`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_truncated = False
        """The last line is cut: the engine was killed while it wrote. Known after the last line."""
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise TraceError(f"cannot read {path}: {error.strerror}") from error
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> Header:
        try:
            first = self._file.readline()
        except OSError as error:
            raise TraceError(f"cannot read {self._path}: {error.strerror}") from error
        if not first:
            raise TraceError(f"{self._path} is empty")
        try:
            return decode_header(first)
        except TraceError as error:
            raise TraceError(f"{self._path}, line 1: {error}") from error

    def __iter__(self) -> Iterator[Line]:
        """
        Raises:
            TraceError: a line is no record; the message has its number. Only the last line may be cut.
        """
        with closing(self._file):
            for number, text in enumerate(self._file, start=2):
                try:
                    yield Line(number, decode(text))
                except TraceError as error:
                    if not text.endswith(b"\n"):
                        self.is_truncated = True
                        return
                    raise TraceError(f"{self._path}, line {number}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
