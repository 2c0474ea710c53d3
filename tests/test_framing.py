"""Frames arrive whole and in order, however a stream is cut."""

from __future__ import annotations

import io
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.types.framing import LENGTH, FrameReader, TooLong, read_frame, send_frame, write_frame


@given(st.lists(st.binary(max_size=20), max_size=5), st.lists(st.integers(1, 9)))
def test_frames_do_not_depend_on_how_bytes_arrive(frames: list[bytes], sizes: list[int]) -> None:
    """A read of a socket may end in the middle of a length."""
    stream = io.BytesIO()
    for frame in frames:
        write_frame(stream.write, frame)
    stream.seek(0)
    reader, taken = FrameReader(20), []
    for size in [*sizes, 1 << 10]:
        reader.add(stream.read(size))
        while (frame := reader.take()) is not None:
            taken.append(frame)
    assert taken == frames


def test_a_frame_that_is_too_long_is_refused_before_it_arrives() -> None:
    """The first bytes of another protocol would be read as the length of a frame that never ends."""
    reader = FrameReader(7)
    reader.add(LENGTH.pack(8))
    with pytest.raises(TooLong, match="a frame of 8 bytes, 7 are accepted"):
        reader.take()


def test_a_file_that_ends_within_a_frame_has_no_more() -> None:
    """A process whose other end was killed ends, and does not work on half of a question."""
    stream = io.BytesIO()
    write_frame(stream.write, b"whole")
    write_frame(stream.write, b"cut off")
    stream = io.BytesIO(stream.getvalue()[:-1])
    assert read_frame(stream.read) == b"whole"
    assert read_frame(stream.read) is None
    assert read_frame(stream.read) is None


def test_a_socket_and_a_file_have_the_same_frames() -> None:
    here, there = socket.socketpair()
    with here, there:
        send_frame(here, b"question")
        with there.makefile("rb") as file:
            assert read_frame(file.read) == b"question"
