"""Makes and checks the grammars of shapes: the process that `ConstraintChecker` starts.

Each frame on its standard input is a shape, and is answered by one on its standard output. The kernel ends a process
that exceeds its time, and gives it no more than its memory.
"""

from __future__ import annotations

import msgspec

from sluice.text.child_side import begin_timing, frame, limit, pipes, run, send
from sluice.text.constraints.checker import MEMORY_MB, ShapeRefused
from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.grammars import Checked, checked_grammar
from sluice.text.constraints.shapes import Shape


def main() -> None:
    """Answer frames until the standard input ends. The first one is the limit of the processor time in seconds."""
    source, sink = pipes()
    decoder = msgspec.msgpack.Decoder(Shape)
    seconds = msgspec.msgpack.decode(frame(source), type=float)
    limit(MEMORY_MB)
    send(sink, b"")
    while True:
        question = frame(source)
        begin_timing(seconds)
        send(sink, msgspec.msgpack.encode(_answer(decoder.decode(question))))


def _answer(shape: Shape) -> Checked | ShapeRefused:
    try:
        return checked_grammar(shape)
    except ConstraintError as error:
        return ShapeRefused(error.place, error.reason)


if __name__ == "__main__":
    run(main)
